"""What a file says in numbers and texts is within what a plan may say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.artifact.bounds import (
    MAX_STREAMS,
    check_counts,
    check_places,
    check_signature,
    check_source,
    check_spec,
    check_texts,
    plain,
)
from anabranch.errors import VerifyError
from anabranch.ir.calibration import Calibration
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph

SPEC = TargetSpec("cuda", "a GPU", 8, (9, 0), (("f16", 1e15),))
TASKS = TaskGraph("net", (), (), (), (), ())


@pytest.mark.parametrize(
    "launches",
    [
        [Launch(f"t{i}", i) for i in range(MAX_STREAMS + 1)],
        [Launch("a", 0), Launch("b", 7)],
        [Launch("a", -1)],
        [Launch("a", 0), Launch("b", 1, ("a", "a"))],
    ],
)
def test_schedules_that_no_plan_has_are_refused(launches: list[Launch]) -> None:
    check_counts(TASKS, Schedule("s", (Launch("a", 0), Launch("b", 1, ("a",)))))
    with pytest.raises(VerifyError):
        check_counts(TASKS, Schedule("s", tuple(launches)))


@pytest.mark.parametrize(
    "changed",
    [
        {"sms": -1},
        {"bandwidth": float("nan")},
        {"launch_us": float("inf")},
        {"peak_flops": (("f16", 1e31),)},
        {"capability": (-9, 0)},
    ],
)
def test_machines_that_nobody_has_are_refused(changed: dict[str, Any]) -> None:
    check_spec(replace(SPEC, calibration=Calibration()))
    with pytest.raises(VerifyError):
        check_spec(replace(SPEC, **changed))


@pytest.mark.parametrize("text", ["\x1b[2J", "\u202e", "\x08", "\x7f"])
def test_texts_that_a_terminal_obeys_are_refused(text: str) -> None:
    check_source("# conv: μ = 3\n\tx = 1\r\n".encode())
    with pytest.raises(VerifyError):
        check_source(f"x = '{text}'".encode())
    json = f'{{"a": "\\u{ord(text[0]):04x}"}}'.encode()
    with pytest.raises(VerifyError):
        check_texts(json, lambda: json)
    check_texts(json, lambda: b"{}")  # where it may have some


def test_facts_for_people_are_shown_with_such_characters_spelled_out() -> None:
    assert plain({"a\x1b": ["b\x07", 3, None]}) == {"a\\x1b": ["b\\x07", 3, None]}


class Counter(nn.Module):
    """Two launches, and a buffer that the call writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen += x
        return torch.sin(self.linear(x)) + y


@pytest.fixture(name="plan", scope="module")
def _plan() -> Plan:
    quick: Any = {"cache_dir": None, "kernels": "library", "search": "none"}
    model, args = Counter().eval(), (torch.ones(4), torch.ones(4))
    with torch.no_grad():
        compiled = anabranch.compile(model, args, target="cpu", scheduler="sequential", **quick)
    return compiled.entries[-1].plan


def test_a_place_is_as_large_as_its_value(plan: Plan) -> None:
    check_places(plan)
    assert any(slot.space == "arena" for slot in plan.slots)
    for i, slot in enumerate(plan.slots):
        larger = replace(slot, nbytes=slot.nbytes + 512)
        slots = (*plan.slots[:i], larger, *plan.slots[i + 1 :])
        with pytest.raises(VerifyError, match=f"%{slot.value} has a place of .* not its size"):
            check_places(replace(plan, slots=slots))


def test_a_signature_has_the_inputs_of_its_tasks(plan: Plan) -> None:
    known = plan.signature
    assert known is not None and len(known.inputs) == 2
    check_signature(known, plan.tasks)
    swapped = known.inputs[::-1]
    for inputs in (swapped, known.inputs[:1], (*known.inputs, known.inputs[0])):
        with pytest.raises(VerifyError, match="other inputs than its tasks"):
            check_signature(replace(known, inputs=inputs), plan.tasks)

"""Which results may be written over which operands, and that nothing changes where they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.artifact.test_file import Members, rewrite
from torch import Tensor, nn

import anabranch
from anabranch.artifact.overwrites import check_overwrites
from anabranch.errors import ArtifactError, VerifyError
from anabranch.fusion.partition import singly
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.kernels.library import AtenProvider
from anabranch.kernels.overwritable import overwritable
from anabranch.kernels.triton.provider import TritonProvider
from anabranch.memory import pack
from anabranch.schedule.sequential import in_a_row
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.read_before import with_readers_first

SPEC = resolve("sim:h200").spec
HEAD = """
graph g {
  input %x: f32[128,256]
  input %w: f32[256,256]
  %a: f32[128,256] = aten.mm.default(%x, %w)
"""
OPERATORS = {
    "an operand": ("%y: f32[128,256] = aten.mul.Tensor(%a, %x)", ("a",), ("a",)),
    "not an input": ("%y: f32[128,256] = aten.neg.default(%x)", (), ()),
    "rows": ("%y: f32[128,256] = aten._softmax.default(%a, 1, False)", (), ("a",)),
    "elements of another row": ("%y: f32[128,256] = aten.flip.default(%a, [0])", (), ()),
    "another dtype": ("%y: f64[128,256] = aten._to_copy.default(%a, dtype=torch.float64)", (), ()),
    "a product": ("%y: f32[128,256] = aten.mm.default(%a, %w)", (), ()),
    "no out of its own": ("%y: f32[128,256] = aten.relu.default(%a)", (), ("a",)),
}


def tasks_of(text: str, generated: bool) -> TaskGraph:
    cut = singly(parse_graph(text))
    chosen = []
    for task in cut.tasks:
        offers = TritonProvider().kernels(task, SPEC) if generated and "mm" not in task.name else []
        kernel = (offers or AtenProvider().kernels(task, SPEC))[0]
        chosen.append(replace(task, kernel=kernel))
    return replace(cut, tasks=tuple(chosen))


@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_that_read_each_element_before_they_write_it(name: str) -> None:
    line, library, generated = OPERATORS[name]
    text = f"{HEAD}  {line}\n  return %y\n}}\n"
    assert overwritable(tasks_of(text, False)).get("y", ()) == library
    if name != "a product":
        pytest.importorskip("triton")
        assert overwritable(tasks_of(text, True)).get("y", ()) == generated


def test_an_operand_that_is_read_by_two_names_is_asked_for_both() -> None:
    """The other one of them reads other elements."""
    text = """
graph g {
  input %x: f32[256,256]
  %a: f32[256,256] = aten.mm.default(%x, %x)
  %t: f32[256,256]{1,256} = aten.t.default(%a)
  %y: f32[256,256] = aten.add.Tensor(%a, %t)
  return %y
}
"""
    assert "y" not in overwritable(tasks_of(text, False))
    pytest.importorskip("triton")
    assert "y" not in overwritable(tasks_of(text, True))


QUICK: dict[str, Any] = {
    **{"cache_dir": None, "search": "none", "scheduler": "sequential", "kernels": "library"}
}


class Gates(nn.Module):
    """A product, what is made of it element by element, and a product of that; how often."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.one, self.two = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.one(x)
        y: Tensor = self.two(h * x.mean()) - x
        return y


def test_a_plan_writes_over_and_computes_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Gates().eval(), torch.randn(128, 64)
    fast = anabranch.compile(model, (x,), target="cpu", **QUICK)
    over = [slot for slot in fast.entries[-1].plan.slots if slot.over]
    assert over, "the product's result is written over"
    for _ in range(2):
        torch.testing.assert_close(fast(x), model(x))
    fast.save(tmp_path / "plan.anabranch")
    again = anabranch.load(tmp_path / "plan.anabranch", target="cpu")
    torch.testing.assert_close(again(x), model(x))

    def lying(members: Members) -> None:
        doc = json.loads(members["plan.json"])
        first = next(slot for slot in doc["slots"] if slot["value"] == over[0].over)
        first |= {"over": over[0].value}  # the product, over what is made of it
        members["plan.json"] = json.dumps(doc).encode()

    rewrite(tmp_path / "plan.anabranch", lying)
    with pytest.raises(ArtifactError, match="would not run safely") as refused:
        anabranch.load(tmp_path / "plan.anabranch", target="cpu")
    assert "is written over" in str(refused.value)


def test_a_file_cannot_say_that_a_product_writes_over_its_operand() -> None:
    text = f"{HEAD}  %y: f32[128,256] = aten.mm.default(%a, %w)\n  return %y\n}}\n"
    tasks = tasks_of(text, False)
    plan = pack(tasks, in_a_row(tasks), SPEC, overwritable={"y": ("a",)})
    assert [slot.over for slot in plan.slots if slot.over] == ["a"], "as it was told"
    with pytest.raises(VerifyError, match=r"%y is written over %a: aten.mm.default"):
        check_overwrites(plan)


LATE_READER = """
graph g {
  input %x: f32[2048,1024]
  input %w: f32[1024,1024]
  input %v: f32[1024,8]
  %a: f32[2048,1024] = aten.mm.default(%x, %w)
  %y: f32[2048,1024] = aten.mul.Tensor(%a, %x)
  %loss: f32[] = aten.sum.default(%a)
  %z: f32[2048,8] = aten.mm.default(%y, %v)
  return %z, %loss
}
"""


def test_a_late_reader_runs_before_what_is_written_over() -> None:
    """The sum would be taken last, and the product's result be kept until then."""
    tasks, trace = tasks_of(LATE_READER, False), Trace(quiet=True)

    def us(task: Task) -> float:
        return 0.01 if task.name == "loss" else 10.0

    ordered = with_readers_first(tasks, SPEC, us, trace)
    names = [task.name for task in ordered.tasks]
    assert names.index("loss") < names.index("y") and len(trace.events) == 1
    assert [len(t.body.inputs) for t in ordered.tasks if t.name == "y"] == [3]
    arenas = [
        pack(one, in_a_row(one), SPEC, overwritable=overwritable(one)).arena_bytes
        for one in (tasks, ordered)
    ]
    assert arenas == [2 * (8 << 20), (8 << 20) + (64 << 10)], "of a and y, and of z beside one"

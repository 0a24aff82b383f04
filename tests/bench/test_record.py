from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch import api
from anabranch.bench.record import networks, record
from anabranch.costs.recorded import (
    Recorded,
    Timing,
    find_probe,
    load_profile,
    save_profile,
    timing_key,
)
from anabranch.errors import CaptureError, OptionError
from anabranch.models.load import load_model
from anabranch.trace import Trace

BRANCHING = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x

def build():
    return Net(), (torch.ones(2),)
"""
NET = "zoo:deepfm/tiny"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def test_the_whole_zoo_by_default() -> None:
    assert "zoo:inception_v3" in networks() and len(networks()) > 10


def test_every_task_of_the_plan_is_found_again(tmp_path: Path) -> None:
    profile = record((NET,), ("fp32",), (1,), target="cpu")
    assert profile.provenance.date and profile.provenance.versions["torch"]
    save_profile(profile, tmp_path / "p.json")
    costs = Recorded(load_profile(tmp_path / "p.json"))
    model, args = load_model(NET, 1)
    compiled = api.compile(
        model, args, target="cpu", verify=False, scheduler="sequential", search="none"
    )
    plan = compiled.entries[-1].plan
    assert costs.missing(plan.tasks) == 0
    for task in plan.tasks.tasks:
        assert task.kernel is not None
        assert timing_key(task, False) in profile.tasks
        assert find_probe(profile, task.kernel) is not None
    assert all(timing.label for timing in profile.tasks.values())


def test_the_graph_that_a_search_finds_has_its_kernels_too() -> None:
    asked: list[tuple[str, str]] = []

    def noted(*args: Any, **options: Any) -> Any:
        asked.append((options["search"], options.get("scheduler", "best")))
        return api.compile(*args, **{**options, "search_seconds": 1.0})

    both = record((NET,), ("fp32",), (1,), target="cpu", compile=noted,
                  searches=("none", "autograph"))  # fmt: skip
    assert asked == [("none", "sequential"), ("autograph", "best")]
    plain = record((NET,), ("fp32",), (1,), target="cpu")
    assert set(plain.tasks) <= set(both.tasks)


def test_adds_to_what_there_is_of_the_same_machine() -> None:
    first = record((NET,), ("fp32",), (1,), target="cpu")
    both = record((NET,), ("fp32",), (2,), target="cpu", into=first)
    assert set(first.tasks) < set(both.tasks)
    other = first.model_copy(update={"spec": replace(first.spec, name="another")})

    def compile(*args: Any, **options: Any) -> Any:
        raise AssertionError("it is told before anything is measured")

    with pytest.raises(OptionError, match="another"):
        record((NET,), ("fp32",), (1,), target="cpu", into=other, compile=compile)


def test_a_profile_borrows_from_a_gpu_with_the_same_multiprocessors() -> None:
    """What that one does not know, by name, and nothing that it has timed itself."""
    first = record((NET,), ("fp32",), (1,), target="cpu")
    known, *_ = first.tasks
    sister = first.model_copy(
        update={
            "spec": replace(first.spec, name="sister", bandwidth=2 * first.spec.bandwidth),
            "tasks": {known: Timing(us=12345.0)},
            "kernels": {},
        }
    )
    with pytest.raises(OptionError, match="sister") as told:
        record((NET,), ("fp32",), (1,), target="cpu", into=sister)
    assert f"--borrow-from {shlex.quote(first.spec.name)}" in told.value.next
    with pytest.raises(OptionError, match="sister"):
        record((NET,), ("fp32",), (1,), target="cpu", into=sister, borrow_from="another")
    lent = record((NET,), ("fp32",), (1,), target="cpu", into=sister, borrow_from=first.spec.name)
    assert lent.spec.name == "sister" and lent.provenance == sister.provenance
    assert lent.tasks[known].us == 12345.0 and len(lent.tasks) == len(first.tasks) > 1
    assert lent.elsewhere == dict.fromkeys(first.tasks.keys() - {known}, first.spec.name)
    assert lent.kernels.keys() == first.kernels.keys()
    larger = sister.model_copy(update={"spec": replace(sister.spec, sms=sister.spec.sms + 1)})
    with pytest.raises(OptionError, match="sister") as told:
        record((NET,), ("fp32",), (1,), target="cpu", into=larger, borrow_from=first.spec.name)
    assert "--borrow-from" not in told.value.next


def test_what_is_timed_here_was_not_timed_elsewhere() -> None:
    """Of what another machine timed, what this one did not is still that one's."""
    first = record((NET,), ("fp32",), (1,), target="cpu")
    key, *_ = first.tasks
    lent = first.model_copy(
        update={
            "tasks": {**first.tasks, "strange": Timing(us=1.0)},
            "elsewhere": dict.fromkeys((key, "strange"), "another"),
        }
    )
    again = record((NET,), ("fp32",), (1,), target="cpu", into=lent)
    assert again.elsewhere == {"strange": "another"} and again.tasks["strange"].us == 1.0


def test_a_network_that_fails_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(BRANCHING)
    trace = Trace()
    profile = record((f"{path}:build", NET), ("fp32",), (1,), trace, target="cpu")
    assert profile.tasks
    assert [event for event in trace.events if event.kind == "warning" and event.where == "record"]
    with pytest.raises(CaptureError):
        record((f"{path}:build",), ("fp32",), (1,), target="cpu")

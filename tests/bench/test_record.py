from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.bench.small import BRANCHING, SMALL

from anabranch import api
from anabranch.bench.record import considered, fact, kernel_facts, networks, record
from anabranch.costs.recorded import (
    KernelFact,
    Profile,
    Recorded,
    Timing,
    find_probe,
    kernel_key,
    load_profile,
    save_profile,
    timing_key,
)
from anabranch.costs.roofline import Roofline
from anabranch.errors import CaptureError, OptionError
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Probe
from anabranch.ir.task import Kernel, Resources, TaskGraph
from anabranch.models.load import load_model
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate

pytestmark = pytest.mark.xdist_group("record")  # most begin with one profile


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


@pytest.fixture(scope="module")
def first() -> Profile:
    """What most tests begin with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANABRANCH_CACHE_DIR", "")
        return record((SMALL,), ("fp32",), (1,), target="cpu")


def test_the_whole_zoo_by_default() -> None:
    assert "zoo:inception_v3" in networks() and len(networks()) > 10


def test_every_task_of_the_plan_is_found_again(first: Profile, tmp_path: Path) -> None:
    profile = first
    assert profile.provenance.date and profile.provenance.versions["torch"]
    save_profile(profile, tmp_path / "p.json")
    costs = Recorded(load_profile(tmp_path / "p.json"))
    model, args = load_model(SMALL, 1)
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


def test_what_kernels_take_is_recorded_where_they_are_timed() -> None:
    """Of each whose time is kept, chosen or not: here every task has a second one, which a GPU's
    probe says something else of."""
    model, args = load_model(SMALL, 1)
    compiled = api.compile(
        model, args, target="cpu", verify=False, scheduler="sequential", search="none"
    )
    assert all(one.resources is None for one in considered(compiled)[1].values())  # as on a CPU
    made = compiled.entries[-1].compilation
    assert made is not None
    found = made.compiled.selection
    asked: list[set[str]] = []

    class Gpu(Roofline):
        def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
            known = {t.name: t.kernel.name for t in tasks.tasks if t.kernel is not None}
            asked.append(set(known.values()))
            return {
                name: Probe(0, 0, 0, Resources(1, 32, 8, 64 if kernel == "second" else 16))
                for name, kernel in known.items()
            }

    def two(tried: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        (first,) = tried
        return first, replace(first, kernel=replace(first.kernel, name="second"))

    both = {name: two(tried) for name, tried in found.candidates.items()}
    facts = kernel_facts([replace(found, candidates=both)], Gpu(made.plan.spec), made.plan.spec)
    for first, second in both.values():
        assert facts[kernel_key(first.kernel)].resources == Resources(1, 32, 8, 16)
        assert facts[kernel_key(second.kernel)].resources == Resources(1, 32, 8, 64)
    assert len(asked) == 2 and asked[1] == {"second"}


def test_what_is_estimated_of_a_kernel_is_no_record() -> None:
    kernel = Kernel("triton", "rows", Graph("g", (), (), (), ()))
    taken = Resources(1, 32, 8, 16)
    kept = fact(kernel, Probe(64, 0, 2, taken))
    assert kept == KernelFact(workspace=64, launches=2, resources=taken)
    assert json.loads(kept.model_dump_json())["resources"] == {
        "ctas": 1,
        "threads": 32,
        "registers": 8,
        "shared": 16,
    }
    guess = replace(taken, estimated=True)
    assert fact(kernel, Probe(64, 0, 2, guess)).resources is None


def test_the_graph_that_a_search_finds_has_its_kernels_too(first: Profile) -> None:
    asked: list[tuple[str, str]] = []

    def noted(*args: Any, **options: Any) -> Any:
        asked.append((options["search"], options.get("scheduler", "best")))
        return api.compile(*args, **{**options, "search_seconds": 1.0})

    both = record((SMALL,), ("fp32",), (1,), target="cpu", compile=noted,
                  searches=("none", "autograph"))  # fmt: skip
    assert asked == [("none", "sequential"), ("autograph", "best")]
    assert set(first.tasks) <= set(both.tasks)


def test_adds_to_what_there_is_of_the_same_machine(first: Profile) -> None:
    both = record((SMALL,), ("fp32",), (2,), target="cpu", into=first)
    assert set(first.tasks) < set(both.tasks)
    other = first.model_copy(update={"spec": replace(first.spec, name="another")})

    def compile(*args: Any, **options: Any) -> Any:
        raise AssertionError("it is told before anything is measured")

    with pytest.raises(OptionError, match="another"):
        record((SMALL,), ("fp32",), (1,), target="cpu", into=other, compile=compile)


def test_a_profile_borrows_from_a_gpu_with_the_same_multiprocessors(first: Profile) -> None:
    """What that one does not know, by name, and nothing that it has timed itself."""
    known, *_ = first.tasks
    sister = first.model_copy(
        update={
            "spec": replace(first.spec, name="sister", bandwidth=2 * first.spec.bandwidth),
            "tasks": {known: Timing(us=12345.0)},
            "kernels": {},
        }
    )
    with pytest.raises(OptionError, match="sister") as told:
        record((SMALL,), ("fp32",), (1,), target="cpu", into=sister)
    assert f"--borrow-from {shlex.quote(first.spec.name)}" in told.value.next
    with pytest.raises(OptionError, match="sister"):
        record((SMALL,), ("fp32",), (1,), target="cpu", into=sister, borrow_from="another")
    lent = record((SMALL,), ("fp32",), (1,), target="cpu", into=sister, borrow_from=first.spec.name)
    assert lent.spec.name == "sister" and lent.provenance == sister.provenance
    assert lent.tasks[known].us == 12345.0 and len(lent.tasks) == len(first.tasks) > 1
    assert lent.elsewhere == dict.fromkeys(first.tasks.keys() - {known}, first.spec.name)
    assert lent.kernels.keys() == first.kernels.keys()
    larger = sister.model_copy(update={"spec": replace(sister.spec, sms=sister.spec.sms + 1)})
    with pytest.raises(OptionError, match="sister") as told:
        record((SMALL,), ("fp32",), (1,), target="cpu", into=larger, borrow_from=first.spec.name)
    assert "--borrow-from" not in told.value.next


def test_what_is_timed_here_was_not_timed_elsewhere(first: Profile) -> None:
    """Of what another machine timed, what this one did not is still that one's."""
    key, *_ = first.tasks
    lent = first.model_copy(
        update={
            "tasks": {**first.tasks, "strange": Timing(us=1.0)},
            "elsewhere": dict.fromkeys((key, "strange"), "another"),
        }
    )
    again = record((SMALL,), ("fp32",), (1,), target="cpu", into=lent)
    assert again.elsewhere == {"strange": "another"} and again.tasks["strange"].us == 1.0


def test_a_network_that_fails_is_a_warning() -> None:
    trace = Trace()
    profile = record((BRANCHING, SMALL), ("fp32",), (1,), trace, target="cpu")
    assert profile.tasks
    assert [event for event in trace.events if event.kind == "warning" and event.where == "record"]
    with pytest.raises(CaptureError):
        record((BRANCHING,), ("fp32",), (1,), target="cpu")

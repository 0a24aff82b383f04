"""Decisions outlive the process that took them, and no change of what they rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from anabranch.cache import Cache
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost, KernelOffer, offered
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels import sources
from anabranch.trace import Trace
from anabranch.tuning import decisions
from anabranch.tuning.decisions import Memory, whole
from anabranch.tuning.select import Selection, SelectionConfig, select

SPEC = TargetSpec("cuda", "a GPU")


def body(name: str) -> Graph:
    return parse_graph(f"""
graph {name} {{
  input %x: f32[4]
  %{name}: f32[4] = aten.relu.default(%x)
  return %{name}
}}""")


@dataclass(frozen=True)
class Fake:
    """Three kernels, of which one cannot run; it notes what it is asked for."""

    version: str = "1"
    name: str = "fake"
    asked: list[str] = field(default_factory=list, compare=False)

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        self.asked.append("all")
        return [Kernel("fake", "k", task.body, v, source=f"# {task.name}\n{v}") for v in "abc"]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        return list(map(offered, self.kernels(task, spec)))

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        self.asked.append(str(variant))
        return Kernel("fake", name, task.body, variant, source=f"# {task.name}\n{variant}")


def chosen(
    fake: Fake,
    memory: Memory,
    spec: TargetSpec = SPEC,
    source: str = "measured",
    trace: Trace | None = None,
) -> Selection:
    us = {"a": 3.0, "b": 2.0, "c": None}

    def trial(tasks: Sequence[Task]) -> list[Cost | None]:
        times = [us[str(task.kernel.variant)] for task in tasks if task.kernel]
        return [None if t is None else Cost(t, source, 0.01) for t in times]  # type: ignore[arg-type]

    two = tuple(Task(name, body(name)) for name in ("one", "two"))
    tasks = TaskGraph("t", body("one").inputs, (), two, (), body("two").outputs)
    config = SelectionConfig(spec, [fake], trial, lambda task: None, memory)
    return select(tasks, config, trace or Trace())


def test_what_was_decided_is_not_tried_again() -> None:
    with Cache.open(None) as cache:
        cold = chosen(Fake(), Memory(cache, "measured"))
        fake = Fake()
        warm = chosen(fake, Memory(cache, "measured"))
    assert fake.asked == ["b", "b"]  # the winner, with the names of each task
    assert warm.tasks == cold.tasks
    assert warm.candidates["one"] is warm.candidates["two"]


def test_the_losers_are_known_by_name_and_cost() -> None:
    with Cache.open(None) as cache:
        cold = chosen(Fake(), Memory(cache, "measured"))
        warm = chosen(Fake(), Memory(cache, "measured"))
    for old, new in zip(cold.candidates["one"], warm.candidates["one"], strict=True):
        assert new.verdict == old.verdict
        assert new.sketch and not new.kernel.source
        assert whole(cold.tasks.tasks[0], new, SPEC, [Fake()]) == old.kernel
        assert whole(cold.tasks.tasks[0], old, SPEC, []) is old.kernel


def test_the_same_is_told() -> None:
    with Cache.open(None) as cache:
        cold, warm = Trace(), Trace()
        chosen(Fake(), Memory(cache, "measured"), trace=cold)
        chosen(Fake(), Memory(cache, "measured"), trace=warm)
    told, again = ([e for e in t.events if e.kind != "stage"] for t in (cold, warm))
    assert told == again and told  # stages alone tell how long they took


@pytest.mark.parametrize("other", ["scheme", "version", "target", "costs"])
def test_a_decision_that_rests_on_something_else_is_not_found(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache.open(None) as cache:
        chosen(Fake(), Memory(cache, "measured"))
        if other == "scheme":
            older = replace(decisions.DECISIONS, name="selection 0")
            monkeypatch.setattr(decisions, "DECISIONS", older)
        fake = Fake("2" if other == "version" else "1")
        spec = replace(SPEC, sms=2) if other == "target" else SPEC
        chosen(fake, Memory(cache, "recorded" if other == "costs" else "measured"), spec)
    assert "all" in fake.asked


def test_what_may_come_out_better_next_time_is_not_kept() -> None:
    with Cache.open(None) as cache:
        chosen(Fake(), Memory(cache, "measured", settled=lambda: False))
        chosen(Fake(), Memory(cache, "measured"), source="estimated")
        fake = Fake()
        chosen(fake, Memory(cache, "measured"))
    assert "all" in fake.asked


def test_estimates_of_a_simulated_machine_are_kept() -> None:
    spec = replace(SPEC, simulated=True)
    with Cache.open(None) as cache:
        chosen(Fake(), Memory(cache, "recorded"), spec, source="estimated")
        fake = Fake()
        chosen(fake, Memory(cache, "recorded"), spec, source="estimated")
    assert "all" not in fake.asked


@pytest.mark.parametrize("broken", ["", "{}", '{"tried": []}', '{"tried": [{"maker": 7}]}'])
def test_a_broken_entry_is_a_miss(broken: str) -> None:
    with Cache.open(None) as cache:
        chosen(Fake(), Memory(cache, "measured"))
        (entry,) = cache.ls("kernels")
        cache.put("kernels", entry.key, broken)
        fake = Fake()
        chosen(fake, Memory(cache, "measured"))
    assert "all" in fake.asked


def test_the_digest_of_our_files_is_stable() -> None:
    assert sources.digest() == sources.digest() and len(sources.digest()) == 32
    assert sources.installed("no-such-package-anywhere") == "none"

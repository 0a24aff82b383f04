"""Which of several selections for one graph are run, and which is taken."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tuning.test_tuner import PARTS, Dear, tuner, with_values
from torch import nn

from anabranch.costs import costs_of
from anabranch.deadline import TIME
from anabranch.fusion import partition
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning import build
from anabranch.tuning.cut_choice import SelectionVariant
from anabranch.tuning.job import Job
from anabranch.tuning.select import Selection

GRAPH = with_values(parse_graph(PARTS))


@pytest.fixture
def ways() -> tuple[list[SelectionVariant], Any]:
    """One with its concatenation in a launch with activations, one with it elided."""
    made = tuner()
    prepare = partial(pack, spec=made.target.spec)
    costs: Any = Dear(costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s), 4.2)
    found = made.kernels(made.cuts(GRAPH, Trace()), costs, Trace(), wholes=True)
    assert [len(way.selection.tasks.elided_concats) for way in found] == [0, 1]
    return found, costs


def taken(ways: tuple[list[SelectionVariant], Any], raced: list[Cost]) -> tuple[int, int, Trace]:
    """Which way is taken where they take so long, how many ran, and what was said."""
    ran: list[int] = []

    def race(plans: list[Any]) -> list[Cost]:
        ran.append(len(plans))
        return raced

    def built(way: SelectionVariant) -> Any:
        choice, costs = SimpleNamespace(schedule=None), SimpleNamespace(race=race)
        return SimpleNamespace(tasks=way.selection.tasks, choice=choice, costs=costs)

    trace = Trace()
    job = Job(None, (), {}, tuner().target, Options(), None, trace)
    found, costs = ways
    way = build.fastest_of(job, found, costs, built)
    return found.index(way), sum(ran), trace


@pytest.mark.parametrize(
    ("us", "spread", "which"), [((9.0, 8.0), 0.1, 1), ((8.0, 9.0), 0.1, 0), ((9.0, 8.0), 0.6, 0)]
)
def test_the_faster_whole_is_taken_and_the_first_in_a_tie(
    us: tuple[float, float],
    spread: float,
    which: int,
    ways: tuple[list[SelectionVariant], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "SELECTION_RATIO", 10.0)
    raced = [Cost(each, "measured", spread) for each in us]
    found, ran, trace = taken(ways, raced)
    assert (found, ran) == (which, 2)
    (event,) = trace.events
    assert event.kind == "refused" and event.what.endswith(f"{1 - which} elided concats")


def test_what_is_foreseen_to_be_much_slower_is_not_run(
    ways: tuple[list[SelectionVariant], Any],
) -> None:
    """Where a slice of the concatenation takes long to write, eliding it is not worth a run."""
    both, costs = ways
    found, ran, trace = taken((both, Dear(costs.costs, 42.0)), [])
    assert (found, ran, trace.events) == (0, 0, [])


TWO = parse_graph("""
graph two {
  input %x: f16[4,64]
  %a: f16[4,64] = aten.sigmoid.default(%x)
  %b: f16[4,64] = aten.tanh.default(%x)
  return %a, %b
}""")


@pytest.mark.parametrize(
    ("options", "apart"),
    [({}, True), ({"scheduler": "sequential"}, False), ({"max_streams": 1}, False)],
)
def test_selections_are_foreseen_on_as_many_streams_as_there_will_be(
    options: dict[str, Any], apart: bool
) -> None:
    """Two launches side by side are faster than one for both; one after the other they are not."""
    target = resolve("sim:h200", False)
    cuts = [partition(TWO, Trace(), target.spec, True, several) for several in (True, False)]
    ways = [SelectionVariant(Selection(cut, {}), Trace()) for cut in cuts]
    assert [len(cut.tasks) for cut in cuts] == [1, 2]
    chosen = Options.read({"cache_dir": None, **options}, environment=False)
    job = Job(nn.Identity(), (), {}, target, chosen, None, Trace())

    def us(task: Task) -> float:
        return 30.0 if len(task.body.nodes) > 1 else 20.0

    assert build._in_sight(job, ways, us) == [ways[apart]]


def test_large_graphs_are_scheduled_without_stages() -> None:
    """Unless somebody asks for them."""
    usual, asked = Options(), Options.read({"scheduler": "ios"}, environment=False)
    assert "ios" in build.schedulers_of(usual, 300) and "ios" not in build.schedulers_of(usual, 301)
    assert list(build.schedulers_of(asked, 301)) == ["ios"]

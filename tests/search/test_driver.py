"""What a search that was cut short leaves behind: an answer, or where the next one begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path as File
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from anabranch.cache import Cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import ENDLESS, TIME, CutShort
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource
from anabranch.ir.variant import PdlMode
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.search import driver, evaluation
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.result import Path, Round
from anabranch.search.state import SearchOutcome
from anabranch.targets import resolve
from anabranch.trace import RECALLED, Trace, stage_seconds
from anabranch.tuning.job import Job
from anabranch.tuning.launch.decide import LARGE_LAUNCHES

End = tuple[CutShort, float, int]
"""Why a search ended, the part of its work that was left, and how many graphs it built."""
Asked = Callable[..., Compilation]


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where each search began."""
    return []


@pytest.fixture
def asked(tmp_path: File, monkeypatch: pytest.MonkeyPatch, begun: list[Path]) -> Iterator[Asked]:
    """Compiles one network with searches that find nothing and end as they are told."""
    net, inputs = ZOO["squeezenet"].build("tiny"), ZOO["squeezenet"].inputs("tiny", 1)
    chosen = {"search": "autograph", "scheduler": "critical", "kernels": "library"}
    with Cache.open(tmp_path) as cache:

        def compiled(
            end: End = ("", 0.0, 1),
            step: str = "",
            within: Cache = cache,
            trace: Trace | None = None,
            **options: Any,
        ) -> Compilation:
            def improved(*given: Any, **more: Any) -> SearchOutcome[Any]:
                start: Path = given[-1]
                begun.append(start)
                rounds = start.rounds
                if step:
                    steps = (RewriteStep(step, ("out",), Price(2.0), Price(1.0)),)
                    rounds = (
                        *rounds,
                        Round(steps, Cost(2.0, "estimated"), Cost(1.0, "estimated"), start.graph),
                    )
                cut, undone, ran = end
                path = replace(start, rounds=rounds, cut_short=cut, undone=undone, ran=ran)
                path = replace(path, unfinished=cut != "")
                return SearchOutcome(replace(given[1]) if step else given[1], path)

            monkeypatch.setattr(driver, "improved", improved)
            monkeypatch.setattr(
                evaluation.CandidateEvaluator, "last", lambda self, plans, until: FASTER
            )
            all_of_it = Options.read({"cache_dir": None, **chosen, **options}, environment=False)
            job = Job(net, inputs, {}, resolve("sim:h200"), all_of_it, within, trace or Trace())
            made: Compilation = compile_model(job)
            return made

        yield compiled


FASTER = [Cost(2.0, "estimated"), Cost(1.0, "estimated")]


def test_what_ended_by_itself_is_the_answer(asked: Asked, begun: list[Path]) -> None:
    for _ in range(2):
        asked(search_seconds=60)
    assert len(begun) == 1


def test_who_has_more_time_goes_on_from_what_was_found(asked: Asked, begun: list[Path]) -> None:
    """And nobody else: a start with as much time, or less, recalls the answer and says so."""
    cut: End = ("budget", 0.9, 1)
    asked(cut, "first", search_seconds=60)
    for less in ({"search_seconds": 60}, {"search_seconds": 5}, {}, {"budget": 9.0}):
        trace = Trace()
        again = asked(cut, "second", trace=trace, **less)
        assert again.path is not None and [step.rule for step in again.path.steps] == ["first"]
        said = [event.why for event in trace.events if event.where == "search"]
        assert any("a longer budget or search_seconds goes on" in why for why in said)
        assert len(begun) == 1
    last = asked(("", 0.0, 1), "second", search_seconds=61)
    assert last.path is not None
    assert [step.rule for step in last.path.steps] == ["first", "second"]
    asked(search_seconds=600)  # nothing is left to find
    assert [len(path.rounds) for path in begun] == [0, 1]


@pytest.mark.parametrize("more", [{"budget": 601.0}, {}])
def test_a_longer_budget_is_more_time(
    asked: Asked, begun: list[Path], more: dict[str, float]
) -> None:
    for _ in range(2):
        asked(("budget", 0.5, 1), budget=600.0)
    assert len(begun) == 1
    for _ in range(2):
        asked(("budget", 0.4, 1), **more)
    assert len(begun) == 2


def test_what_a_search_does_beside_searching_is_timed(asked: Asked) -> None:
    """What was found is scheduled in earnest and compared: as long as a search may take, in all."""
    parts = {"search.begin", "search.schedule", "search.compare"}
    for step, more in (("", {"search.begin"}), ("first", parts)):
        trace = Trace()
        asked(step=step, trace=trace, seed=len(step))  # another question, which nobody remembers
        assert parts & stage_seconds(trace.events).keys() == more


def test_what_its_own_limit_cut_short_is_the_answer(asked: Asked, begun: list[Path]) -> None:
    for _ in range(2):
        made = asked(("budget", 0.6, 1))
    assert len(begun) == 1
    assert made.path is not None and made.path.undone == 0.6


def test_what_was_stopped_is_no_answer(asked: Asked, begun: list[Path]) -> None:
    for _ in range(3):
        asked(("stop", 0.5, 1))
    assert len(begun) == 3


@pytest.mark.parametrize(("undone", "ran"), [(1.0, 0), (0.9, 1), (0.3, 0)])
def test_where_compiling_left_no_time_the_next_start_takes_none(
    asked: Asked, begun: list[Path], undone: float, ran: int
) -> None:
    for _ in range(2):
        asked(("budget", undone, ran))
    assert len(begun) == 1
    asked(("budget", undone, ran), search_seconds=46)
    assert len(begun) == 2


def test_without_time_nothing_is_searched_until_there_is_more(
    asked: Asked, begun: list[Path]
) -> None:
    for _ in range(2):
        made = asked(budget=1e-6)
        assert made.path is not None and made.path.undone == 1.0 and not begun
        assert made.compiled.cut_short == "budget"
    asked(budget=600)
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("us", "source", "spread", "taken"),
    [
        (97.5, "measured", 0.1, True),
        (99.1, "measured", 0.1, False),  # as much as it matters what ran before
        (97.5, "measured", 1.5, False),
        (101.0, "measured", 0.1, False),
        (98.5, "estimated", 0.0, True),  # nothing there is left to chance
    ],
)
def test_what_a_graph_must_gain(us: float, source: CostSource, spread: float, taken: bool) -> None:
    now, was = (Cost(time, source, spread) for time in (us, 100.0))
    assert driver._gains(now, was) is taken


def test_plans_that_are_compared_are_loaded_apart_where_there_is_room() -> None:
    net, inputs = nn.Sequential(nn.Linear(8, 8), nn.Softmax(0)).eval(), (torch.ones(4, 8),)
    chosen = {"cache_dir": None, "search": "none", "scheduler": "sequential", "kernels": "library"}
    options = Options.read(chosen, environment=False)
    job = Job(net, inputs, {}, resolve("sim:h200"), options, None, Trace())
    plan = compile_model(job, "memory")
    assert plan.arena_bytes > 0
    held = plan.arena_bytes + sum(c.type.nbytes for c in plan.tasks.constants)
    for most, loads in ((3 * held, 3), (3 * held - 1, 1), (0, 3)):
        copies = evaluation._copies([plan], 3, most)
        assert copies == [plan] * 3
        assert len(set(map(id, copies))) == loads


@pytest.mark.parametrize(
    ("uniform", "spread", "tasks", "left", "able", "modes"),
    [
        (99.0, 0.1, 100, 60.0, True, ["uniform", "per_kernel"]),
        (96.0, 0.1, 100, 60.0, True, ["uniform"]),  # clearly faster with one mode for all
        (104.0, 0.1, 100, 60.0, True, ["uniform"]),
        (96.0, 5.0, 100, 60.0, True, ["uniform", "per_kernel"]),
        (99.0, 0.1, LARGE_LAUNCHES + 1, 60.0, True, ["uniform"]),  # which gets no modes of its own
        (99.0, 0.1, 100, 5.0, True, ["uniform"]),  # and no time
        (99.0, 0.1, 100, 5.0, False, ["per_kernel"]),  # which has no modes: once is enough
    ],
)
def test_plans_get_modes_of_their_own_to_be_compared_where_it_is_close_and_there_is_time(
    uniform: float,
    spread: float,
    tasks: int,
    left: float,
    able: bool,
    modes: list[str],
) -> None:
    asked, trace = list[str](), Trace()
    times = {"uniform": uniform, "per_kernel": 90.0}

    def launched(job: Any, plans: Any) -> list[Cost]:
        asked.append(job.options.pdl)
        now = Cost(times[job.options.pdl], "measured", spread)
        return [Cost(100.0, "measured", spread), now]

    options = Options.read({"cache_dir": None, "effort": "max"}, environment=False)
    job = Job(nn.Identity(), (), {}, resolve("sim:h200"), options, None, trace.child())
    plan: Any = SimpleNamespace(tasks=SimpleNamespace(tasks=(None,) * tasks))
    until = ENDLESS.within(left)
    _, now = evaluation.compared(job, (plan, plan), able, until, launched, trace)
    assert asked == modes and now.us == times[modes[-1]]
    late = any(e.kind == "refused" and "no time is left" in e.why for e in trace.events)
    assert late is (able and left < TIME.search_modes_s)
    asked.clear()  # by default they are not worth their seconds
    usual = evaluation.replaced(job, effort="default")
    evaluation.compared(usual, (plan, plan), able, until, launched, trace)
    assert asked == modes[:1]


@pytest.mark.parametrize(
    ("recalled", "left", "seconds"),
    [
        (True, 60.0, 17.5),  # which tells nothing: as usual for 500 tasks
        (True, 20.0, 10.0),  # but half of the time is for searching
        (False, 60.0, 4.0),
    ],
)
def test_the_schedule_of_what_is_found_has_its_time(
    recalled: bool, left: float, seconds: float
) -> None:
    trace = Trace()
    if recalled:
        trace.add("chosen", "schedule", "critical", RECALLED)
    trace.add("stage", "schedule", "schedule", seconds=4.0)
    job: Any = SimpleNamespace(trace=trace)
    first: Any = SimpleNamespace(tasks=SimpleNamespace(tasks=(None,) * 500))
    assert driver._to_schedule(job, first, ENDLESS.within(left)) == pytest.approx(seconds, abs=0.1)


def test_a_plan_of_many_launches_is_tried_in_the_mode_of_the_first() -> None:
    """To look for its own would load it in each."""
    asked: list[str] = []

    def find(plan: Any) -> PdlMode:
        asked.append(plan.name)
        return {"first": PdlMode.PREFETCH_L2, "small": PdlMode.WAIT_ONLY}[plan.name]

    def built(name: str, tasks: int) -> Any:
        return SimpleNamespace(name=name, tasks=SimpleNamespace(tasks=(None,) * tasks))

    first = built("first", LARGE_LAUNCHES + 1)
    modes = evaluation.PlanModes(first, find)
    found = [
        modes.of(plan)
        for plan in (built("small", LARGE_LAUNCHES), built("large", LARGE_LAUNCHES + 1), first)
    ]
    assert found == [PdlMode.WAIT_ONLY, PdlMode.PREFETCH_L2, PdlMode.PREFETCH_L2]
    assert asked == ["small", "first"]


def test_where_modes_are_few_all_plans_are_tried_in_that_of_the_first() -> None:
    """What each of them gains by its own is known at the end."""
    first, other = (
        SimpleNamespace(tasks=SimpleNamespace(tasks=(None,) * count)) for count in (2, 3)
    )
    asked = list[Any]()

    def find(plan: Any) -> PdlMode:
        asked.append(plan)
        return PdlMode.PREFETCH_L2

    modes = evaluation.PlanModes(cast(Any, first), find, alike=True)
    assert [modes.of(cast(Any, plan)) for plan in (other, first)] == [PdlMode.PREFETCH_L2] * 2
    assert asked == [first]

"""One candidate by predicted times: what is taken, what is left, and that nothing else is built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.search.test_driver_models import Twins, job

from anabranch.cache import Cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import Deadline
from anabranch.errors import TargetError
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.search import predicted
from anabranch.search.evaluation import CandidateEvaluator
from anabranch.search.predicted import PredictedEvaluator
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan
from anabranch.tuning.job import Job
from anabranch.tuning.tuner import Tuner


def twins(**options: Any) -> Job:
    """Three linears of one input, on a simulated GPU, for whoever has seconds alone."""
    torch.manual_seed(0)
    given = {"target": "sim:h200", "effort": "fast", "scheduler": "best", **options}
    return job(Twins().half(), torch.randn(4, 64).half(), **given)


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each graph whose kernels are chosen, how many ways to cut it there are."""
    counts, kernels = list[int](), Tuner.kernels

    def counted(self: Tuner, cuts: Any, *rest: Any, **named: Any) -> Any:
        counts.append(len(cuts))
        return kernels(self, cuts, *rest, **named)

    monkeypatch.setattr(Tuner, "kernels", counted)
    return counts


def searched(trace: Trace) -> list[str]:
    """The stages that a search ran."""
    return [e.what for e in trace.events if e.kind == "stage" and e.what.startswith("search.")]


def test_the_graph_that_is_taken_is_the_only_one_that_is_built(tuned: list[int]) -> None:
    asked = twins()
    found: Compilation = compile_model(asked)
    assert found.path is not None and len(found.path.rounds) == 1
    (done,) = found.path.rounds
    assert done.after.us < 0.98 * done.before.us and done.after.source == "estimated"
    assert tuned == [1] and len(found.plan.tasks.tasks) == 2
    told = [e.why for e in asked.trace.events if "foreseen to be the fastest" in e.why]
    assert told == ["2 tasks, foreseen to be the fastest of 3 cuts"]


def test_whoever_has_more_time_searches_on_from_the_graph_that_is_taken(tuned: list[int]) -> None:
    """In all cuts of it; the graph as it was is not built."""
    asked = twins(effort="default", search_prices=300)
    found: Compilation = compile_model(asked)
    assert found.path is not None and found.path.rounds[0].after.source == "estimated"
    assert tuned[0] == 3 and linears(found.compiled.graph) == 1
    told = [e.what for e in asked.trace.events if e.where == "search" and e.kind == "chosen"]
    assert "linear(x, w, b)" in told[0] and told[1] == "Twins"  # then the search begins


def test_where_no_search_has_one_candidate_nothing_is_predicted(tuned: list[int]) -> None:
    """As where none has kernels to predict, or whoever asked has time to build both graphs."""
    for options in ({"search": "none"}, {"kernels": "library"}, {"fusion": "none"}):
        noun = compile_model(twins(**options), "foresee")
        assert noun is None
    compile_model(twins(effort="max", search="at-once"))
    assert len(tuned) > 1


def test_a_gain_of_less_than_a_candidate_must_promise_is_none(
    monkeypatch: pytest.MonkeyPatch, tuned: list[int]
) -> None:
    def alike(self: PredictedEvaluator, graph: Graph) -> Any:
        whole = own(self, graph)
        us = 10.0 if len(graph.nodes) > 5 else 9.9
        spread = whole.cost.spread / whole.cost.us * us
        return replace(whole, cost=Cost(us, "estimated", spread))

    own = PredictedEvaluator.predicted
    monkeypatch.setattr(PredictedEvaluator, "predicted", alike)
    asked = twins()
    found: Compilation = compile_model(asked)
    assert found.path is not None and not found.path.rounds and tuned == [1]
    assert any("a tie" in e.why for e in asked.trace.events if e.where == "search")


def test_a_later_start_finds_the_path(tmp_path: Path, tuned: list[int]) -> None:
    """And builds its graph, if the plan itself is to be decided again."""
    with Cache.open(tmp_path) as cache:
        first: Compilation = compile_model(with_cache(twins(), cache))
        cache.clear("plans")
        again = with_cache(twins(), cache)
        second: Compilation = compile_model(again)
    assert second.path is not None and second.path.steps == first.path.steps  # type: ignore[union-attr]
    assert second.compiled.graph == first.compiled.graph
    assert searched(again.trace) == [] and len(second.plan.tasks.tasks) == 2


def with_cache(job: Job, cache: Cache) -> Job:
    return replace(job, cache=cache)


def test_without_time_the_graph_is_built_as_it_was(tuned: list[int]) -> None:
    asked = replace(twins(), deadline=Deadline.after(0.0))
    found: Compilation = compile_model(asked)
    assert found.path is not None and not found.path.rounds and found.path.unfinished
    assert found.path.cut_short == "budget" and tuned == [3]


@pytest.mark.parametrize(("us", "kept"), [((9.0, 5.0), True), ((5.0, 9.0), False)])
def test_where_the_prediction_was_too_good_both_are_built_and_race(
    us: tuple[float, float], kept: bool, monkeypatch: pytest.MonkeyPatch, tuned: list[int]
) -> None:
    def raced(self: CandidateEvaluator, plans: Sequence[BuiltPlan]) -> list[Cost]:
        assert [linears(plan.graph) for plan in plans] == [3, 1]
        return [Cost(each, "measured") for each in us]

    monkeypatch.setattr(predicted, "TOO_GOOD", 0.5)
    monkeypatch.setattr(CandidateEvaluator, "race", raced)
    asked = twins()
    found: Compilation = compile_model(asked)
    assert tuned == [1, 3]
    why = [e.why for e in asked.trace.events if e.where == "search"]
    assert any(each.endswith("for the graph as it was: that is built as well") for each in why)
    assert found.path is not None and bool(found.path.rounds) == kept
    assert linears(found.compiled.graph) == (1 if kept else 3)


def linears(graph: Graph) -> int:
    return sum(node.op == "aten.linear.default" for node in graph.nodes)


def test_a_graph_that_cannot_be_built_is_left_for_the_one_that_was_there(
    monkeypatch: pytest.MonkeyPatch, tuned: list[int]
) -> None:
    counted = Tuner.kernels

    def failing(self: Tuner, *args: Any, **named: Any) -> Any:
        if not tuned:
            tuned.append(0)
            raise TargetError("no kernel runs task linear", "none", "report it")
        return counted(self, *args, **named)

    monkeypatch.setattr(Tuner, "kernels", failing)
    asked = twins()
    found: Compilation = compile_model(asked)
    assert found.path is None and found.plan.tasks.tasks
    told = [e.why for e in asked.trace.events if e.kind == "fallback"]
    assert told == ["no kernel runs task linear: compiled without a search"]
    tuned.clear()
    with pytest.raises(TargetError, match="no kernel runs"):
        compile_model(twins(strict=True))

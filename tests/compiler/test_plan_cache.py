"""What was decided once is recalled at once: the same plan, of the weights at hand, or nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.networks import fire
from torch import nn

from anabranch.cache import Cache
from anabranch.compiler import plan_cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.compiler.plan_cache import PlanCache
from anabranch.errors import NumericsError
from anabranch.ir.plan import Plan
from anabranch.ir.task import TaskGraph
from anabranch.kernels import sources
from anabranch.models.zoo import ZOO
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import RECALLED, Event, Trace
from anabranch.tuning.job import Job
from anabranch.tuning.select import Selection
from anabranch.tuning.verify import plan as verify_plan


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache.open(tmp_path) as opened:
        yield opened


def job(cache: Cache, network: str, target: str = "cpu", **options: Any) -> Job:
    net, inputs = built(network)
    chosen = Options.read({"cache_dir": None, "search": "none", **options}, environment=False)
    return Job(net, inputs, {}, resolve(target), chosen, cache, Trace())


def built(network: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Anew, for some tests change it."""
    if network == "fire":
        return copy.deepcopy(fire().model), fire().inputs
    return ZOO[network].build("tiny"), ZOO[network].inputs("tiny", 1)


def found(trace: Trace) -> list[Event]:
    """What happened between rewriting and loading, but for clocks."""
    kinds = ("stage", "progress", "time")
    return [
        event
        for event in trace.events
        if event.kind not in kinds and event.where.partition(".")[0] in ROOMS
    ]


ROOMS = ("fusion", "tuning", "costs", "schedule", "memory", "pdl", "l1_carveout")


def recalled(trace: Trace) -> bool:
    return any(event.where == "recall" and event.kind == "applied" for event in trace.events)


@pytest.mark.parametrize(
    ("network", "target"),
    [("fire", "cpu"), ("sru", "sim:h200")],
)
def test_a_warm_start_has_the_plan_of_the_cold_one(cache: Cache, network: str, target: str) -> None:
    first, second = (job(cache, network, target, scheduler="critical") for _ in range(2))
    cold, warm = compile_model(first), compile_model(second)
    assert not recalled(first.trace) and recalled(second.trace)
    assert warm.plan == cold.plan
    generated = [t for t in warm.plan.tasks.tasks if t.kernel and t.kernel.source]
    assert bool(generated) == (target != "cpu")
    assert warm.compiled.schedules == cold.compiled.schedules
    assert warm.compiled.timeline == cold.compiled.timeline
    assert warm.compiled.sequential == cold.compiled.sequential
    assert warm.cost == cold.cost and warm.compiled.graph == cold.compiled.graph
    assert found(second.trace) == found(first.trace)
    assert tried(warm) == tried(cold)


def test_what_was_verified_is_only_compared_with_the_model(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the very same weights, unless somebody looks for what is wrong."""
    asked: list[str] = []

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            asked.append(name)
            return real(*args)

        return call

    monkeypatch.setattr(verify_plan, "fresh", counted("graph", verify_plan.fresh))
    monkeypatch.setattr(
        verify_plan, "_compare_with_model", counted("model", verify_plan._compare_with_model)
    )

    def questions(one: Job) -> list[str]:
        asked.clear()
        return compile_model(one).errors and asked[:]

    again = {"scheduler": "critical", "kernels": "library"}
    asked.clear()
    cold = compile_model(job(cache, "fire", **again))
    assert asked == ["graph", "model"]
    assert questions(job(cache, "fire", **again)) == ["model"]
    assert compile_model(job(cache, "fire", **again)).errors == cold.errors
    for more in ({"check": 1}, {"strict": True}, {"seed": 1}):
        assert questions(job(cache, "fire", **again, **more)) == ["graph", "model"], more
    alone = {**again, "scheduler": "sequential"}
    assert compile_model(job(cache, "fire", verify=False, **alone)).errors == ()
    assert questions(job(cache, "fire", **alone)) == ["graph", "model"], "another plan"
    other = job(cache, "fire", **again)
    with torch.no_grad():
        next(iter(other.model.parameters())).mul_(1.1)
    assert questions(other) == ["graph", "model"], "they may be rounded more"
    assert recalled(other.trace)


def test_what_was_verified_may_differ_from_the_model_after_all(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_model(job(cache, "fire", scheduler="critical"))
    monkeypatch.setitem(verify_plan.EAGER_TOLERANCE, torch.float32, -1.0)
    with pytest.raises(NumericsError, match="differs from the model's own"):
        compile_model(job(cache, "fire", scheduler="critical"))


def test_what_a_search_found_is_the_beginning_of_a_warm_start(cache: Cache) -> None:
    """Whatever the CPU's clock said of the candidates: the second start does as the first."""
    told = {"search": "autograph", "search_prices": 200, "scheduler": "critical"}
    first, second = (job(cache, "squeezenet", "sim:h200", **told) for _ in range(2))
    cold, warm = compile_model(first), compile_model(second)
    assert cold.path is not None and cold.path.rounds and warm.path == cold.path
    simplified = [e.why for e in second.trace.events if e.where == "rewrite" and e.kind != "stage"]
    assert simplified.count(RECALLED) == 2  # as captured, and as the search left it
    assert warm.plan == cold.plan and warm.compiled.graph == cold.compiled.graph


def tried(made: Compilation) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: [(c.kernel.provider, c.kernel.name, c.kernel.variant, c.verdict) for c in candidates]
        for name, candidates in made.compiled.selection.candidates.items()
    }


def test_weights_are_those_of_the_model_at_hand(cache: Cache) -> None:
    """Batch norms are folded: the plan's constants are made of weights, and are none of them."""
    first, second = (job(cache, "googlenet", scheduler="critical") for _ in range(2))
    cold = compile_model(first)
    with torch.no_grad():
        for module in second.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.mul_(1.5)
    warm = compile_model(second)
    assert recalled(second.trace)
    assert warm.errors and all(error <= allowed for error, allowed in warm.errors)
    old = {c.name: c for c in cold.plan.tasks.constants}
    changed = [c for c in warm.plan.tasks.constants if c.digest != old[c.name].digest]
    assert changed
    for constant in changed:
        value, was = constant.value, old[constant.name].value
        assert value is not None and was is not None and not torch.equal(value, was)
    with torch.no_grad():
        want = second.model(*second.args)
    (out,) = warm.run(second.args)
    torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-4)


def plans(one: Job) -> PlanCache:
    return PlanCache(one.cache, one.target, one.options)


def asked(one: Job) -> str:
    """The question of a network without weights that anybody folds."""
    captured = compile_model(one, "capture")
    return plans(one).key(captured.graph, captured.signature, ())


def test_the_question_says_what_decides(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = asked(job(cache, "fire"))
    assert asked(job(cache, "fire", budget=3.0, seed=4)) == plain
    others: dict[str, Any] = {
        "effort": "max",
        "scheduler": "ios",
        "kernels": "library",
        "deterministic": True,
        "memory_limit": 1 << 30,
        "fusion": "deepcuts",
        "max_streams": 3,
        "max_group_size": 2,
        "max_groups": 2,
        "arena_ratio": None,
        "horizontal_fusion": "none",
        "pdl": "off",
        "cuda_graph": False,
    }
    assert set(others) == set(plan_cache.OPTIONS)
    different = [asked(job(cache, "fire", **{k: v})) for k, v in others.items()]
    different += [asked(job(cache, "fire", "sim:h200")), asked(job(cache, "sru"))]
    monkeypatch.setattr(sources, "digest", lambda *rooms: f"other files {rooms}")
    different.append(asked(job(cache, "fire")))
    assert len({plain, *different}) == 1 + len(different)
    assert str((sources.ALL_ROOMS,)) in different[-1]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"plan": {}}'])
def test_what_is_not_an_outcome_is_decided_anew(cache: Cache, text: str) -> None:
    cold = compile_model(job(cache, "fire", scheduler="critical"))
    (key,) = (e.key for e in cache.ls("plans") if e.key.startswith(plan_cache.OUTCOMES.name))
    cache.put("plans", key, text)
    again = job(cache, "fire", scheduler="critical")
    made = compile_model(again)
    assert not recalled(again.trace) and made.plan == cold.plan
    assert cache.get("plans", key) != text


def test_what_was_stopped_or_may_be_otherwise_another_day_is_not_kept(cache: Cache) -> None:
    one = job(cache, "fire", "sim:h200", scheduler="critical")
    found = compile_model(one).compiled
    assert found.settled and not found.cut_short
    known = replace(found, timeline=replace(found.timeline, latency=1.5))

    def latency() -> float | None:
        signature = found.plan.signature
        kept = plans(one).find("asked", found.graph, signature, Trace())
        return kept.timeline.latency if kept is not None else None

    trace = Trace()
    for other in (replace(known, settled=False), replace(known, cut_short="stop")):
        assert not plans(one).store("asked", other, (), trace)
    assert latency() is None
    assert plans(one).store("asked", known, (), trace)
    assert latency() == 1.5
    said = [event.why for event in trace.events]
    assert all(why.startswith("not kept for later starts") for why in said) and len(said) == 2


def test_what_differs_is_said_of_a_start_that_decides_anew(cache: Cache) -> None:
    def why(**options: Any) -> list[str]:
        one = job(cache, "fire", **{"scheduler": "critical", "pdl": "off", **options})
        compile_model(one)
        events = one.trace.events
        return [e.why for e in events if e.where == "recall" and e.kind == "refused"]

    begins = "decided anew: what differs from the plan kept last: "
    assert why() == why() == []
    assert why(scheduler="greedy") == [f"{begins}option scheduler"]
    assert why(max_streams=2) == [f"{begins}option scheduler, option max_streams"]
    (key, *_) = (e.key for e in cache.ls("plans") if e.key.startswith(plan_cache.OUTCOMES.name))
    cache.put("plans", key, "{}")  # the newest
    assert "no longer there" in why(max_streams=2)[0]


def test_what_a_budget_cut_short_is_the_answer_until_there_is_more_time(cache: Cache) -> None:
    """A start with no longer budget says what would go on, and measures nothing."""

    def started(budget: float | None) -> tuple[bool, str]:
        one = job(cache, "fire", scheduler="critical", kernels="library", budget=budget)
        cut = compile_model(one).compiled.cut_short
        said = [event.why for event in one.trace.events if event.where == "recall"]
        longer = "a budget of 1e-06 s cut it short: a longer one goes on"
        assert (longer in said) is (recalled(one.trace) and cut == "budget")
        return recalled(one.trace), cut

    assert started(1e-6) == (False, "budget")
    assert started(1e-6) == started(1e-7) == (True, "budget")
    assert started(600) == (False, "")
    assert started(1e-6) == started(None) == (True, "")


def test_stages_in_between_have_their_nouns(cache: Cache, tmp_path: Path) -> None:
    compile_model(job(cache, "fire", "sim:h200", scheduler="critical"))
    one = job(cache, "fire", "sim:h200", scheduler="critical")
    assert isinstance(compile_model(one, "fusion"), TaskGraph)
    assert isinstance(compile_model(one, "tuning"), Selection)
    assert not recalled(one.trace)
    assert isinstance(compile_model(one, "memory"), Plan) and recalled(one.trace)
    dumping = job(cache, "fire", "sim:h200", scheduler="critical", dump=tmp_path)
    compile_model(dumping)
    assert not recalled(dumping.trace) and (tmp_path / "08_memory.txt").exists()

"""All schedulers on one task graph, on the CPU and on the simulated GPU."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.bench.small import SMALL
from torch import Tensor

import anabranch
from anabranch.bench import schedule_search, schedulers
from anabranch.bench.built import NO_GRAPH
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.machine_use import FORECAST, utilisation_of
from anabranch.bench.schedulers import REPLAYS, must_agree, run
from anabranch.bench.verdicts import LOCAL, PDL, VARIANTS
from anabranch.compiler import stages
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import costs_of
from anabranch.costs.utilisation import STEPS, Utilisation
from anabranch.errors import NumericsError, OptionError, ScheduleError
from anabranch.frontend.capture_cache import capture_model
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import (
    Cost,
    Costs,
    KernelSpan,
    Limits,
    ScheduledGraphs,
    Target,
)
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import Resources, TaskGraph
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.schedule import BEST, SCHEDULERS, scheduler
from anabranch.schedule.ios import scheduler as ios
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

NAMES = ("sequential", "nimble", "local")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", "")


def test_all_schedulers_on_the_simulated_gpu() -> None:
    saved: list[int] = []
    matrix = ScheduleMatrix(
        ("zoo:squeezenet/tiny",),
        tuple(SCHEDULERS),
        target="sim:h200",
        batches=(1, 2),
        kernels="library",
    )
    record = run(matrix, save=lambda record: saved.append(len(record["rows"])))
    rows = json.loads(json.dumps(record))["rows"]
    assert saved[1] == len(rows) and len(saved) == 2
    for batch in (1, 2):
        cell = {row["scheduler"]: row for row in rows if row["batch"] == batch}
        names = list(SCHEDULERS)
        for variant in reversed(VARIANTS):  # where streams differ in how critical they are, or
            if variant in cell:  # several start by themselves
                names.insert(names.index("local") + 1, variant)
        assert list(cell) == names and (batch > 1 or saved[0] == len(names))
        assert all(row["failure"] == "" and row["search_s"] >= 0 for row in cell.values())
        assert min(row["ratio"] for row in cell.values()) == 1.0
        assert cell["sequential"]["streams"] == 1
        assert cell["sequential"]["scheduled"]["waits"] == 0
        assert cell["sequential"]["scheduled"] == cell["sequential"]["packed"]
        assert cell["sequential"]["us"] == pytest.approx(
            cell["sequential"]["ratio"] * min(row["us"] for row in cell.values())
        )
        assert all(
            cell["local"]["scheduled"]["us"] <= row["scheduled"]["us"] * 1.005
            for name, row in cell.items()
            if name in BEST
        )
    assert record["means"]["best"]["sequential"] > 1


class _Fan(torch.nn.Module):
    """`width` chains of two products of one value, large between them and small behind, summed."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [(64, 256), (256, 8)] * width
        self.layers = torch.nn.ModuleList(torch.nn.Linear(*size) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        halves = zip(self.layers[::2], self.layers[1::2], strict=True)
        ends = [second(first(x).sigmoid()).relu() for first, second in halves]
        return torch.stack(ends).sum(0)


def fan() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return _Fan(20).eval(), (torch.randn(512, 64),)


def small_fan() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    return _Fan(4).eval(), (torch.randn(512, 64),)


def test_published_schedulers_count_as_published_and_ours_as_packed() -> None:
    """Twenty chains side by side keep twenty large values alive, where the sequential plan keeps
    one: packing adds waits. Nimble has a stream for each chain."""
    names = ("sequential", "nimble", "local")
    matrix = ScheduleMatrix((f"{__file__}:fan",), names, target="sim:h200", kernels="library")
    rows = json.loads(json.dumps(run(matrix)))["rows"]
    plain, nimble, local = (row for row in rows if row["scheduler"] in names)
    assert nimble["streams"] >= 20
    bound = max(1.25 * plain["packed"]["arena_bytes"], 16 << 10)
    assert nimble["packed"]["arena_bytes"] <= bound < nimble["scheduled"]["arena_bytes"]
    assert nimble["packed"]["waits"] > nimble["scheduled"]["waits"]
    assert (nimble["counts"], nimble["us"]) == ("scheduled", nimble["scheduled"]["us"])
    assert (local["counts"], local["us"]) == ("packed", local["packed"]["us"])
    assert local["packed"]["arena_bytes"] <= local["scheduled"]["arena_bytes"]


def test_published_systems_have_no_bound_on_memory() -> None:
    """As users run them by name: the plan is the one that their scheduler made."""
    model, args = fan()
    given: dict[str, Any] = {
        "target": "sim:h200",
        "scheduler": "nimble",
        "search": "none",
        "kernels": "library",
    }
    bound, free = (
        anabranch.compile(model, args, **given, arena_ratio=limit) for limit in (1.25, None)
    )
    assert free.entries[-1].plan.arena_bytes > bound.entries[-1].plan.arena_bytes
    assert free.entries[-1].plan.schedule.waits < bound.entries[-1].plan.schedule.waits
    for name in ("nimble", "opara", "ios", "autograph", "taso-nimble"):
        assert Options.read({"system": name}).arena_ratio is None
    assert Options.read({"system": "nimble"}).max_streams is None


def test_a_model_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all of its schedulers, those that merge among them."""
    captured: list[object] = []
    capture = capture_model

    def counted(*args: Any, **kwargs: Any) -> Any:
        captured.append(args)
        return capture(*args, **kwargs)

    monkeypatch.setattr(stages, "capture_model", counted)
    names = ("sequential", "ios-merge", "ios-both", "local")
    models = ("zoo:squeezenet_bypass/tiny",)
    run(ScheduleMatrix(models, names, target="sim:h200", kernels="library"))
    assert len(captured) == 1


def test_schedulers_that_merge_plan_the_merged_graph() -> None:
    """On a GPU of 132 multiprocessors two convolutions of one image take less as one."""
    names = ("sequential", "ios-barrier", "ios-merge", "ios-both")
    matrix = ScheduleMatrix(
        ("zoo:squeezenet_bypass/tiny",), names, target="sim:h200", kernels="library"
    )
    us = {row["scheduler"]: row["us"] for row in run(matrix)["rows"]}
    assert us["ios-merge"] < us["sequential"] and us["ios-merge"] != us["ios-barrier"]
    assert us["ios-both"] <= us["ios-merge"]


def test_measured_on_the_cpu() -> None:
    record = run(ScheduleMatrix((SMALL,), NAMES, dtypes=("fp32",), target="cpu"))
    named = [row["scheduler"] for row in record["rows"] if row["scheduler"] not in VARIANTS]
    assert named == list(NAMES)  # where local takes several streams, refinements stand beside it
    assert all(row["source"] == "measured" and row["us"] > 0 for row in record["rows"])


def test_a_plan_without_its_graph_is_compared_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However fast it looks."""

    def launched(*args: Any) -> Any:
        def race(plans: ScheduledGraphs) -> list[Cost]:
            costs = zip(plans, costs_of(*args).race(plans), strict=True)
            slow = Cost(0.001, "launched")
            return [slow if plan[1].scheduler == "sequential" else cost for plan, cost in costs]

        return SimpleNamespace(race=race)

    monkeypatch.setattr(schedulers, "costs_of", launched)
    record = run(ScheduleMatrix((f"{__file__}:small_fan",), NAMES, target="sim:h200"))
    rows = {row["scheduler"]: row for row in record["rows"]}
    plain = rows.pop("sequential")
    assert (plain["us"], plain["ratio"], plain["failure"]) == (None, None, NO_GRAPH)
    assert plain["scheduled"] is None and plain["packed"] is None
    assert min(row["ratio"] for row in rows.values() if not row["failure"]) == 1.0
    assert (
        record["verdicts"][0]["other"] == "nimble" and "sequential" not in record["means"]["local"]
    )


def test_a_row_says_how_much_could_not_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace()

    def unlucky(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        for _ in range(2):
            trace.add("refused", "costs", "stage", "not measured: CUDA out of memory")
        return scheduler("sequential")(tasks, costs, limits)

    monkeypatch.setitem(SCHEDULERS, "opara", unlucky)
    rows = run(ScheduleMatrix((SMALL,), ("opara", "sequential"), target="sim:h200"), trace)["rows"]
    assert [row["note"] for row in rows] == [
        "measurements that failed, for which estimates stand: 2",
        "",
    ]


def test_what_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        raise ScheduleError("no plan today", "it is a holiday", "wait")

    def wrong(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
        return Schedule("nimble", ())

    monkeypatch.setitem(SCHEDULERS, "opara", never)
    monkeypatch.setitem(SCHEDULERS, "nimble", wrong)
    trace = Trace()
    names = ("sequential", "opara", "nimble")
    models = (SMALL, "a_module_that_is_not_there:model")
    with pytest.raises(OptionError):
        run(ScheduleMatrix(models, names, target="sim:h200"), trace)
    rows: list[Any] = run(ScheduleMatrix(models[:1], names, target="sim:h200"), trace)["rows"]
    failures = {row["scheduler"]: row["failure"] for row in rows}
    assert failures["sequential"] == "" and failures["opara"] == "no plan today"
    assert "does not launch every task once" in failures["nimble"]


@dataclass
class Late:
    """A run that leaves its inputs, NaN and 0, from its `wrong`-th replay on those of the one
    before, or `then` in the place of 0."""

    wrong: int
    then: float | None = None
    replays: int = 0
    before: Any = None

    def __call__(self, inputs: Any, clone: bool = False) -> tuple[Tensor, ...]:
        self.replays += 1
        given, late = inputs[0], self.replays >= self.wrong
        read = self.before if late and self.then is None and self.before is not None else given
        self.before, zero = given, self.then if late and self.then is not None else 0.0
        return read.clone(), torch.tensor([math.nan, zero], dtype=torch.float16)


def agree(plain: Late, changed: Late) -> list[str]:
    """What is said of them."""
    runs, trace = iter([plain, changed]), Trace(quiet=True)
    target: Any = SimpleNamespace(load=lambda plan: next(runs))
    named = SimpleNamespace(scheduler="local")
    plan: Any = SimpleNamespace(schedule=named, tasks=SimpleNamespace(name="net"))
    must_agree(plan, plan, [[torch.arange(8.0)], [torch.ones(8)]], target, trace)
    return [event.why for event in trace.events]


@pytest.mark.parametrize("then", [None, -0.0, 1.0])
def test_overlap_must_leave_the_same_bits(then: float | None) -> None:
    """Also where what is wrong is that the run before shows through."""
    assert agree(Late(99), Late(REPLAYS + 1, then)) == []
    for wrong in (2, REPLAYS):
        with pytest.raises(NumericsError, match="local of net leaves other bits") as failed:
            agree(Late(99), Late(wrong, then))
        assert f"run {wrong}," in failed.value.why


def test_what_never_leaves_the_same_bits_is_not_accused() -> None:
    (said,) = agree(Late(3, 1.0), Late(99))
    assert "not compared" in said


@pytest.mark.parametrize("right", [True, False])
def test_a_plan_that_overlaps_is_a_row_if_it_is_right(
    right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel subtracts in the place of one that adds."""

    def sooner(plan: Plan, *_: object) -> tuple[Plan, Cost]:
        (add,) = (task for task in plan.tasks.tasks if task.name == "add")
        body = replace(add.body, nodes=(replace(add.body.nodes[0], op="aten.sub.Tensor"),))
        assert add.kernel is not None
        other = replace(add, body=body, kernel=replace(add.kernel, body=body))
        tasks = tuple(other if t is add and not right else t for t in plan.tasks.tasks)
        return replace(plan, tasks=replace(plan.tasks, tasks=tasks)), Cost(1.0, "measured")

    monkeypatch.setattr(schedulers, "with_launch_settings", sooner)
    models = ("zoo:squeezenet_bypass/tiny",)
    record = run(ScheduleMatrix(models, ("local",), dtypes=("fp32",), target="cpu"))
    (row,) = (row for row in record["rows"] if row["scheduler"] == PDL)
    assert ("leaves other bits" in row["failure"]) == (not right)
    assert (row["us"] is None) == (not right)


def test_unknown_scheduler() -> None:
    with pytest.raises(OptionError, match="fifo"):
        run(ScheduleMatrix(("zoo:deepfm/tiny",), ("fifo",), target="sim:h200"))
    assert LOCAL in SCHEDULERS


def test_a_scheduler_with_options_searches_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each asks for all stages itself, as if it were alone, and r = 1 for fewer of them than 3."""
    monkeypatch.setenv("ANABRANCH_CACHE_DIR", str(tmp_path))
    asked: list[int] = []
    real = ios.stage_measure

    def counted(*given: Any) -> Any:
        measure = real(*given)

        def cost(groups: Any) -> float:
            asked[-1] += 1
            return measure(groups)

        return cost

    monkeypatch.setattr(ios, "stage_measure", counted)

    def noted(name: str) -> Any:
        asked.append(0)
        return scheduler(name)

    monkeypatch.setattr(schedule_search, "scheduler", noted)
    names = tuple(f"ios-paper+max_group_size={r}" for r in (1, 3))
    matrix = ScheduleMatrix(
        (f"{__file__}:small_fan",), names, target="sim:h200", kernels="library", apart=True
    )
    rows = run(matrix)["rows"]
    assert [(row["scheduler"], row["failure"], row["note"]) for row in rows] == [
        (name, "", "") for name in names
    ]
    assert 0 < asked[0] < asked[1]


def test_what_plans_make_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simulated GPU as forecast: side by side kernels keep more of it busy. What those that
    nobody ran take is estimated and called so, what a GPU told of is not."""
    told = Resources(33, 128, 32, 0)
    by_estimates: list[Utilisation] = []

    def known(target: Target, plan: Plan, costs: Costs, us: float) -> Utilisation | None:
        kernels = [task.kernel for task in plan.tasks.tasks if task.kernel is not None]
        tile = Resources(8, 32, 32, 0, estimated=True)  # rows:1x8.w1: a CTA a result
        assert [kernel.resources for kernel in kernels] == [tile] * 3
        used = utilisation_of(target, plan, costs, us)
        assert used is not None and (used.estimated, used.unknown) == (3, 0)
        by_estimates.append(used)
        tasks = tuple(
            replace(task, kernel=replace(kernel, resources=told))
            for task, kernel in zip(plan.tasks.tasks, kernels, strict=True)
        )
        return utilisation_of(
            target, replace(plan, tasks=replace(plan.tasks, tasks=tasks)), costs, us
        )

    monkeypatch.setattr(schedulers, "utilisation_of", known)
    names = ("sequential", "nimble")
    matrix = ScheduleMatrix((SMALL,), names, target="sim:h200", dtypes=("fp16",), utilisation=True)
    plain, nimble = (row["utilisation"] for row in json.loads(json.dumps(run(matrix)))["rows"])
    assert plain["how"] == nimble["how"] == FORECAST
    assert plain["estimated"] == nimble["estimated"] == 0
    assert [by_estimates[0].warps, by_estimates[0].sm_efficiency] == pytest.approx([8, 8 / 132])
    assert by_estimates[0].sm_efficiency < by_estimates[1].sm_efficiency
    assert 0 < plain["sm_efficiency"] < nimble["sm_efficiency"] <= 1
    assert 0 < plain["warps"] < nimble["warps"] and plain["overlap"] == 0
    assert len(plain["warps_over_time"]) == STEPS

    def broken(target: Target, plan: Plan, costs: Costs, us: float) -> Utilisation | None:
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    monkeypatch.setattr(schedulers, "utilisation_of", broken)
    for row in run(matrix)["rows"]:
        assert row["us"] > 0 and row["utilisation"] is None
        assert row["note"] == "no profiler: RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


def test_what_no_profiler_shows_is_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the record says both."""
    job = Job(*_linear(), {}, resolve("sim:h200"), Options(kernels="library"), None, Trace())
    plan = compile_model(job, stop_after="memory")
    taken = Resources(33, 128, 32, 0)
    tasks = tuple(replace(t, kernel=replace(t.kernel, resources=taken)) for t in plan.tasks.tasks)
    plan = replace(plan, tasks=replace(plan.tasks, tasks=tasks))
    costs = costs_of(job.target, partial(pack, spec=job.target.spec), None, Trace())

    class Blind:
        spec = replace(job.target.spec, simulated=False)
        shown: tuple[KernelSpan, ...] = ()

        def load(self, plan: Plan) -> None:
            pass

        def kernel_spans(self, run: object) -> tuple[str, tuple[KernelSpan, ...]]:
            return (
                "a replay" if self.shown else "CUPTI shows 0 of 1 kernels of a replay",
                self.shown,
            )

    blind: Any = Blind()
    used = utilisation_of(blind, plan, costs, 10.0)
    assert used is not None and used.sm_efficiency > 0
    assert used.how == f"{FORECAST}, of kernels timed alone; CUPTI shows 0 of 1 kernels of a replay"
    blind.shown = (KernelSpan("a", 0.0, 12.0, taken, True),)
    seen, slow = (utilisation_of(blind, plan, costs, us) for us in (10.0, 9.0))
    assert seen is not None and (seen.how, seen.us) == ("a replay", 12.0)
    assert slow is not None and slow.us == used.us
    assert slow.how.endswith("under CUPTI it takes 12 us and 9 without")


def _linear() -> tuple[torch.nn.Module, tuple[Tensor, ...]]:
    return torch.nn.Linear(8, 8).eval(), (torch.randn(2, 8),)

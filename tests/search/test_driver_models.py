"""Whole models searched: on the CPU, measured; on the simulated GPU, the same answer twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rewrite.graphs import captured
from torch import Tensor, nn

import anabranch
from anabranch.cache import Cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import TIME, Deadline
from anabranch.errors import NumericsError
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost
from anabranch.ir.tolerances import relative_error
from anabranch.options import SYSTEMS, Options
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import ALL
from anabranch.search import driver, evaluation
from anabranch.search.published import SEARCH_KINDS
from anabranch.targets import resolve
from anabranch.targets.cpu.target import CpuTarget
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan, schedule_seconds, simplified
from anabranch.tuning.job import Job
from anabranch.tuning.launch.pdl import WAITED


class Twins(nn.Module):
    """Many small layers of one input, side by side: one product is faster than all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = (layer(x) for layer in self.layers)
        out: torch.Tensor = torch.tanh(first) * second + third
        return out


def job(model: nn.Module, *args: torch.Tensor, target: str = "cpu", **options: Any) -> Job:
    given = {"cache_dir": None, "scheduler": "critical", "search_prices": 300, **options}
    chosen = Options.read(given, environment=False)
    return Job(model.eval(), args, {}, resolve(target), chosen, None, Trace())


def made(model: nn.Module, *args: torch.Tensor, **options: Any) -> tuple[Compilation, Trace]:
    one = job(model, *args, **options)
    return compile_model(one), one.trace


def test_what_is_found_is_equal_and_no_slower() -> None:
    torch.manual_seed(0)
    model, x = Twins(), torch.randn(4, 64)
    found, _ = made(model, x)
    assert found.path is not None and found.run is not None
    assert different(found.path.begin, found.path.graph) is None
    (got,) = found.run((x,))
    assert torch.allclose(got, model(x), atol=1e-5)
    for done in found.path.rounds:
        assert done.after.us < done.before.us
        assert different(found.path.begin, done.graph) is None
    assert not found.path.rounds or found.path.rounds[-1].graph == found.path.graph


def test_the_same_twice_on_the_simulated_gpu() -> None:
    torch.manual_seed(0)
    model, x = Twins().half(), torch.randn(4, 64).half()
    first, second = (made(model, x, target="sim:h200", kernels="library")[0] for _ in range(2))
    assert first.path is not None and second.path is not None
    assert first.path.rounds and first.path.rounds == second.path.rounds
    assert first.compiled.graph == second.compiled.graph
    assert different(first.path.begin, first.path.graph) is None
    alone, _ = made(model, x, target="sim:h200", kernels="library", search="none")
    assert alone.path is None and first.cost.us < alone.cost.us


@pytest.mark.parametrize(
    "us, kept, ways",
    [
        ((20.0, 19.0), True, ["uniform"]),
        ((19.0, 20.0), False, ["uniform"]),
        ((20.0, 19.7), True, ["uniform", "per_kernel"]),
        ((20.0, 20.1), False, ["uniform", "per_kernel"]),
    ],
)
def test_what_decides_at_last_is_the_plan_as_it_is_launched(
    us: tuple[float, float], kept: bool, ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that overlap, each in a way of its own where the same for all leaves it open, may
    want the graph as it was."""
    asked: list[list[Plan]] = []
    launched_in: list[str] = []

    def launched(job: Job, made: BuiltPlan, plan: Plan) -> tuple[Plan, Cost]:
        launched_in.append(job.options.pdl)
        return plan, Cost(1.0, "measured")

    def in_their_modes(plans: list[tuple[Plan, str]], target: Any) -> list[Cost]:
        asked.append([plan for plan, _ in plans])
        return [Cost(each, "measured") for each in us] * (len(plans) // len(us))

    monkeypatch.setattr(evaluation, "launched", launched)
    monkeypatch.setattr(evaluation, "in_their_modes", in_their_modes)
    monkeypatch.setattr(evaluation, "supports_pdl", lambda tasks, target: True)
    torch.manual_seed(0)
    model, x = Twins().half(), torch.randn(4, 64).half()
    found, _ = made(model, x, target="sim:h200", kernels="library", effort="max")
    assert launched_in == [way for way in ways for _ in us] and len(asked) == len(ways)
    first, best, *again = asked[-1]
    # Each is to be loaded anew, and as often as short plans are.
    assert again == [first, best] * (evaluation.MOST_CAPTURES - 1)
    assert len(set(map(id, asked[-1]))) == 2 * evaluation.MOST_CAPTURES
    assert len(best.tasks.tasks) < len(first.tasks.tasks)
    assert found.path is not None and bool(found.path.rounds) == kept
    assert len(found.plan.tasks.tasks) == len((best if kept else first).tasks.tasks)


@pytest.mark.parametrize("post", [False, True])
def test_norms_of_a_transformer_are_no_launches(post: bool) -> None:
    """On a GPU, where kernels of linears sum up what must be known of the rows they make: all but
    the first."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(256) for _ in range(2))
            self.up = nn.ModuleList(nn.Linear(256, 512) for _ in range(2))
            self.down = nn.ModuleList(nn.Linear(512, 256) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
                normal = norm(x)
                x = (normal if post else x) + down(torch.relu(up(normal)))
            return x

    model, x = Layer().half(), torch.randn(64, 256).half()
    plain, _ = made(model, x, target="sim:h200", search="none")
    found, _ = made(model, x, target="sim:h200")
    launches = [len(one.plan.tasks.tasks) for one in (plain, found)]
    assert launches == [6, 5]
    norms = [node for node in found.compiled.graph.nodes if node.op == "aten.layer_norm.default"]
    assert len(norms) <= 1
    exact = torch.float64
    (was,), (now,) = (eval_graph(o.compiled.graph, [x], precision=exact) for o in (plain, found))
    assert relative_error(now, was) < 1e-2  # folded weights are rounded to half precision


def test_norms_of_large_images_are_computed_by_parts_in_the_layout_of_convolutions() -> None:
    """On a GPU, where 32 groups would be 32 CTAs: two launches before the last one, which is the
    next layer's here. Nothing is copied for it."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.GroupNorm(32, 64) for _ in range(2))
            self.convs = nn.ModuleList(nn.Conv2d(64, 64, 1) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for norm, conv in zip(self.norms, self.convs, strict=True):
                x = conv(nn.functional.silu(norm(x)))
            return x

    model = Layers().half()
    x = torch.randn(1, 64, 128, 128).half().to(memory_format=torch.channels_last)
    found, _ = made(model, x, target="sim:h200")
    assert not [n for n in found.compiled.graph.nodes if n.op == "aten.group_norm.default"]
    assert len(found.plan.tasks.tasks) == 2 * 3
    plain, _ = made(model, x, target="sim:h200", search="none")
    exact = torch.float64
    (was,), (now,) = (eval_graph(o.compiled.graph, [x], precision=exact) for o in (plain, found))
    assert relative_error(now, was) < 1e-9


def test_steps_are_one_before_what_reads_each_of_them() -> None:
    """Columns that each step multiplies by are for other rules as well, a place for each step."""

    class Selective(nn.Module):
        def forward(self, kept: Tensor, added: Tensor, read: Tensor) -> Tensor:
            state, seen = torch.zeros_like(added[:, 0]), []
            for t in range(added.shape[1]):
                state = kept[:, t] * state + added[:, t]
                seen.append((state @ read[:, t, :, None])[..., 0])
            return torch.stack(seen, 1)

    args = torch.rand(1, 12, 64, 16), torch.randn(1, 12, 64, 16), torch.randn(1, 12, 16)
    found, _ = made(Selective().half(), *(x.half() for x in args), target="sim:h200")
    steps = [step.rule for step in found.path.steps] if found.path else []
    assert steps[:1] == ["stack([f[0] * c + u[0], ...]) -> recurrence(u, f, c)"]
    assert len(found.plan.tasks.tasks) <= 2


def test_work_is_asked_for_and_not_what_is_left() -> None:
    """However long the compilation has taken: the clock alone is set by that."""
    graph = captured(Twins(), torch.randn(4, 64))
    for asked, work in (
        ({}, TIME.search_work_s),
        ({"search_seconds": 8.0}, 8.0 * TIME.search_rate),
        ({"budget": 30.0}, 30.0 * TIME.search_budget_share * TIME.search_rate),
        ({"budget": 1e6}, TIME.search_work_s),
    ):
        options = Options.read(asked, environment=False)
        for until in (Deadline.after(0.0), Deadline.after(50.0)):
            limits = driver._limits(options, SEARCH_KINDS["autograph"], graph, until, 3.0)
            assert limits.work == pytest.approx(work) and limits.until == until
            assert limits.slack == (0.0 if asked else TIME.search_slack_s)
    one = job(Twins(), torch.randn(4, 64))
    assert driver._limit(one, graph) == pytest.approx(TIME.search_s, abs=0.1)
    long_ago = replace(one, begun=one.begun - TIME.search_end_s + 5.0)
    assert driver._limit(long_ago, graph) == pytest.approx(5.0, abs=0.1)


def test_one_candidate_of_a_large_graph_has_more_time() -> None:
    """To look at it takes as much longer as it has more nodes."""
    one, graph = (
        job(Twins(), torch.randn(4, 64), search="at-once"),
        captured(Twins(), torch.ones(4, 64)),
    )
    assert driver._limit(one, graph) == TIME.search_at_once_s
    many = replace(graph, nodes=graph.nodes * 200)
    assert driver._limit(one, many) == TIME.search_at_once_node_s * len(many.nodes)
    assert len(many.nodes) > TIME.search_at_once_s / TIME.search_at_once_node_s


def test_the_schedule_of_what_is_found_has_its_time_within_the_limit() -> None:
    trace = Trace()
    trace.add("stage", "schedule", "schedule", seconds=6.5)
    trace.add("stage", "fusion", "fusion", seconds=1.0)
    trace.add("stage", "search", "search", seconds=60.0)
    assert schedule_seconds(trace) == 6.5 and driver._took(trace, "fusion", "schedule") == 7.5
    assert schedule_seconds(Trace()) == driver._took(Trace(), "schedule") == 0.0


def test_the_wait_for_kernels_is_no_part_of_what_another_schedule_takes() -> None:
    trace = Trace()
    for waited, whole in ((9.0, 12.0), (0.0, 4.0), (1.0, 2.0)):
        if waited:
            trace.add("stage", WAITED, WAITED, seconds=waited)
        trace.add("stage", "schedule", "schedule", seconds=whole)
    assert schedule_seconds(trace) == 4.0


def test_explain_and_report_show_the_way(tmp_path: Any) -> None:
    torch.manual_seed(0)
    fast = anabranch.compile(
        Twins().half().eval(),
        torch.randn(4, 64).half(),
        target="sim:h200",
        kernels="library",
        cache_dir=None,
        search_prices=300,
    )
    text = str(fast.explain())
    assert "Searched: " in text and "round 1: " in text and "linear(x, " in text
    fast.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert 'id="search"' in page and "nodes gone" in page.replace("node gone", "nodes gone")


def test_a_rule_that_lies_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no test of rules has found, the comparison of each candidate with the model does. Each
    task takes as long as any other, so that a graph of fewer is surely tried."""
    real = simplified

    def time(_: CpuTarget, runs: Sequence[Any], budget: float) -> list[Cost]:
        return [Cost(10.0 * len(run.plan.tasks.tasks), "measured") for run in runs]

    monkeypatch.setattr(CpuTarget, "time", time)

    def lying(one: Job, graph: Graph) -> Graph:
        if one.trace is main.trace:
            return real(one, graph)
        text = tuple(
            type(node)(node.name, "aten.sigmoid.default", node.args, node.kwargs, node.types)
            if node.op == "aten.tanh.default"
            else node
            for node in graph.nodes
        )
        return real(one, Graph(graph.name, graph.inputs, graph.constants, text, graph.outputs))

    monkeypatch.setattr(evaluation, "simplified", lying)
    torch.manual_seed(0)
    main = job(Twins(), torch.randn(4, 64))
    found: Compilation = compile_model(main)
    assert found.path is not None and not found.path.rounds
    assert any(e.kind == "warning" and e.where == "search" for e in main.trace.events)
    main = job(Twins(), torch.randn(4, 64), strict=True)
    with pytest.raises(NumericsError):
        compile_model(main)


def test_taso_looks_at_the_sum_alone() -> None:
    assert ALL
    torch.manual_seed(0)
    found, trace = made(Twins().half(), torch.randn(4, 64).half(), target="sim:h200", search="taso")
    assert found.path is not None
    assert any(event.where == "search" for event in trace.events)


def as_published(system: str, cache: Cache | None = None) -> tuple[Compilation, Trace]:
    torch.manual_seed(0)
    model, x = Twins().half(), torch.randn(4, 64).half()
    given = {"system": system, "search_prices": 300, "cache_dir": None}
    options = Options.read(given, environment=False)
    one = Job(model.eval(), (x,), {}, resolve("sim:h200"), options, cache, Trace())
    return compile_model(one), one.trace


def test_taso_as_published_is_one_graph_for_all_schedules(tmp_path: Path) -> None:
    paths = []
    with Cache.open(tmp_path) as cache:
        for system in ("taso", "taso-nimble"):
            found, trace = as_published(system, cache)
            assert found.path is not None and found.path.rounds
            assert found.plan.schedule.scheduler == SYSTEMS[system]["scheduler"]
            paths.append(found.path)
            told = [event.why for event in trace.events if event.where == "search"]
            assert any("recalled" in why for why in told) == (system == "taso-nimble")
    assert paths[0] == paths[1]


def test_autograph_as_published_knows_the_graph_of_taso() -> None:
    taken = {s: as_published(s)[0].cost.us for s in ("nimble", "taso-nimble", "autograph")}
    assert taken["autograph"] <= min(taken["nimble"], taken["taso-nimble"])

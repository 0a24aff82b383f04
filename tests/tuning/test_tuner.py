"""How graphs are cut for which kernels are tried, and what estimates may not decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from benchmarks.layer_chains import bottleneck, separable
from tests.rough_gpu import rough_gpu
from torch import nn

import anabranch
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import costs_of
from anabranch.deadline import TIME
from anabranch.fusion.gemm_chain import is_gemm_chain
from anabranch.fusion.merge_cuts import ESTIMATED
from anabranch.fusion.merge_cuts import computed as computes
from anabranch.fusion.partition import singly
from anabranch.ir.graph import Graph, types
from anabranch.ir.inputs import random_tensor
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.kernels import ALL, PROVIDERS
from anabranch.memory import pack
from anabranch.models.load import load_model
from anabranch.models.zoo.squeezenet import Fire
from anabranch.options import Options
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning import tuner as tune
from anabranch.tuning.among_sizes import among_sizes
from anabranch.tuning.build import tuner_of
from anabranch.tuning.job import Job
from anabranch.tuning.tuner import Tuner

GRAPHS = {"products": bottleneck(64, 52, 256), "taps": separable(96, 108, 24, stride=2)}
"""Of sizes that no recorded network has."""


def tuner() -> Tuner:
    return Tuner(rough_gpu(), Options.read({"kernels": "all"}), None)


def with_values(graph: Graph) -> Graph:
    held = (replace(c, value=random_tensor(c.type, k)) for k, c in enumerate(graph.constants))
    return replace(graph, constants=tuple(held))


@pytest.mark.parametrize("name", GRAPHS)
def test_the_last_cut_alone_has_gemm_chains(name: str) -> None:
    cuts = tuner().cuts(GRAPHS[name], Trace())
    chains = [[is_gemm_chain(task) for task in cut.tasks] for cut in cuts]
    assert chains[-1] == [True] and not any(map(any, chains[:-1]))


@pytest.mark.parametrize("name", GRAPHS)
def test_no_gemm_chain_without_a_measured_time(name: str) -> None:
    """An estimate knows no more than that a launch is saved."""
    made, trace, graph = tuner(), Trace(), with_values(GRAPHS[name])
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
    way = made.kernels(made.cuts(graph, Trace()), costs, trace)[0]
    tasks = way.selection.tasks.tasks
    assert len(tasks) > 1 and not any(map(is_gemm_chain, tasks))
    told: list[Any] = [dict(e.data) for e in way.trace.events if e.why == ESTIMATED]
    assert told and all(data["gemm_chain"] and 0 < data["us"] < data["apart_us"] for data in told)


PARTS = """
graph parts {
  input %x: f16[1,64,28,28]{50176,1,1792,64}
  const %w: f16[32,64,1,1]{64,1,64,64} = w
  const %v: f16[32,64,3,3]{576,1,192,64} = v
  const %u: f16[64,64,1,1]{64,1,64,64} = u
  %a: f16[1,32,28,28]{25088,1,896,32} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %b: f16[1,32,28,28]{25088,1,896,32} = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %c: f16[1,32,28,28]{25088,1,896,32} = aten.silu.default(%a)
  %d: f16[1,32,28,28]{25088,1,896,32} = aten.silu.default(%b)
  %cat: f16[1,64,28,28]{50176,1,1792,64} = aten.cat.default([%c, %d], 1)
  %y: f16[1,64,28,28]{50176,1,1792,64} = aten.convolution.default(%cat, %u, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  return %y
}
"""  # noqa: E501


LAYER = """
  %n{i}: f16[1,{c},14,14]{{{s},1,{r},{c}}} = aten.addcmul.default(%b{i}, %{x}, %s{i})
  %r{i}: f16[1,{c},14,14]{{{s},1,{r},{c}}} = aten.relu.default(%n{i})
  %y{i}: f16[1,32,14,14]{{6272,1,448,32}} = aten.convolution.default(%r{i}, %w{i}, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"""  # noqa: E501
CONSTANTS = """
  const %s{i}: f16[{c},1,1]{{1,{c},{c}}} = s{i}
  const %b{i}: f16[{c},1,1]{{1,{c},{c}}} = b{i}
  const %w{i}: f16[32,{c},1,1]{{{c},1,{c},{c}}} = w{i}"""


def dense(layers: int) -> str:
    """Each layer reads what all before it have written, as in a DenseNet."""
    constants, lines, value = "", "", "x"
    for i in range(layers):
        c = 32 * (i + 1)
        own = {"i": i, "c": c, "s": 196 * c, "r": 14 * c}
        constants += CONSTANTS.format(**own)
        if i:
            value, parts = f"cat{i}", ", ".join(["%r", *(f"%y{k}" for k in range(i))])
            lines += f"\n  %cat{i}: f16[1,{c},14,14]{{{196 * c},1,{14 * c},{c}}}"
            lines += f" = aten.cat.default([{parts}], 1)"
        else:
            lines += "\n  %r: f16[1,32,14,14]{6272,1,448,32} = aten.silu.default(%x)"
            value = "r"
        lines += LAYER.format(x=value, **own)
    head = "graph dense {\n  input %x: f16[1,32,14,14]{6272,1,448,32}"
    return f"{head}{constants}{lines}\n  return %y{layers - 1}\n}}\n"


def test_what_each_layer_reads_is_a_part_of_what_the_next_one_reads() -> None:
    """Concatenations that would run with the norms after them are tried as elided concats too: then
    norms run with the convolutions."""
    made, graph = tuner(), with_values(parse_graph(dense(5)))
    cuts = made.cuts(graph, Trace())
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
    found = made.kernels(cuts, costs, Trace())[0].selection
    assert [node.uses for node in found.tasks.elided_concats] == [
        ("r", "y0", "y1"),
        ("cat2", "y2"),
        ("cat3", "y3"),
    ]
    ops = [[node.op.split(".")[1] for node in task.body.nodes] for task in found.tasks.tasks]
    layer = ["addcmul", "relu", "convolution"]
    # Two parts are read as they are.
    assert ops == [["silu", *layer[:2]], layer[2:], ["cat", *layer], layer, layer, layer]


class Dear:
    """Costs, but whoever writes a slice takes as long as told."""

    def __init__(self, costs: Any, us: float) -> None:
        self.costs, self.us = costs, us

    def __getattr__(self, name: str) -> Any:
        return getattr(self.costs, name)

    def _told(self, task: Task, cost: Cost | None) -> Cost | None:
        table = types(task.body)
        slices = any(table[name].strides[3] > table[name].shape[1] for name in task.writes)
        return replace(cost, us=self.us) if cost is not None and slices else cost

    def task(self, task: Task) -> Cost | None:
        return self._told(task, self.costs.task(task))

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        found = zip(tasks, self.costs.trial(tasks), strict=True)
        return [self._told(task, cost) for task, cost in found]


@pytest.mark.parametrize("us", [1.0, 100.0])
def test_a_cut_is_chosen_with_the_joins_that_it_allows(us: float) -> None:
    """Both activations with the concatenation are one launch, and save more than with a convolution
    each; but then the concatenation, alone, is none."""
    made, trace, graph = tuner(), Trace(), with_values(parse_graph(PARTS))
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
    way = made.kernels(made.cuts(graph, Trace()), Dear(costs, us), trace)[0]  # type: ignore[arg-type]
    found = way.selection
    ops = [{node.op.split(".")[1] for node in task.body.nodes} for task in found.tasks.tasks]
    if us == 1.0:
        assert [node.name for node in found.tasks.elided_concats] == ["cat"]
        assert ops == [{"convolution", "silu"}, {"convolution", "silu"}, {"convolution"}]
    else:
        assert not found.tasks.elided_concats
        assert {"silu", "cat"} in ops
    said = [e.what for e in way.trace.events if e.kind == "applied" and e.where == "fusion"]
    assert ("cat" in said) == (us == 1.0)


def test_a_concatenation_that_costs_more_in_all_is_offered_as_a_join_too() -> None:
    """With parts that cost a little more where they are slices, one launch for both activations and
    the concatenation takes less in all; but a convolution waits for it, and the parts run side by
    side. So both are there to be run."""
    made, trace, graph = tuner(), Trace(), with_values(parse_graph(PARTS))
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
    dear: Any = Dear(costs, 4.2)
    ways = made.kernels(made.cuts(graph, Trace()), dear, trace, wholes=True)
    assert [len(way.selection.tasks.elided_concats) for way in ways] == [0, 1]


TWICE = """
graph twice {
  input %x: f16[1,72,26,26]{48672,1,1872,72}
  const %v: f16[72,1,3,3]{1,1,216,72} = v
  const %w: f16[72,1,3,3]{1,1,216,72} = w
  %r: f16[1,72,26,26]{48672,1,1872,72} = aten.relu.default(%x)
  %a: f16[1,72,26,26]{48672,1,1872,72} = aten.convolution.default(%r, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 72)
  %b: f16[1,72,26,26]{48672,1,1872,72} = aten.convolution.default(%r, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 72)
  return %a, %b
}"""  # noqa: E501


def test_a_relu_that_two_convolutions_read_is_no_launch() -> None:
    made, trace, graph = tuner(), Trace(), with_values(parse_graph(TWICE))
    prepare = partial(pack, spec=made.target.spec)
    costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
    way = made.kernels(made.cuts(graph, Trace()), costs, trace)[0]
    found = way.selection
    assert [[node.name for node in task.body.nodes] for task in found.tasks.tasks] == [
        ["r", "a"],
        ["r", "b"],
    ]
    assert all(found.candidates[task.name] and task.kernel for task in found.tasks.tasks)
    why = "computed again in 2 readers: no launch of its own"
    assert ("%r", why) in [(event.what, event.why) for event in way.trace.events]


def test_deepcuts_joins_nothing_and_computes_nothing_twice() -> None:
    """The default elides the concatenation of SqueezeNet; the paper has none."""
    model = nn.Sequential(nn.Conv2d(3, 12, 7, 2), nn.ReLU(), Fire(12, 4), Fire(32, 4)).eval()
    quick: dict[str, Any] = {"search": "none", "scheduler": "sequential", "cache_dir": None}
    plans = {
        name: compile_model(
            Job(
                model,
                (torch.randn(1, 3, 32, 32),),
                {},
                resolve("sim:h200", False),
                Options.read({**quick, **asked}, False),
                None,
                Trace(),
            ),
            stop_after="memory",
        )
        for name, asked in {
            "anabranch": {},
            "deepcuts": {"system": "deepcuts"},
            "not fused": {"system": "deepcuts", "fusion": "none"},
        }.items()
    }
    assert plans["anabranch"].tasks.elided_concats
    ours = plans["deepcuts"].tasks
    assert not ours.elided_concats
    computed = [name for task in ours.tasks for name in computes(task)]
    assert len(computed) == len(set(computed))
    assert any(len(computes(task)) > 1 for task in ours.tasks)
    apart = plans["not fused"].tasks
    assert sorted(name for task in apart.tasks for name in computes(task)) == sorted(computed)
    assert all(len(computes(task)) == 1 for task in apart.tasks)
    assert any(task.kernel.provider == "triton" for task in apart.tasks if task.kernel)


def test_merged_one_by_one_it_computes_what_the_model_does() -> None:
    model, args, *_ = load_model("zoo:squeezenet/tiny")
    found = anabranch.compile(model, args, target="cpu", system="deepcuts", cache_dir=None)
    assert torch.allclose(found(*args), model(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("more", [{}, {"fusion": "none"}, {"pruning": "time"}])
def test_deepcuts_has_every_kernel_that_the_library_has_alone(more: dict[str, str]) -> None:
    """What it is compared with tries all of cuDNN's engines. Decisions of fewer are others'."""

    def offers(**options: str) -> set[tuple[str, str, str]]:
        own = Tuner(resolve("sim:h200", False), Options.read(options), None)
        (task,) = (t for t in singly(cell()).tasks if t.name == "a")
        spec = own.target.spec
        assert {p.version for p in own.providers if p.name == "cudnn"} == versions
        kernels = [kernel for p in own.providers for kernel in p.kernels(task, spec)]
        return {(k.provider, k.name, str(k.variant)) for k in kernels if k.provider != "triton"}

    versions = {p.version for p in PROVIDERS if p.name == "cudnn"}
    alone = offers(system="cudagraph")
    assert offers(system="deepcuts", **more) == alone and len(alone) > 6
    assert versions.isdisjoint(p.version for p in ALL if p.name == "cudnn")


def test_a_scheduler_that_merges_convolutions_finds_each_of_them() -> None:
    graph = GRAPHS["products"]
    for scheduler, cuts in (("ios-both", 1), ("sequential", 0)):
        options = Options.read({"fusion": "deepcuts", "scheduler": scheduler})
        one = Tuner(resolve("sim:h200", False), options, None)
        assert one.begins_with_nodes == (not cuts) and (len(one.cuts(graph, Trace())) > 1) == bool(
            cuts
        )


def test_what_is_merged_is_judged_as_it_will_be_scheduled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another in sum; else as on several streams, and what that says decides."""
    graph, asked = with_values(cell()), list[float]()

    def none_pays(tasks: TaskGraph, us: Any, *rest: Any) -> float:
        asked.append(outlook_of(tasks, us, *rest))
        return -float(len(tasks.tasks))  # the more launches the better

    monkeypatch.setattr(tune, "outlook_of", none_pays)

    def merged(scheduler: str) -> int:
        options = Options.read({"fusion": "deepcuts", "scheduler": scheduler, "cache_dir": None})
        made, trace = Tuner(resolve("sim:h200", False), options, None), Trace()
        prepare = partial(pack, spec=made.target.spec)
        costs = costs_of(made.target, prepare, None, Trace(), each=TIME.kernel_s)
        way = made.kernels(made.cuts(graph, trace), costs, trace)[0]
        return len(way.selection.tasks.tasks)

    assert merged("sequential") == 2 and not asked
    assert merged("best") == 3 and all(us > 0 for us in asked)


def cell() -> Graph:
    """Two convolutions side by side, and their sum."""
    window = "[1, 1], [1, 1], [1, 1], False, [0, 0], 1"
    kind = "f16[1,32,14,14]"
    return parse_graph(
        f"graph g {{\n  input %x: {kind}\n  input %y: {kind}\n"
        "  const %w: f16[32,32,3,3] = w\n  const %v: f16[32,32,3,3] = v\n"
        f"  %a: {kind} = aten.convolution.default(%x, %w, None, {window})\n"
        f"  %b: {kind} = aten.convolution.default(%y, %v, None, {window})\n"
        f"  %sum: {kind} = aten.add.Tensor(%a, %b)\n  return %sum\n}}"
    )


def test_a_size_between_two_that_are_searched_tries_fewer_kernels() -> None:
    """And what it decides is kept apart. Where all is tried, so it is between sizes."""
    fast, most = (Options.read({"kernels": "all", "effort": effort}) for effort in ("fast", "max"))
    costs = costs_of(rough_gpu(), partial(pack, spec=rough_gpu().spec))
    searched, between = (Tuner(rough_gpu(), fast, None, between=which) for which in (False, True))
    assert (searched.effort.together, between.effort.together) == (64, 32)
    assert searched._title(costs) != between._title(costs)
    assert replace(between, options=most).effort == replace(searched, options=most).effort
    job = Job(None, (), {}, rough_gpu(), fast, None, Trace(quiet=True))
    among = {size: replace(job, among=way) for size, way in among_sizes([(1,), (2,), (4,)]).items()}
    assert {size: tuner_of(job).between for size, job in among.items()} == {
        (1,): False,
        (2,): True,
        (4,): False,
    }

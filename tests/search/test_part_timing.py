"""Contests: parts side by side and apart again, measured on the CPU, predicted for a GPU."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Any

import pytest
import torch
from tests.rewrite.graphs import read

from anabranch.deadline import Deadline
from anabranch.fusion import partition
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Costs, Executable
from anabranch.ir.samples import Samples
from anabranch.ir.variant import PdlMode
from anabranch.ir.verify import verify_graph
from anabranch.options import Options
from anabranch.search.part_timing import apart, side_by_side, time_parts
from anabranch.targets import resolve
from anabranch.targets.sampled import sampled
from anabranch.trace import Trace
from anabranch.tuning.build import simplified
from anabranch.tuning.job import Job
from anabranch.tuning.select import Selection
from anabranch.tuning.tuner import with_probes


def job(target: str, **options: object) -> Job:
    chosen = Options.read({"cache_dir": None, **options}, environment=False)
    return Job(None, (), {}, resolve(target), chosen, None, Trace())


def valued(graph: Graph) -> Graph:
    """With numbers for its weights."""
    torch.manual_seed(0)
    made = (Constant(c.name, c.type, c.digest, torch.randn(c.type.shape)) for c in graph.constants)
    return Graph(graph.name, graph.inputs, tuple(made), graph.nodes, graph.outputs)


def layers(count: int) -> Graph:
    """So many products of one input, one after the other or side by side."""
    weights = "".join(f"  const %w{i}: f32[64,64] = w{i}\n" for i in range(count))
    rows = "".join(
        f"  %y{i}: f32[32,64] = aten.linear.default(%x, %w{i}, None)\n" for i in range(count)
    )
    out = ", ".join(f"%y{i}" for i in range(count))
    return valued(read(f"graph g {{\n  input %x: f32[32,64]\n{weights}{rows}  return {out}\n}}"))


def test_graphs_side_by_side_share_nothing_and_come_apart() -> None:
    graphs = [layers(2), layers(1), layers(2)]
    whole = side_by_side(graphs)
    verify_graph(whole, infer=True)
    assert len(whole.inputs) == 3 and len(whole.nodes) == 5 and len(whole.constants) == 5
    x = torch.randn(32, 64)
    found = eval_graph(whole, (x, x, x))
    each = [y for graph in graphs for y in eval_graph(graph, (x,))]
    assert all(torch.equal(a, b) for a, b in zip(found, each, strict=True))
    spec = resolve("sim:h200").spec
    parts = apart(partition(whole, Trace(), spec), 3)
    assert [len(one.tasks) for one in parts] == [2, 1, 2]
    assert [len(one.inputs) for one in parts] == [1, 1, 1]
    assert all(ref.name.startswith("p1_") for ref in parts[1].outputs)


def test_what_takes_longer_comes_out_longer_on_the_machine_itself() -> None:
    """Where something else takes the CPU's time meanwhile, it is asked again."""
    ratios: list[float] = []
    while max(ratios, default=0.0) <= 3 and len(ratios) < 3:
        result = time_parts(job("cpu", scheduler="sequential"), [layers(1), layers(12), layers(1)])
        one, many, same = result.costs
        assert one is not None and many is not None and same is not None
        assert one.source == "measured" and one == same
        assert result.taken and all(cost.us > 0 for _, cost in result.taken)
        ratios.append(many.us / one.us)
    assert max(ratios) > 3, ratios


def test_predictions_for_a_part_know_forks_and_not_the_start_of_a_run() -> None:
    one, two = time_parts(job("sim:h200", kernels="library"), [layers(1), layers(2)]).costs
    assert one is not None and two is not None
    calibration = resolve("sim:h200").spec.calibration
    assert calibration is not None
    assert one.us < two.us < one.us + calibration.split_us
    again = time_parts(job("sim:h200", kernels="library"), [layers(1), layers(2)]).costs
    assert again == (one, two)


def test_what_cannot_be_simplified_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others are timed all the same."""
    real = simplified

    def picky(one: Job, graph: Graph) -> Graph:
        if len(graph.nodes) == 2:
            raise ValueError("no copy makes these strides")
        return real(one, graph)

    monkeypatch.setattr("anabranch.search.part_timing.simplified", picky)
    bad, good = time_parts(job("sim:h200", kernels="library"), [layers(2), layers(1)]).costs
    assert bad is None and good is not None


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("mode", [None, PdlMode.TRIGGER_AT_WAIT])
def test_nothing_is_compiled_or_raced_once_somebody_wants_an_end(
    mode: PdlMode | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, asked = Event(), list[str]()
    one = job("cpu", scheduler="sequential")

    def probed(selection: Selection, costs: Costs) -> Selection:
        probes = with_probes(selection, costs)
        if ends:
            stop.set()
        asked.clear()
        return probes

    monkeypatch.setattr("anabranch.search.part_timing.with_probes", probed)
    monkeypatch.setattr(one.target, "prepare", lambda *_: asked.append("prepared"))
    loads = one.target.load

    def load(plan: Plan, *rest: Any, **named: Any) -> Executable:
        asked.append("loaded")
        return loads(plan, *rest, **named)

    monkeypatch.setattr(one.target, "load", load)
    found = time_parts(
        replace(one, deadline=Deadline(stop=stop)),
        [layers(1), layers(2)],
        mode,
    )
    assert ("prepared" in asked) == (mode is not None and not ends)
    assert ("loaded" in asked) == (not ends)
    assert all(found.costs) != ends


def test_parts_that_read_at_places_run_on_those_of_the_example() -> None:
    """Places may lie outside of what they index if they are drawn: nothing ran then, and a search
    knew nothing of the parts of a network that keeps a cache."""
    graph = read("""
    graph g {
      input %x: f32[1,8]
      input %at: i64[1]
      input %cache: f32[16,8]
      %y: f32[1,8] = aten.relu.default(%x)
      %z: f32[16,8] = aten.index_copy.default(%cache, 0, %at, %y)
      return %z
    }""")
    example = [torch.randn(1, 8), torch.tensor([11]), torch.randn(16, 8)]
    alone = job("cpu")
    known = sampled(alone.target, Samples(graph, example, torch.device("cpu")))
    times = time_parts(replace(alone, target=known), [graph, graph]).costs
    assert all(cost is not None and cost.source == "measured" for cost in times)
    assert time_parts(alone, [layers(1)]).costs[0] is not None, "and others as before"

"""Accounts: a beginning that goes on costs what the same beginning costs when it is priced anew."""

from __future__ import annotations

import random

import pytest
from tests.rewrite.graphs import read

from anabranch.costs.alpha_cost import WITHOUT_OVERLAP_COST
from anabranch.fusion import partition
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.protocols import Cost
from anabranch.ir.target import TargetSpec
from anabranch.rewrite.build import drop_dead
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.incremental import IncrementalPrice
from anabranch.search.cost.task_cuts import TaskCutter
from anabranch.targets.calibrations import CALIBRATIONS
from anabranch.trace import Trace

SPEC = TargetSpec("cuda", "any", sms=132)
KIND = "f16[1,8,16,16]"
WINDOW = "[1, 1], [1, 1], [1, 1], False, [0, 0], 1"


def network(seed: int, blocks: int) -> Graph:
    """Convolutions, with a sum, a relu or nothing behind each, that read one of the last values;
    every second weight is scaled first, which needs no time when it runs."""
    dice, values = random.Random(seed), ["x"]
    heads, lines = [f"graph g {{\n  input %x: {KIND}\n  const %s: f16[8,8,3,3] = s"], list[str]()
    for i in range(blocks):
        heads.append(f"  const %w{i}: f16[8,8,3,3] = w{i}")
        weight = f"w{i}"
        if i % 2:
            lines.append(f"  %v{i}: f16[8,8,3,3] = aten.mul.Tensor(%w{i}, %s)")
            weight = f"v{i}"
        source, other = (dice.choice(values[-3:]) for _ in range(2))
        lines.append(
            f"  %c{i}: {KIND} = aten.convolution.default(%{source}, %{weight}, None, {WINDOW})"
        )
        values.append(f"c{i}")
        if dice.random() < 0.6:
            lines.append(f"  %a{i}: {KIND} = aten.add.Tensor(%{values[-1]}, %{other})")
            values.append(f"a{i}")
        if dice.random() < 0.6:
            lines.append(f"  %r{i}: {KIND} = aten.relu.default(%{values[-1]})")
            values.append(f"r{i}")
    return drop_dead(read("\n".join([*heads, *lines, f"  return %{values[-1]}", "}"])))


def beginning(graph: Graph, count: int) -> Graph:
    """The first nodes; what others read of them is returned."""
    nodes, rest = graph.nodes[:count], graph.nodes[count:]
    read = {name for node in rest for name in node.uses} | {ref.name for ref in graph.outputs}
    left = tuple(Ref(name) for node in nodes for name in node.results if name in read)
    return Graph(graph.name, graph.inputs, graph.constants, nodes, left)


@pytest.mark.parametrize(
    ("alpha", "machine"),
    [(0.0, WITHOUT_OVERLAP_COST), (1.0, WITHOUT_OVERLAP_COST), (1.0, CALIBRATIONS[9, 0])],
)
@pytest.mark.parametrize("generates", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_going_on_costs_what_beginning_anew_costs(
    seed: int, generates: bool, alpha: float, machine: Calibration
) -> None:
    graph = network(seed, 12)
    known = [
        (task, Cost(5.0, "measured"))
        for task in partition(graph, Trace(), SPEC, generates).tasks[::3]
    ]
    price = Appraiser(known, TaskCutter(SPEC, generates), alpha, machine)
    account: IncrementalPrice | None = None
    for count in [*range(4, len(graph.nodes), 4), len(graph.nodes)]:
        part = beginning(graph, count)
        account = price.carried(account, part)
        assert account.price.us == pytest.approx(price(part).us)
    assert account is not None and len(account.open) < 12
    assert sum(account.times) > account.price.us / 4


def test_what_a_group_may_still_take_stays_open() -> None:
    graph = network(1, 12)
    price = Appraiser([], TaskCutter(SPEC, False), 0.0)
    account = price.carried(None, beginning(graph, 9))
    kept = {node.name for node in account.open}
    leaving = {ref.name for ref in beginning(graph, 9).outputs} - {"x"}
    inside = {name for node in graph.nodes[:9] for name in node.uses}
    assert leaving - inside <= kept

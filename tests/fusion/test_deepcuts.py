"""DeepCuts: merges of consecutive groups that are faster, each subset evaluated once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
from tests.rewrite.graphs import captured
from torch import Tensor, nn

from anabranch.deadline import Deadline
from anabranch.fusion import deepcuts
from anabranch.fusion.deepcuts import deepcuts_partition
from anabranch.fusion.legality import FusionFacts
from anabranch.fusion.partition import graph_of, singly
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph, eval_tasks
from anabranch.ir.graph import Graph, Node
from anabranch.ir.inputs import random_inputs
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import A_LARGE_GPU, Cost
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.schedule.parallel_forecast import outlook_of
from anabranch.trace import Trace

CHAIN = """
graph chain {{
  input %x: f32[1,8,8,8]
{constants}
{nodes}
  return %{last}
}}"""
CONV = "aten.convolution.default({}, {}, None, [1, 1], [{}, {}], [1, 1], False, [0, 0], 1)"


def convolutions(*sides: int) -> Graph:
    """Convolutions in a row, c0, c1, ..., of windows of these sides."""
    names = ["x", *(f"c{i}" for i in range(len(sides)))]
    constants = "\n".join(f"  const %w{i}: f32[8,8,{k},{k}] = w{i}" for i, k in enumerate(sides))
    nodes = "\n".join(
        f"  %c{i}: f32[1,8,8,8] = " + CONV.format(f"%{names[i]}", f"%w{i}", k // 2, k // 2)
        for i, k in enumerate(sides)
    )
    return parse_graph(CHAIN.format(constants=constants, nodes=nodes, last=names[-1]))


FIGURE = """
graph figure {
  input %x: f32[1,8,8,8]
  const %v: f32[8,8,3,3] = v
  const %w: f32[8,8,1,1] = w
  const %s: f32[8,1,1] = s
  const %t: f32[8,1,1] = t
  %conv3: f32[1,8,8,8] = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %bn3: f32[1,8,8,8] = aten.mul.Tensor(%conv3, %s)
  %relu: f32[1,8,8,8] = aten.relu.default(%bn3)
  %conv1: f32[1,8,8,8] = aten.convolution.default(%relu, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %bn1: f32[1,8,8,8] = aten.mul.Tensor(%conv1, %t)
  return %bn1
}"""  # noqa: E501

FORK = """
graph fork {
  input %x: f32[8,8]
  %a: f32[8,8] = aten.tanh.default(%x)
  %b: f32[8,8] = aten.sigmoid.default(%a)
  %c: f32[8,8] = aten.exp.default(%a)
  %d: f32[8,8] = aten.add.Tensor(%b, %c)
  return %d
}"""


def anything(
    group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
) -> Refused | None:
    """Every group can be written."""
    return None


class Told:
    """What groups take, by their nodes; the sum of `alone` for a group of which nothing is said."""

    def __init__(self, table: dict[str, float], alone: float = 1.0) -> None:
        self.table, self.alone = table, alone
        self.asked: list[list[str]] = []

    def __call__(self, tasks: Sequence[Task]) -> list[Cost]:
        names = [" ".join(node.name for node in task.body.nodes) for task in tasks]
        self.asked.append(names)
        return [Cost(self.table.get(n, self.alone * len(n.split())), "measured") for n in names]


def cut_by(graph: Graph, evaluate: Any, **how: Any) -> list[str]:
    found = deepcuts_partition(graph, evaluate, Trace(), **{"unwritten": anything, **how})
    verify_tasks(found)
    return [" ".join(node.name for node in task.body.nodes) for task in found.tasks]


def test_the_chain_of_the_papers_first_figure() -> None:
    """10.5 us without fusion, 8.8, then 7.8 with {3x3, BN, ReLU}: a 1x1 after it in the same kernel
    would be slower."""
    alone = {"conv3": 3.5, "bn3": 1.7, "relu": 1.6, "conv1": 2.0, "bn1": 1.7}
    fused = {"conv3 bn3": 3.5, "bn3 relu": 2.4, "conv3 bn3 relu": 4.1}
    assert sum(alone.values()) == pytest.approx(10.5)
    assert sum(alone.values()) - 3.5 - 1.7 + fused["conv3 bn3"] == pytest.approx(8.8)
    told = Told(alone | fused, alone=9.0)
    graph = parse_graph(FIGURE)
    assert cut_by(graph, told) == ["conv3 bn3 relu", "conv1", "bn1"]
    assert pytest.approx(7.8) == 4.1 + 2.0 + 1.7


def test_two_pairs_that_no_one_pair_leads_to() -> None:
    """The merge in the middle gains most, and the two beside it gain more together."""
    told = Told({"c0 c1": 1.2, "c1 c2": 1.1})  # the last two are like those in the middle
    assert cut_by(convolutions(3, 1, 1, 1), told) == ["c0 c1", "c2 c3"]


def test_a_subset_grows_merge_by_merge() -> None:
    told = Told({"c1 c2": 1.5, "c1 c2 c3": 1.8, "c0 c1 c2 c3": 3.0})
    assert cut_by(convolutions(3, 1, 5, 7), told) == ["c0", "c1 c2 c3"]
    # Three are faster than each alone, but no two of them: nothing leads there.
    assert len(cut_by(convolutions(3, 1, 1), Told({"c0 c1 c2": 0.1}))) == 3


def test_what_cannot_be_written_is_not_evaluated() -> None:
    def two(
        group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
    ) -> Refused | None:
        return None if len(group) < 3 else Refused("three products are too many")

    told, trace = Told({"c0 c1": 1.0, "c2 c3": 1.0, "c0 c1 c2 c3": 0.1}), Trace()
    tasks = deepcuts_partition(convolutions(3, 1, 5, 7), told, trace, two).tasks
    assert [len(task.body.nodes) for task in tasks] == [2, 2]
    assert max(len(name.split()) for names in told.asked for name in names) == 2
    assert [e.why for e in trace.events if e.kind == "refused"] == ["three products are too many"]


def test_only_consecutive_subsets_merge() -> None:
    """Nodes b and c read the same and are no pair; a and d have b and c between them."""
    free = Told({}, alone=1.0)
    cut_by(parse_graph(FORK), free)
    pairs = [name for names in free.asked for name in names if len(name.split()) == 2]
    assert sorted(pairs) == ["a b", "a c", "b d", "c d"]


def test_each_structure_is_evaluated_once_and_a_round_in_one_batch() -> None:
    told = Told({})
    seen: list[str] = []

    def evaluate(tasks: Sequence[Task]) -> list[Cost]:
        seen.extend(structure_text(task.body) for task in tasks)
        told(tasks)
        return [Cost(1.0, "measured") for _ in tasks]

    found = deepcuts_partition(convolutions(*[1] * 8), evaluate, Trace(), anything)
    assert len(found.tasks) == 1
    assert len(seen) == len(set(seen))
    # One of the 8 single ones, one of the 7 pairs: all are alike, and come in the first round.
    assert [len(name.split()) for name in told.asked[0]] == [1, 2]
    assert len(told.asked) <= 4


def test_what_no_kernel_runs_in_one_launch_stays_apart() -> None:
    def evaluate(tasks: Sequence[Task]) -> list[Cost | None]:
        return [Cost(1.0, "measured") if len(t.body.nodes) == 1 else None for t in tasks]

    assert cut_by(convolutions(1, 1), evaluate) == ["c0", "c1"]


def test_an_estimate_does_not_replace_what_was_measured() -> None:
    def evaluate(tasks: Sequence[Task]) -> list[Cost]:
        many = (len(task.body.nodes) > 1 for task in tasks)
        return [Cost(1.5, "estimated") if more else Cost(1.0, "measured") for more in many]

    assert len(cut_by(parse_graph(FORK), evaluate)) == 4


def test_another_total_may_decide() -> None:
    """In sum the fork is faster as one launch; side by side its branches wait for nobody."""
    told = {"b d": 21.0, "c d": 21.0, "a b": 30.0, "a c": 30.0}
    alone = {"a": 1.0, "b": 20.0, "c": 20.0, "d": 1.5}

    def longest(tasks: TaskGraph, us: Callable[[Task], float]) -> float:
        dag, ends = dag_of(tasks), dict[str, float]()
        for at, task in enumerate(tasks.tasks):
            before = (ends[dag.names[k]] for k in range(at) if dag.preds[at] >> k & 1)
            ends[task.name] = us(task) + max(before, default=0.0)
        return max(ends.values())

    graph = parse_graph(FORK)
    assert cut_by(graph, Told(alone | told, alone=50.0)) in (["a", "c", "b d"], ["a", "b", "c d"])
    assert cut_by(graph, Told(alone | told, alone=50.0), total=longest) == ["a", "b", "c", "d"]
    outlook = partial(outlook_of, spec=A_LARGE_GPU)
    assert cut_by(graph, Told(alone | told, alone=50.0), total=outlook) == ["a", "b", "c", "d"]


def test_of_very_many_subsets_those_are_looked_at_that_gain_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pairs alone, then triples too; nothing is asked of what nothing is left for."""
    told = Told({"c0 c1": 1.9, "c1 c2": 1.5, "c2 c3": 1.9, "c0 c1 c2": 2.0, "c1 c2 c3": 1.0})
    monkeypatch.setattr(deepcuts, "MOST_SUBSETS", 3)
    assert cut_by(convolutions(3, 1, 5, 7), told) == ["c0", "c1 c2", "c3"]
    assert sum(" " in name for names in told.asked for name in names) == 3
    monkeypatch.setattr(deepcuts, "MOST_SUBSETS", 5)
    assert cut_by(convolutions(3, 1, 5, 7), told) == ["c0", "c1 c2 c3"]


@pytest.mark.parametrize("how", [{}, {"total": lambda tasks, us: sum(map(us, tasks.tasks))}])
def test_when_the_time_is_over_nothing_more_is_merged(how: dict[str, Any]) -> None:
    """What merges would make is not asked for; what was merged before stays."""
    stop = Event()
    told = Told({"c1 c2": 1.5, "c1 c2 c3": 1.8, "c0 c1 c2 c3": 3.0})
    graph = convolutions(3, 1, 5, 7)

    def until_merged(tasks: Sequence[Task]) -> list[Cost]:
        costs = told(tasks)
        if "c1 c2" in told.asked[-1]:
            stop.set()
        return costs

    now = Deadline(stop=stop)
    assert cut_by(graph, until_merged, until=now, **how) == ["c0", "c1 c2", "c3"]
    asked = [name for names in told.asked for name in names]
    told.asked.clear()
    assert cut_by(graph, told, until=now, **how) == ["c0", "c1", "c2", "c3"]
    assert "c1 c2 c3" not in asked and all(" " not in n for names in told.asked for n in names)


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(4, 8, 3, padding=1), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x)).transpose(2, 3)
        left, right = y.chunk(2, 1)
        both = torch.cat([left * 2, torch.sigmoid(right)], 1).reshape(-1, 32)
        return torch.relu(self.fc(both)) + both[:, :6]


def test_what_was_merged_computes_the_same() -> None:
    """Views between members are in their bodies; those that others read as well are aliases too."""
    graph = captured(Cell(), torch.randn(2, 4, 4, 4))

    def evaluate(tasks: Sequence[Task]) -> list[Cost]:
        return [Cost(1.0, "measured") for _ in tasks]

    found = deepcuts_partition(graph, evaluate, Trace(), anything)
    verify_tasks(found)
    assert len(found.tasks) < len(singly(graph).tasks)
    inputs = random_inputs(graph, 0)
    for a, b in zip(eval_graph(graph, inputs), eval_tasks(found, inputs), strict=True):
        assert torch.equal(a, b)


def test_a_graph_comes_back_from_its_tasks() -> None:
    graph = captured(Cell(), torch.randn(2, 4, 4, 4))
    back = graph_of(singly(graph))
    assert {node.name: node for node in back.nodes} == {node.name: node for node in graph.nodes}
    inputs = random_inputs(graph, 0)
    for a, b in zip(eval_graph(graph, inputs), eval_graph(back, inputs), strict=True):
        assert torch.equal(a, b)

"""DeepCuts beside its algorithm 1 as printed, and beside all partitions, on small random graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

import pytest
from tests.fusion.test_deepcuts import anything

from anabranch.fusion.deepcuts import deepcuts_partition
from anabranch.fusion.disjoint_subsets import best_disjoint, in_circle
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task
from anabranch.ir.text import parse_graph
from anabranch.trace import Trace

Subset = frozenset[int]
Partition = frozenset[Subset]
Us = Callable[[Subset], float]


def graph_of(reads: Sequence[Sequence[int]]) -> Graph:
    """Nodes n0, n1, ... that read these, no two of one structure."""
    lines = ["graph g {", "  input %x: f32[8]"]
    for v, own in enumerate(reads):
        args = ", ".join(f"%n{u}" for u in own) or "%x"
        op = "lerp.Scalar" if len(own) == 2 else "leaky_relu.default"
        lines.append(f"  %n{v}: f32[8] = aten.{op}({args}, {v + 1}.0)")
    last = set(range(len(reads))) - {u for own in reads for u in own}
    return parse_graph("\n".join([*lines, f"  return {', '.join(f'%n{v}' for v in last)}", "}"]))


def random_dag(dice: Random, nodes: int) -> list[list[int]]:
    return [
        sorted(dice.sample(range(v), min(v, dice.choice([0, 1, 1, 2, 2])))) for v in range(nodes)
    ]


def random_us(dice: Random, wild: bool) -> Us:
    """What a subset takes: about as much as its nodes alone, or anything."""
    known: dict[Subset, float] = {}

    def us(subset: Subset) -> float:
        if subset not in known:
            if len(subset) == 1:
                known[subset] = dice.uniform(1.0, 3.0)
            else:
                apart = sum(us(frozenset([v])) for v in sorted(subset))
                known[subset] = apart * dice.uniform(0.2 if wild else 0.7, 1.1)
        return known[subset]

    return us


def runs(partition: Partition, reads: Sequence[Sequence[int]]) -> bool:
    """Whether its subsets can run one after the other."""
    done: set[int] = set()
    left = set(partition)
    while left:
        ready = [s for s in left if all(u in done or u in s for v in s for u in reads[v])]
        if not ready:
            return False
        done.update(*ready)
        left.difference_update(ready)
    return True


def merged(partition: Partition, reads: Sequence[Sequence[int]]) -> Iterator[tuple[Subset, Subset]]:
    """All consecutive pairs: one reads the other, and as one launch they can run."""
    for a in partition:
        for b in partition:
            read = a != b and any(u in a for v in b for u in reads[v])
            if read and runs(partition - {a, b} | {a | b}, reads):
                yield a, b


def algorithm_1(reads: Sequence[Sequence[int]], us: Us) -> float:
    """What the fastest of all partitions takes that algorithm 1 keeps."""
    return fastest(reads, us, lambda a, b: us(a | b) < us(a) + us(b))


def optimum(reads: Sequence[Sequence[int]], us: Us) -> float:
    """What the fastest partition into connected subsets takes, merges on the way faster or not."""
    return fastest(reads, us, lambda a, b: True)


def fastest(
    reads: Sequence[Sequence[int]], us: Us, kept: Callable[[Subset, Subset], bool]
) -> float:
    """What the fastest partition takes of those that merges lead to, each of which is kept."""
    start = frozenset(frozenset([v]) for v in range(len(reads)))
    unmarked, found = [start], {start}
    while unmarked:
        partition = unmarked.pop()
        for a, b in merged(partition, reads):
            after = partition - {a, b} | {a | b}
            if kept(a, b) and after not in found:
                found.add(after)
                unmarked.append(after)
    return min(sum(map(us, sorted(p, key=min))) for p in found)


def ours(reads: Sequence[Sequence[int]], us: Us) -> float:
    def own(task: Task) -> Subset:
        return frozenset(int(node.name.removeprefix("n")) for node in task.body.nodes)

    def evaluate(tasks: Sequence[Task]) -> list[Cost]:
        return [Cost(us(own(task)), "measured") for task in tasks]

    found = deepcuts_partition(graph_of(reads), evaluate, Trace(quiet=True), anything)
    subsets = frozenset(map(own, found.tasks))
    assert runs(subsets, reads) and sum(map(len, subsets)) == len(reads)
    return sum(map(us, sorted(subsets, key=min)))


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("chain", [True, False], ids=["chain", "dag"])
def test_as_fast_as_algorithm_1(chain: bool, wild: bool) -> None:
    best = 0
    for seed in range(100):
        dice = Random(seed)
        nodes = dice.randint(3, 6)
        reads = [[v - 1] if v else [] for v in range(nodes)] if chain else random_dag(dice, nodes)
        us = random_us(dice, wild)
        taken = ours(reads, us)
        assert taken == pytest.approx(algorithm_1(reads, us)), seed
        best += taken == pytest.approx(optimum(reads, us))
    assert best >= 80  # what is faster only as a whole is not found, as the paper does not


def test_subsets_that_wait_for_each_other() -> None:
    """a, c; b reads a and c; d reads c and a: {a, b} and {c, d} cannot both be launches."""
    preds = [0, 0, 0b011, 0b011]
    circle = (0b0101, 0b1010)
    assert set(in_circle(circle, preds)) == set(circle) and not in_circle(circle[:1], preds)
    assert best_disjoint({0b0101: 1.0, 0b1010: 1.2}, preds) == (0b1010,)
    assert best_disjoint({0b0101: 1.0, 0b1010: 1.2, 0b0110: 2.1, 0b1001: 0.2}, preds) == (0b0110,)


def test_a_long_chain_is_cut_at_its_best() -> None:
    """Of 40 nodes the first pair gains most; then one is left out, for the pairs after it."""
    gains = {0b11 << v: 1.0 + 0.1 * (v % 2) for v in range(39)} | {0b11: 1.15}
    chosen = best_disjoint(gains, [0, *(1 << v for v in range(39))])
    assert sum(gains[mask] for mask in chosen) == pytest.approx(1.15 + 18 * 1.1)
    assert chosen == (0b11, *(0b11 << v for v in range(3, 39, 2)))

"""Polish: stages of a whole graph -> cheaper ones, by solving every small window anew.

Blocks that were cut, halved or pruned leave seams. Take a few stages in a row, as many as hold
`size` nodes, and give the dynamic programme their nodes: what it finds is never worse, since the
old stages are among what it looks at. Windows overlap by half; first small ones, then larger, until
nothing gets cheaper. On RandWire and NASNet this takes a tenth of a second and a tenth off the
estimate. It is not in IOS's paper.

    stages   S1  S2  S3  S4  S5  S6
             [--------]  [--------]
                  [--------]

A window that would look at too many transitions is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
from anabranch.schedule.ios.dynamic_programme import solve
from anabranch.schedule.ios.endings import TooMany
from anabranch.schedule.ios.stage_cost import Groups, StageCost

SIZES = (16, 24)
PASSES = 4
MOST_STEPS = 50_000
GAIN_US = 1e-6  # microseconds; less is rounding


def polish(dag: Dag, stages: Sequence[Groups], cost: StageCost, limits: Limits) -> list[Groups]:
    """Stages within the limits that cost no more; as far as it came when time was over."""
    better = list(stages)
    for size in SIZES:
        seen: set[int] = set()
        for _ in range(PASSES):
            if not _pass(dag, better, cost, size, limits, seen):
                break
    return better


def _pass(
    dag: Dag,
    stages: list[Groups],
    cost: StageCost,
    size: int,
    limits: Limits,
    seen: set[int],
) -> bool:
    """Improves the stages in place, from first to last; whether anything got cheaper."""
    gained = False
    first = 0
    while first < len(stages) and not limits.deadline.over():
        last, window = first, 0
        while last < len(stages) and (window | sum(stages[last])).bit_count() <= size:
            window |= sum(stages[last])
            last += 1
        if window and window not in seen:
            seen.add(window)
            tried = _solved(dag, window, cost, limits)
            if tried and sum(map(cost, tried)) < sum(map(cost, stages[first:last])) - GAIN_US:
                stages[first:last] = tried
                last, gained = first + len(tried), True
        first += max(1, (last - first) // 2)
    return gained


def _solved(dag: Dag, window: int, cost: StageCost, limits: Limits) -> list[Groups]:
    """The cheapest stages of the window's nodes; none if that is too much to ask."""
    nodes = [1 << v for v in bits(window)]

    def spread(groups: Groups) -> Groups:
        return tuple(sum(nodes[i] for i in bits(group)) for group in groups)

    r, s = limits.max_group_size, min(limits.max_groups or limits.max_streams, limits.max_streams)
    try:
        solution = solve(dag.restrict(window), lambda g: cost(spread(g)), r, s, most=MOST_STEPS)
    except TooMany:
        return []
    return [spread(groups) for groups in solution.stages]

"""One block as exactly as can be afforded: dag, stage costs -> stages. Each step is an event.

    1 exact          no pruning, if that looks at few enough transitions
    2 chains         nodes that only follow each other taken as one (`chains`), no pruning
    3 pruned         IOS's r and s: groups of at most r nodes, at most s of them
    4 chains pruned  both
    5 halves         the upper and the lower half of the nodes, each begun again at 1

A set of nodes that may be merged stays one where chains are taken as one only if its nodes are
chains of their own, and in halves only if no half cuts it.

Where stages cost what `estimate` says, each step is taken best first (`best_first`), which loses
nothing. Counts decide, never the clock, so the same block gives the same stages on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
from anabranch.schedule.best_first import solve_bounded
from anabranch.schedule.bound import Weights, stage_bound
from anabranch.schedule.chains import chains, joined, levelled
from anabranch.schedule.endings import TooMany
from anabranch.schedule.estimate import Groups, StageCost
from anabranch.schedule.programme import NO_MERGES, Solution, solve

GROUP_SIZE, GROUPS = 3, 8  # IOS's r and s, where step 4 needs them and the caller gave none


def solve_block(
    dag: Dag,
    cost: StageCost,
    limits: Limits,
    most: int,
    until: float | None,
    merges: Mapping[int, float] = NO_MERGES,
    weights: Weights | None = None,
) -> Solution:
    """The stages of a block, looking at about `most` transitions at each step. `weights`: those of
    which `cost` is the estimate, and then what they rule out is not looked at."""
    r, s = limits.max_group_size, limits.max_groups
    units = chains(dag)
    shorter = len(units) < len(dag.names)
    steps = [
        ("no pruning", False, None, None),
        (f"no pruning, {len(units)} chains", True, None, None),
        (f"groups of at most {r}, at most {s} of them", False, r, s),
        (f"the same, {len(units)} chains", True, r or GROUP_SIZE, s or GROUPS),
    ]
    for what, chained, size, groups in steps:
        if (chained and not shorter) or (not chained and what != steps[0][0] and r is s is None):
            continue
        groups = min(groups or limits.max_streams, limits.max_streams)
        try:
            limit = Pruning(size, groups, most, until)
            if not chained:
                return _solved(dag, cost, limit, merges, weights)
            short, spread = joined(dag, units), _spread_cost(cost, units)
            heavy = weights and weights.spread(units)
            found = _solved(short, spread, limit, _kept(merges, units), heavy)
            return _spread_solution(found, units)
        except TooMany:
            block = f"block {dag.names[0]}..{dag.names[-1]} ({len(dag.names)} tasks)"
            why = f"{what}: more than {most} transitions"
            limits.trace.add("refused", "schedule.ios", block, why)
    return _halves(dag, cost, limits, most, until, merges, weights)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What one step may look at: r, s, transitions, and until when."""

    group_size: int | None
    groups: int
    most: int
    until: float | None


def _solved(
    dag: Dag,
    cost: StageCost,
    limit: Pruning,
    merges: Mapping[int, float],
    weights: Weights | None,
) -> Solution:
    """Best first where a bound is known. What a merged stage saves, no bound knows."""
    r, s, most, until = limit.group_size, limit.groups, limit.most, limit.until
    if weights is None or merges:
        return solve(dag, cost, r, s, most=most, until=until, merges=merges)
    return solve_bounded(dag, cost, stage_bound(dag, weights, r), r, s, most, until)


def _kept(merges: Mapping[int, float], units: Sequence[int]) -> dict[int, float]:
    """The sets of which all nodes are units of their own, as masks over units."""
    place = {unit: 1 << i for i, unit in enumerate(units)}
    masks = {mask: [place.get(1 << v) for v in bits(mask)] for mask in merges}
    return {
        sum(p for p in places if p): merges[mask]
        for mask, places in masks.items()
        if None not in places
    }


def _spread(groups: Groups, units: Sequence[int]) -> Groups:
    return tuple(sum(units[i] for i in bits(group)) for group in groups)


def _spread_cost(cost: StageCost, units: Sequence[int]) -> StageCost:
    return lambda groups: cost(_spread(groups, units))


def _spread_solution(found: Solution, units: Sequence[int]) -> Solution:
    stages = tuple(_spread(groups, units) for groups in found.stages)
    merged = frozenset(_spread(groups, units) for groups in found.merged)
    return Solution(stages, found.us, found.states, found.transitions, merged)


def _halves(
    dag: Dag,
    cost: StageCost,
    limits: Limits,
    most: int,
    until: float | None,
    merges: Mapping[int, float],
    weights: Weights | None,
) -> Solution:
    n, order = len(dag.names), levelled(dag)
    parts = [[1 << v for v in sorted(half)] for half in (order[: n // 2], order[n // 2 :])]
    found: list[Solution] = []
    for part in parts:
        inside, spread = dag.restrict(sum(part)), _spread_cost(cost, part)
        kept, heavy = _kept(merges, part), weights and weights.spread(part)
        solved = solve_block(inside, spread, limits, most, until, kept, heavy)
        found.append(_spread_solution(solved, part))
    return Solution(
        tuple(stage for solution in found for stage in solution.stages),
        sum(solution.us for solution in found),
        sum(solution.states for solution in found),
        sum(solution.transitions for solution in found),
        frozenset(stage for solution in found for stage in solution.merged),
    )

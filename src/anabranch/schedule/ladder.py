"""One block as exactly as can be afforded: dag, stage costs -> stages. Each step is an event.

    1 exact          no pruning, if that looks at few enough transitions
    2 chains         nodes that only follow each other taken as one (`chains`), no pruning
    3 pruned         IOS's r and s: groups of at most r nodes, at most s of them
    4 chains pruned  both
    5 halves         the upper and the lower half of the nodes, each begun again at 1

A set of nodes that may be merged stays one where chains are taken as one only if its nodes are
chains of their own, and in halves only if no half cuts it.

Counts decide, never the clock, so the same block gives the same stages on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
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
) -> Solution:
    """The stages of a block, looking at about `most` transitions at each step."""
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
            if not chained:
                return solve(dag, cost, size, groups, most=most, until=until, merges=merges)
            short, spread = joined(dag, units), _spread_cost(cost, units)
            kept = _kept(merges, units)
            found = solve(short, spread, size, groups, most=most, until=until, merges=kept)
            return _spread_solution(found, units)
        except TooMany:
            block = f"block {dag.names[0]}..{dag.names[-1]} ({len(dag.names)} tasks)"
            why = f"{what}: more than {most} transitions"
            limits.trace.add("refused", "schedule.ios", block, why)
    return _halves(dag, cost, limits, most, until, merges)


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
) -> Solution:
    n, order = len(dag.names), levelled(dag)
    parts = [[1 << v for v in sorted(half)] for half in (order[: n // 2], order[n // 2 :])]
    found: list[Solution] = []
    for part in parts:
        inside, spread = dag.restrict(sum(part)), _spread_cost(cost, part)
        solved = solve_block(inside, spread, limits, most, until, _kept(merges, part))
        found.append(_spread_solution(solved, part))
    return Solution(
        tuple(stage for solution in found for stage in solution.stages),
        sum(solution.us for solution in found),
        sum(solution.states for solution in found),
        sum(solution.transitions for solution in found),
        frozenset(stage for solution in found for stage in solution.merged),
    )

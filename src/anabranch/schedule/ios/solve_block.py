"""One block as exactly as can be afforded: dag, stage costs -> stages. Each step is an event.

    1 exact          no pruning, if that looks at few enough transitions
    2 chains         nodes that only follow each other taken as one (`chains`), no pruning
    3 pruned         IOS's r and s: groups of at most 3 nodes, at most 8 of them
    4 chains pruned  both
    5 halves         the upper and the lower half of the nodes, each begun again at 1

An r or s that the caller gives holds in every step, and where r is given chains are no nodes.

A set of nodes that may be merged stays one where chains are taken as one only if its nodes are
chains of their own, and in halves only if no half cuts it.

Where stages cost what `ios.stage_cost` says, each step is taken best first (`ios.best_first`),
which loses nothing. Where step 1 is too much, an event says the width, the bound on transitions,
and what was done instead; who asked for this scheduler alone sees it where that was pruning or
halves. Counts decide, never the clock, so the same block gives the same stages on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from anabranch.deadline import Deadline
from anabranch.ir.dag import Dag, bits, width
from anabranch.ir.protocols import Limits
from anabranch.schedule.chains import chains, joined, levelled
from anabranch.schedule.ios.best_first import solve_bounded
from anabranch.schedule.ios.dynamic_programme import NO_MERGES, Solution, solve
from anabranch.schedule.ios.endings import TooMany
from anabranch.schedule.ios.lower_bound import Loads, stage_bound
from anabranch.schedule.ios.schedule_space import most_transitions
from anabranch.schedule.ios.stage_cost import Groups, StageCost
from anabranch.trace import EventKind

EXACT = "no pruning"
GROUP_SIZE, GROUPS = 3, 8  # IOS's r and s, where the caller gave none


@dataclass(frozen=True, slots=True)
class Subproblem:
    """A block as the programme sees it: its dag, what stages cost, which sets of nodes may be
    merged and what they then take. `loads`: those of which `cost` is the estimate, and then what
    they rule out is not looked at."""

    dag: Dag
    cost: StageCost
    merges: Mapping[int, float] = field(default_factory=lambda: NO_MERGES)
    loads: Loads | None = None

    def of(self, dag: Dag, units: Sequence[int]) -> Subproblem:
        """The same over a dag whose nodes are such sets of nodes of this one."""
        loads = self.loads and self.loads.spread(units)
        return Subproblem(dag, _spread_cost(self.cost, units), _kept(self.merges, units), loads)


@dataclass(frozen=True, slots=True)
class Pruning:
    """What one step may look at: r, s, transitions, and until when."""

    group_size: int | None
    groups: int
    most: int
    until: Deadline


def solve_block(block: Subproblem, limits: Limits, most: int) -> Solution:
    """The stages of a block, looking at about `most` transitions at each step. OutOfTime when the
    deadline of the limits is over."""
    solution, how = _stepwise(block, limits, most)
    asked = _words(limits.max_group_size, limits.max_groups)
    if how != asked:
        d = width(block.dag)
        bound = f"{Decimal(most_transitions(len(block.dag.names), d)):.2e}"
        why = f"width {d}, bound {bound}, more than {most} transitions: too wide for the exact"
        why += f" programme; instead: {how}"
        hidden = limits.compared or how.startswith(asked)
        kind: EventKind = "refused" if hidden else "fallback"
        limits.trace.add(kind, "schedule.ios", _name(block.dag), why)
    return solution


def _name(dag: Dag) -> str:
    return f"block {dag.names[0]}..{dag.names[-1]} ({len(dag.names)} tasks)"


def _stepwise(block: Subproblem, limits: Limits, most: int) -> tuple[Solution, str]:
    """The stages, and how they were found."""
    r, s = limits.max_group_size, limits.max_groups
    units = chains(block.dag)
    shorter = len(units) < len(block.dag.names) and r is None
    pruned = _words(r or GROUP_SIZE, s or GROUPS)
    asked = _words(r, s)
    steps = [
        (asked, False, r, s),
        (f"{asked}, {len(units)} chains", True, r, s),
        (pruned, False, r or GROUP_SIZE, s or GROUPS),
        (f"{pruned}, {len(units)} chains", True, r or GROUP_SIZE, s or GROUPS),
    ]
    for what, chained, size, groups in dict.fromkeys(steps):
        if chained and not shorter:
            continue
        groups = min(groups or limits.max_streams, limits.max_streams)
        limit = Pruning(size, groups, most, limits.deadline)
        try:
            if not chained:
                return _solved(block, limit), what
            solution = _solved(block.of(joined(block.dag, units), units), limit)
            return _spread_solution(solution, units), what
        except TooMany:
            why = f"{what}: more than {most} transitions"
            limits.trace.add("refused", "schedule.ios", _name(block.dag), why)
    return _halves(block, limits, most), f"two halves, each begun anew: {asked} where it can be"


def _words(r: int | None, s: int | None) -> str:
    """What pruning means."""
    if r and s:
        return f"groups of at most {r}, at most {s} of them"
    return f"groups of at most {r}" if r else f"at most {s} groups" if s else EXACT


def _solved(block: Subproblem, limit: Pruning) -> Solution:
    """Best first where a bound is known. What a merged stage saves, no bound knows."""
    dag, cost, merges, loads = block.dag, block.cost, block.merges, block.loads
    r, s, most, until = limit.group_size, limit.groups, limit.most, limit.until
    if loads is None or merges:
        return solve(dag, cost, r, s, most=most, until=until, merges=merges)
    return solve_bounded(dag, cost, stage_bound(dag, loads, r), r, s, most, until)


def _halves(block: Subproblem, limits: Limits, most: int) -> Solution:
    n, order = len(block.dag.names), levelled(block.dag)
    parts = [[1 << v for v in sorted(half)] for half in (order[: n // 2], order[n // 2 :])]
    solutions: list[Solution] = []
    for part in parts:
        solved, _ = _stepwise(block.of(block.dag.restrict(sum(part)), part), limits, most)
        solutions.append(_spread_solution(solved, part))
    return Solution(
        tuple(stage for solution in solutions for stage in solution.stages),
        sum(solution.us for solution in solutions),
        sum(solution.states for solution in solutions),
        sum(solution.transitions for solution in solutions),
        frozenset(stage for solution in solutions for stage in solution.merged),
    )


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


def _spread_solution(solution: Solution, units: Sequence[int]) -> Solution:
    stages = tuple(_spread(groups, units) for groups in solution.stages)
    merged = frozenset(_spread(groups, units) for groups in solution.merged)
    return Solution(stages, solution.us, solution.states, solution.transitions, merged)

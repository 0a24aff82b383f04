"""One block as exactly as can be afforded: dag, stage costs -> stages. Four steps, each an event.

    1 exact    no pruning, if that looks at few enough transitions
    2 pruned   IOS's r and s: groups of at most r nodes, at most s of them
    3 chains   nodes with one successor that has one predecessor taken as one; r and s as above
    4 halves   the first and the second half of the nodes, each begun again at 1

Counts decide, never the clock, so the same block gives the same stages on every machine.

    a --> b --> c --+                      3: abc --+
                    +--> f                          +--> f
    d --> e --------+                         de ---+
"""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.ir.dag import Dag, bits
from anabranch.ir.protocols import Limits
from anabranch.schedule.endings import TooMany
from anabranch.schedule.estimate import Groups, StageCost
from anabranch.schedule.programme import Solution, solve

GROUP_SIZE, GROUPS = 3, 8  # IOS's r and s, where step 3 needs them and the caller gave none


def solve_block(
    dag: Dag, cost: StageCost, limits: Limits, most: int, until: float | None
) -> Solution:
    """The stages of a block, looking at about `most` transitions at each step."""
    r = limits.max_group_size
    s = min(limits.max_groups or limits.max_streams, limits.max_streams)
    try:
        return solve(dag, cost, None, limits.max_streams, most=most, until=until)
    except TooMany:
        _refuse(limits, dag, "no pruning", most)
    if r is not None or s < limits.max_streams:
        try:
            return solve(dag, cost, r, s, most=most, until=until)
        except TooMany:
            _refuse(limits, dag, f"groups of at most {r}, at most {s} of them", most)
    units = list(_chains(dag))
    if len(units) < len(dag.names):
        try:
            r, s = r or GROUP_SIZE, min(s, GROUPS)
            found = solve(_joined(dag, units), _spread_cost(cost, units), r, s, True, most, until)
            return _spread_solution(found, units)
        except TooMany:
            _refuse(limits, dag, f"{len(units)} chains", most)
    return _halves(dag, cost, limits, most, until)


def _refuse(limits: Limits, dag: Dag, what: str, most: int) -> None:
    block = f"block {dag.names[0]}..{dag.names[-1]} ({len(dag.names)} tasks)"
    limits.trace.add("refused", "schedule.ios", block, f"{what}: more than {most} transitions")


def _chains(dag: Dag) -> Iterator[int]:
    """The nodes as masks, each with those that follow it and only it."""
    taken = 0
    for v in range(len(dag.names)):
        if taken >> v & 1:
            continue
        chain = 1 << v
        while dag.succs[v].bit_count() == 1:
            follower = dag.succs[v].bit_length() - 1
            if dag.preds[follower].bit_count() != 1:
                break
            chain |= 1 << follower
            v = follower
        taken |= chain
        yield chain


def _joined(dag: Dag, units: list[int]) -> Dag:
    """The dag of the units; ordered by first nodes it needs no new numbers."""
    unit_of = {v: i for i, unit in enumerate(units) for v in bits(unit)}
    edges = {(unit_of[u], unit_of[v]) for u, v in dag.edges() if unit_of[u] != unit_of[v]}
    return Dag.of(tuple(str(i) for i in range(len(units))), edges)


def _spread(groups: Groups, units: list[int]) -> Groups:
    return tuple(sum(units[i] for i in bits(group)) for group in groups)


def _spread_cost(cost: StageCost, units: list[int]) -> StageCost:
    return lambda groups: cost(_spread(groups, units))


def _spread_solution(found: Solution, units: list[int]) -> Solution:
    stages = tuple(_spread(groups, units) for groups in found.stages)
    return Solution(stages, found.us, found.states, found.transitions)


def _halves(dag: Dag, cost: StageCost, limits: Limits, most: int, until: float | None) -> Solution:
    n = len(dag.names)
    parts = [[1 << v for v in range(n // 2)], [1 << v for v in range(n // 2, n)]]
    found = [
        _spread_solution(
            solve_block(dag.restrict(sum(part)), _spread_cost(cost, part), limits, most, until),
            part,
        )
        for part in parts
    ]
    return Solution(
        tuple(stage for solution in found for stage in solution.stages),
        sum(solution.us for solution in found),
        sum(solution.states for solution in found),
        sum(solution.transitions for solution in found),
    )

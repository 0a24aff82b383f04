"""IOS: the cheapest sequence of stages by dynamic programming. Ding et al., MLSys 2021.

A stage is a set of groups that run side by side, a group a set of nodes that run one after
another. The graph is cut into blocks (`blocks`), each is solved exactly (`ios.dynamic_programme`),
and blocks that are alike are solved once.

         +--> b --> d --+                        stage  a
    a -->|              +--> e --> ...           stage  b d | c
         +--> c --------+                        stage  e

"ios" asks `estimate` for the cost of a stage, "ios-measured" the device, and both drop the
barriers between stages, which a CUDA graph does not need; "ios-barrier" keeps them. "ios-paper" is
the published one: the device is asked for every stage that the programme looks at, under the
paper's r and s from the first, with barriers, and with merged stages (`merge_stages`).

The others differ from the paper. A block is solved without pruning where that looks at few enough
transitions; else with chains of nodes taken as one; else with the paper's r and s; else in two
halves (`ios.solve_block`). An r or s that is given (`max_group_size`, `max_groups`) holds from the
first. Each step is an event and depends on counts only, never on the clock. With estimates, a last
step mends the seams of what was cut (`polish`).

"ios-measured" does not measure every stage: it begins with estimates, measures the stages of the
best schedule, and solves again, until the best schedule has measured stages only. If no estimate
is above its measurement that is the optimum of measured costs, after a few dozen measurements
instead of thousands. Where many schedules are as good but for noise, rounds that have looked at
`WORK` transitions are enough. Its deadline ends the rounds, not the search: the best schedule so
far is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial

from anabranch.deadline import ENDLESS
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.key import tasks_text
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph, extract
from anabranch.schedule.blocks import blocks
from anabranch.schedule.ios.dynamic_programme import (
    NO_MERGES,
    OutOfTime,
    Solution,
    check_clock,
)
from anabranch.schedule.ios.lower_bound import Loads
from anabranch.schedule.ios.polish import polish
from anabranch.schedule.ios.solve_block import GROUP_SIZE, GROUPS, Subproblem, solve_block
from anabranch.schedule.ios.stage_cost import Groups, StageCost, stage_estimate
from anabranch.schedule.ios.stages import Stage, stage_schedule
from anabranch.schedule.task_weights import shares, times
from anabranch.trace import Trace

TRANSITIONS = 2_000_000
"""Transitions that the blocks of one graph may look at together, in steps that succeed: a second or
two. Twice as many brought RandWire and NASNet less than 1%."""

WORK = 10_000_000
"""What the rounds of "ios-measured" may look at in one block: some twenty seconds."""

BlockNodes = tuple[int, ...]
"""The nodes of a block."""

SINGLE_NODE = Solution(((1,),), 0.0, 1, 1)
"""Of a block of one node nothing is asked."""

BlockSolver = Callable[[BlockNodes, int], Solution]
"""Stages of a block, as masks over positions in it, looking at about so many transitions."""


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Estimated stage costs, no barriers."""
    dag = dag_of(tasks)
    return stage_schedule("ios", dag, _estimated(tasks, dag, costs, limits))


def schedule_barrier(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Estimated stage costs, and the paper's barriers."""
    dag = dag_of(tasks)
    staged = _estimated(tasks, dag, costs, limits)
    return stage_schedule("ios-barrier", dag, staged, barrier=True)


def schedule_measured(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Stage costs from `costs.schedule`, at most once for each distinct stage; no barriers."""
    dag = dag_of(tasks)
    us, share = times(tasks, costs), shares(tasks, limits.spec)
    us_of_stage: dict[Hashable, float] = {}

    def solver(block: BlockNodes, most: int) -> Solution:
        part = dag.restrict(sum(1 << v for v in block))
        estimate = stage_estimate(
            [us[v] for v in block], [share[v] for v in block], limits.spec.fork_us
        )
        measure = stage_measure(_named(tasks, block), costs, us_of_stage)
        return refined(part, estimate, measure, limits, most // 8)

    return stage_schedule("ios-measured", dag, stages(dag, solver, texts(tasks), limits))


def schedule_paper(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """As published (section 4): all stages measured, r and s, barriers. Once the deadline is over,
    stages that were not measured cost what is estimated, and an event says how many; blocks that
    were not begun are solved by estimates alone."""
    dag = dag_of(tasks)
    staged = stages(dag, paper_solver(tasks, costs, limits), texts(tasks), pruned(limits))
    return stage_schedule("ios-paper", dag, staged, barrier=True)


def paper_solver(
    tasks: TaskGraph,
    costs: Costs,
    limits: Limits,
    merges: Callable[[BlockNodes], Mapping[int, float]] = lambda block: NO_MERGES,
) -> BlockSolver:
    """Solves blocks with measured stages, each distinct one measured once. `merges`: the sets of a
    block that may run as one, as masks over positions in it, and what they then take."""
    dag = dag_of(tasks)
    us, share = times(tasks, costs), shares(tasks, limits.spec)
    us_of_stage: dict[Hashable, float] = {}
    counted = replace(pruned(limits), deadline=ENDLESS)  # it ends measuring, not the programme

    def solver(block: BlockNodes, most: int) -> Solution:
        if limits.deadline.stopped():
            check_clock(limits.deadline)
        part, offered = dag.restrict(sum(1 << v for v in block)), merges(block)
        inside = [us[v] for v in block], [share[v] for v in block], limits.spec.fork_us
        estimate = stage_estimate(*inside)
        if limits.deadline.over():
            why = f"time is over: all stages of a block of {len(block)} cost what is estimated"
            limits.trace.add("fallback", "schedule.ios", part.names[0], why)
            loads = None if offered else Loads.of(*inside)
            return solve_block(Subproblem(part, estimate, offered, loads), counted, most)
        measure = stage_measure(_named(tasks, block), costs, us_of_stage)
        left = 0

        def cost(groups: Groups) -> float:
            nonlocal left
            if limits.deadline.over():
                left += 1
                return estimate(groups)
            return measure(groups)

        solution = solve_block(Subproblem(part, cost, offered), counted, most)
        if left:
            why = f"time is over: {left} stages cost what is estimated"
            limits.trace.add("fallback", "schedule.ios", part.names[0], why)
        return solution

    return solver


def pruned(limits: Limits) -> Limits:
    """With the paper's r and s where none are given."""
    r, s = limits.max_group_size or GROUP_SIZE, limits.max_groups or GROUPS
    return replace(limits, max_group_size=r, max_groups=s)


def plan(
    dag: Dag, us: list[float], share: list[float], limits: Limits, barrier: bool = False
) -> Schedule:
    """A bare dag, given each node's microseconds and share of the machine."""
    staged = estimated_stages(dag, us, share, limits)
    return stage_schedule("ios-barrier" if barrier else "ios", dag, staged, barrier)


def estimated_stages(dag: Dag, us: list[float], share: list[float], limits: Limits) -> list[Stage]:
    """Stages under `stage_estimate`, polished. Blocks are alike when they have the same edges,
    times and shares: that is all the programme sees, and cheaper to compare than texts."""

    def solver(block: BlockNodes, most: int) -> Solution:
        part = dag.restrict(sum(1 << v for v in block))
        inside = [us[v] for v in block], [share[v] for v in block], limits.spec.fork_us
        cost, loads = stage_estimate(*inside), Loads.of(*inside)
        return solve_block(Subproblem(part, cost, loads=loads), limits, most)

    staged = [
        tuple(sum(1 << v for v in group) for group in stage)
        for stage in stages(dag, solver, partial(signature, dag, us, share), limits)
    ]
    cost = stage_estimate(us, share, limits.spec.fork_us)
    better = polish(dag, staged, cost, limits)
    return [tuple(tuple(bits(group)) for group in groups) for groups in better]


def signature(dag: Dag, us: list[float], share: list[float], block: BlockNodes) -> Hashable:
    """A block's edges, times and shares."""
    place = {v: i for i, v in enumerate(block)}
    edges = tuple(tuple(place[u] for u in bits(dag.preds[v]) if u in place) for v in block)
    return edges, tuple(us[v] for v in block), tuple(share[v] for v in block)


def stages(
    dag: Dag, solver: BlockSolver, alike: Callable[[BlockNodes], Hashable], limits: Limits
) -> list[Stage]:
    """The stages of a whole graph."""
    return [
        tuple(tuple(block[i] for i in bits(group)) for group in groups)
        for block, solution in solved(dag, solver, alike, limits)
        for groups in solution.stages
    ]


def solved(
    dag: Dag, solver: BlockSolver, alike: Callable[[BlockNodes], Hashable], limits: Limits
) -> list[tuple[BlockNodes, Solution]]:
    """The blocks of a graph, each with its solution. Blocks with equal `alike` get equal ones;
    small blocks are solved first and leave what they do not need to the others; blocks that no
    time is left for run in one stream."""
    parts = [tuple(bits(mask)) for mask in blocks(dag)]
    keys = {block: alike(block) for block in parts if len(block) > 1}
    first = {key: block for block, key in reversed(keys.items())}
    solutions: dict[Hashable, Solution] = {}
    left, late = TRANSITIONS, 0
    for block in sorted(first.values(), key=lambda block: (len(block), block)):
        limits.trace.progress("schedule", len(solutions), len(first), "blocks solved")
        share = left // (len(first) - len(solutions))
        try:
            solution = solver(block, max(share, TRANSITIONS // 100))
        except OutOfTime:
            late += 1
            solution = Solution(tuple((1 << i,) for i in range(len(block))), 0.0, 0, 0)
        solutions[keys[block]] = solution
        left = max(0, left - solution.transitions)
    if late:
        why = f"time is over: the tasks of {late} of {len(first)} blocks one after another"
        limits.trace.add("fallback", "schedule.ios", dag.names[0], why)
    limits.trace.progress("schedule", len(first), len(first), "blocks solved")
    limits.trace.add(
        "applied", "schedule.ios", f"{len(parts)} blocks", f"{len(solutions)} different ones solved"
    )
    return [(block, solutions[keys[block]] if len(block) > 1 else SINGLE_NODE) for block in parts]


def refined(
    dag: Dag,
    estimate: StageCost,
    measure: StageCost,
    limits: Limits,
    most: int,
) -> Solution:
    """Solve with estimates, replace those of the best schedule by measurements, and again, until
    nothing in the best schedule is an estimate or the time is over. After `WORK`, the best of those
    that were measured."""
    us_of_stage: dict[Groups, float] = {}
    best, looked = Solution((), math.inf, 0, 0), 0
    trace, until = limits.trace, limits.deadline
    limits = replace(limits, deadline=ENDLESS)  # it ends the rounds, not the search

    def cost(groups: Groups) -> float:
        us = us_of_stage.get(groups)
        return estimate(groups) if us is None else us

    while True:
        solution = solve_block(Subproblem(dag, cost), limits, most)
        limits = replace(limits, trace=Trace(quiet=True))  # the first round has said it all
        unknown = [groups for groups in solution.stages if groups not in us_of_stage]
        if not unknown:
            return solution
        looked += solution.transitions
        if looked > WORK and best.stages:
            why = f"{looked} transitions looked at: the best that was measured"
            trace.add("refused", "schedule.ios", dag.names[0], why)
            return best
        for groups in unknown:
            if until.over():
                trace.add(
                    "fallback", "schedule.ios", dag.names[0], "time is over: estimates are left"
                )
                return solution
            us_of_stage[groups] = measure(groups)
        measured = sum(map(cost, solution.stages))
        if measured < best.us:
            best = replace(solution, us=measured)


def stage_measure(block: TaskGraph, costs: Costs, us_of_stage: dict[Hashable, float]) -> StageCost:
    """The latency of a stage of the block, run alone; `us_of_stage` remembers stages by
    structure, for this block and all others."""
    names = [task.name for task in block.tasks]

    def cost(groups: Groups) -> float:
        inside = [v for group in groups for v in bits(group)]
        part = extract(block, [names[v] for v in inside])
        place = {v: i for i, v in enumerate(sorted(inside))}
        stage = tuple(tuple(place[v] for v in bits(group)) for group in groups)
        key = (tasks_text(part), stage)
        if key not in us_of_stage:
            alone = stage_schedule("stage", dag_of(part), [stage])
            us_of_stage[key] = costs.schedule(part, alone).us
        return us_of_stage[key]

    return cost


def _estimated(tasks: TaskGraph, dag: Dag, costs: Costs, limits: Limits) -> list[Stage]:
    return estimated_stages(dag, times(tasks, costs), shares(tasks, limits.spec), limits)


def texts(tasks: TaskGraph) -> Callable[[BlockNodes], Hashable]:
    """Blocks are alike when their tasks are the same but for names."""
    return lambda block: tasks_text(_named(tasks, block))


def _named(tasks: TaskGraph, block: BlockNodes) -> TaskGraph:
    return extract(tasks, [tasks.tasks[v].name for v in block])

"""IOS with merged stages: a set of convolutions of one input may be a stage as one convolution.

"ios-both" takes for each stage the cheaper of its groups side by side and its nodes as one;
"ios-merge" knows stages of one node and merged ones only. Both keep the paper's barriers and use
r and s as the other IOS schedulers do (`ios.solve_block`). "ios-paper" is "ios-both" with stages
that were measured.

                  +--> b --+                    offered: {b, c} as one takes 5
    stages   a -->|        +--> d               b 4, c 4 side by side 6, one by one 8
                  +--> c --+
    -> merged {b, c}; then the graph is rewritten, and scheduled:   a, bc, d

A merged stage needs another task graph. So deciding comes first (`chosen`): the programme runs on
the tasks as they are, with what each offered set would take. The caller rewrites the graph, and the
schedulers of the table see the merged tasks as tasks like others. With barriers the stages found
before, merged tasks in the place of their members, are among what they look at; but here a merged
task may also stand beside others, which in the paper it may not.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from anabranch.deadline import ENDLESS
from anabranch.ir.dag import bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.ios import scheduler as ios
from anabranch.schedule.ios.dynamic_programme import Solution
from anabranch.schedule.ios.scheduler import BlockNodes
from anabranch.schedule.ios.solve_block import Subproblem, solve_block
from anabranch.schedule.ios.stage_cost import stage_estimate
from anabranch.schedule.ios.stages import stage_schedule
from anabranch.schedule.task_weights import shares, times

PAPER = "ios-paper"
MERGING = {"ios-merge": False, "ios-both": True, PAPER: True}
"""The schedulers that want to be asked what to merge, and whether they run groups side by side."""

Names = frozenset[str]
"""Tasks that may run as one."""


def schedule_both(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Of tasks as they are, merged or not: IOS with barriers."""
    return replace(ios.schedule_barrier(tasks, costs, limits), scheduler="ios-both")


def schedule_merge(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Of tasks as they are, merged or not: each a stage of its own."""
    dag = dag_of(tasks)
    return stage_schedule("ios-merge", dag, [((v,),) for v in range(len(dag.names))], barrier=True)


def chosen(
    name: str, tasks: TaskGraph, costs: Costs, limits: Limits, offers: Mapping[Names, float]
) -> list[Names]:
    """The offered sets that are stages of the cheapest schedule of scheduler `name`; disjoint. The
    microseconds of an offer are all that changes with it: the merged task, and its readers'."""
    dag = dag_of(tasks)
    us, share = times(tasks, costs), shares(tasks, limits.spec)
    if not MERGING[name]:
        limits = replace(limits, max_streams=1)
    counted = replace(limits, deadline=ENDLESS)  # a second or two, and the merges are all there is
    place = {task: i for i, task in enumerate(dag.names)}
    masks = {sum(1 << place[task] for task in names): names for names in offers}
    by_mask = {mask: offers[names] for mask, names in masks.items()}

    def estimated(block: BlockNodes, most: int) -> Solution:
        part = dag.restrict(sum(1 << v for v in block))
        inside = [us[v] for v in block], [share[v] for v in block]
        cost = stage_estimate(*inside, limits.spec.fork_us)
        return solve_block(Subproblem(part, cost, _inside(block, by_mask)), counted, most)

    solver: ios.BlockSolver = estimated
    if name == PAPER:
        solver = ios.paper_solver(tasks, costs, limits, lambda block: _inside(block, by_mask))

    def alike(block: BlockNodes) -> Hashable:
        merges = tuple(sorted(_inside(block, by_mask).items()))
        structure = (
            ios.texts(tasks)(block) if name == PAPER else ios.signature(dag, us, share, block)
        )
        return structure, merges

    merged_sets: list[Names] = []
    for block, solution in ios.solved(dag, solver, alike, limits):
        for groups in solution.merged:
            merged_sets.append(masks[sum(1 << block[i] for i in bits(sum(groups)))])
    _tell(offers, merged_sets, dict(zip(dag.names, us, strict=True)), limits)
    return sorted(merged_sets, key=lambda names: min(place[task] for task in names))


def _inside(block: BlockNodes, merges: Mapping[int, float]) -> dict[int, float]:
    """The sets that lie in the block, as masks over positions in it."""
    place = {v: 1 << i for i, v in enumerate(block)}
    everything = sum(1 << v for v in block)
    return {
        sum(place[v] for v in bits(mask)): us
        for mask, us in merges.items()
        if not mask & ~everything
    }


def _tell(
    offers: Mapping[Names, float],
    merged_sets: Sequence[Names],
    us: Mapping[str, float],
    limits: Limits,
) -> None:
    """What was merged, and of the others what they would have cost."""
    taken = frozenset[str]().union(*merged_sets)
    for names, cost in offers.items():
        what = " + ".join(task for task in us if task in names)
        alone = sum(us[task] for task in names)
        times = f"{cost:.2f} us as one, readers included; {alone:.2f} one by one"
        if names in merged_sets:
            limits.trace.add("applied", "rewrite", f"merge {what}", times, us=cost)
        elif taken & names:
            limits.trace.add("refused", "schedule.merge", what, f"another set is merged: {times}")
        else:
            limits.trace.add("refused", "schedule.merge", what, f"a dearer stage: {times}")

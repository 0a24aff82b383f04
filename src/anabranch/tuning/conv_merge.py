"""What to merge before scheduling: graph, tasks, scheduler -> the graph with merged convolutions.

For each set of siblings the graph is rewritten and cut into tasks, and what came out differently
gets kernels, those of all sets in one batch. An offer costs what is new less what is gone:

    conv1 + relu   conv2 + relu   cat          offer {conv1, conv2}: merged, and no cat
      3.1 us         2.9 us      1.2 us        4.8 - 1.2 = 3.6 us
                                 cat3          with a part of it: merged, and a smaller cat
    ->  merged + relu   4.8 us                 4.8 + 0.9 - 1.2 = 4.5 us

So a reader that must copy a slice, or runs slower on one, is part of the price, and a concatenation
that is not needed any more part of the gain; two offers that share a reader are priced as if each
were alone. `schedule.ios.merge_stages` chooses among the offers, and the graph is rewritten once
more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice
from math import comb

from anabranch.costs import Roofline
from anabranch.fusion import partition
from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.rewrite.conv_merge import merge
from anabranch.rewrite.conv_siblings import SiblingConv, siblings
from anabranch.rewrite.rules.special import MERGE_CONVOLUTIONS
from anabranch.schedule.ios.merge_stages import PAPER, Names, chosen
from anabranch.trace import Trace
from anabranch.tuning.select import Selection

MEMBERS, SETS = 4, 64
"""The largest set that is offered, and how many of one family of siblings, the largest first."""
SETS_AS_PUBLISHED = 256
"""The same of a family where IOS is as published, which knows no largest set: all parts of eight
siblings. Each needs kernels of its own, which are tried."""

ALIGNMENT = 16
"""Bytes of the widest load of a GPU; cuDNN takes each tensor to begin at a multiple of it."""
Members = tuple[SiblingConv, ...]
Select = Callable[[TaskGraph], Selection]
"""Chooses kernels for tasks that have none."""


def merged(
    scheduler: str, graph: Graph, tasks: TaskGraph, costs: Costs, limits: Limits, select: Select
) -> Graph:
    """The graph in which is merged what the scheduler would; the same object if nothing is.
    `tasks`: the graph's, with kernels and probes."""
    trace = limits.trace
    largest = (None, SETS_AS_PUBLISHED) if scheduler == PAPER else (MEMBERS, SETS)
    members_of = {_names(members): members for members in _sets(graph, tasks, trace, *largest)}
    variants: dict[Names, TaskGraph] = {}
    for names, members in members_of.items():
        try:
            variant = partition(merge(graph, [members]), Trace(), limits.spec)
            why = _unaligned(variant, tasks) if limits.spec.kind == "cuda" else None
        except ValueError as refusal:
            why = Refused(str(refusal))
        if why:
            what = " + ".join(member.node.name for member in members)
            trace.add("refused", "schedule.merge", what, str(why))
        else:
            variants[names] = variant
    offers = _priced(tasks, variants, costs, limits.spec, select)
    picked = chosen(scheduler, tasks, costs, limits, offers) if offers else []
    counts = f"{len(offers)} sets offered, {len(picked)} merged"
    trace.add("applied", "schedule.merge", graph.name, counts)
    try:
        merged_graph = merge(graph, [members_of[names] for names in picked])
    except ValueError as refusal:  # each alone was possible
        trace.add("fallback", "schedule.merge", graph.name, f"not merged after all: {refusal}")
        return graph
    if merged_graph is not graph:
        nodes = f"{len(graph.nodes)} -> {len(merged_graph.nodes)} nodes"
        trace.add("applied", "rewrite", MERGE_CONVOLUTIONS, nodes)
    return merged_graph


def _sets(
    graph: Graph, tasks: TaskGraph, trace: Trace, most_members: int | None, most: int
) -> Iterator[Members]:
    """The parts of each family whose members run as tasks of their own."""
    bodies = {task.name: [node.name for node in task.body.nodes] for task in tasks.tasks}
    for family in siblings(graph, trace):
        able: list[SiblingConv] = []
        for member in family:
            wanted = list(dict.fromkeys((member.node.name, member.last.name)))
            inside = bodies.get(member.node.name, [])
            if inside == wanted:
                able.append(member)
            else:
                others = ", ".join(f"%{n}" for n in inside if n not in wanted) or "its relu apart"
                why = f"its task is not it alone: {others}"
                trace.add("refused", "schedule.merge", f"%{member.node.name}", why)
        counts = range(min(most_members or len(able), len(able)), 1, -1)
        all_parts = sum(comb(len(able), count) for count in counts)
        if all_parts > most:
            why = f"{len(able)} siblings have {all_parts} parts, the {most} largest are offered"
            trace.add("refused", "schedule.merge", f"%{able[0].node.name} and others", why)
        yield from islice((part for count in counts for part in combinations(able, count)), most)


def _unaligned(variant: TaskGraph, tasks: TaskGraph) -> Refused | None:
    """Which new slice begins where kernels that load vectors, cuDNN's among them, could not read:
    they were chosen, and timed, on memory of its own."""
    existing = {node.name for node in tasks.aliases}
    for node in variant.aliases:
        if node.op == "aten.slice.Tensor" and node.name not in existing:
            start, type = ops.arguments(node)["start"], node.type
            assert isinstance(start, int)
            offset = start * type.strides[1] * type.dtype.itemsize
            if offset % ALIGNMENT:
                where = f"%{node.name} would begin {offset} bytes in"
                return Refused(f"{where}, no multiple of {ALIGNMENT}")
    return None


def _priced(
    tasks: TaskGraph,
    variants: dict[Names, TaskGraph],
    costs: Costs,
    spec: TargetSpec,
    select: Select,
) -> dict[Names, float]:
    """For each set what its merge adds to the tasks, in microseconds, and takes from them."""
    before = {task.name: task for task in tasks.tasks}
    new: dict[Names, list[Task]] = {}
    for names, variant in variants.items():
        bodies = {name: task.body for name, task in before.items()}
        new[names] = [task for task in variant.tasks if bodies.get(task.name) != task.body]
    selected = _selected([task for group in new.values() for task in group], select)
    rough = Roofline(spec)
    offers: dict[Names, float] = {}
    for names, variant in variants.items():
        left = {task.name for task in variant.tasks}
        gone = [task for name, task in before.items() if name not in left and name not in names]
        us = -sum(costs.task(task).us for task in gone)
        for new_task in new[names]:
            task, old = selected[structure_text(new_task.body)], before.get(new_task.name)
            cost = costs.task(task)
            if old is not None:
                was = costs.task(old)
                if was.source != cost.source:  # what was measured is not less what is estimated
                    was, cost = rough.task(old), rough.task(task)
                us -= was.us
            us += cost.us
        offers[names] = us
    return offers


def _selected(tasks: Sequence[Task], select: Select) -> dict[str, Task]:
    """By structure one task with the best kernel, all structures side by side."""
    alike = {structure_text(task.body): task for task in tasks}
    batch = tuple(Task(f"offer{i}", task.body) for i, task in enumerate(alike.values()))
    selected_tasks = select(TaskGraph("offers", (), (), batch, (), ())).tasks.tasks
    return dict(zip(alike, selected_tasks, strict=True))


def _names(members: Members) -> Names:
    return frozenset(member.node.name for member in members)

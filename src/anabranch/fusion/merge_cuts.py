"""Choosing: of two ways to cut a graph into tasks, for each stretch where they differ the faster.

    one    {conv, add, add} {sigmoid} 9.1 us      other  {conv} 4.0  {add, add, sigmoid} 2.1
                                                  6.1 us: this stretch is cut as in the other

DeepCuts (algorithm 1) keeps a merge of two subsets only if the kernels it finds for it are faster.
Here the merges are those that `vertical` holds for good, and each is judged whole: chains against
their nodes, clusters against what was chosen before. A stretch is the least set of nodes that is a
union of tasks of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from anabranch.errors import ScheduleError
from anabranch.ir import ops
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Node, types
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace

Stretch = tuple[list[Task], list[Task]]
"""The tasks of the coarse graph, and those of the fine one, of the same nodes."""

ESTIMATED = "only estimated"
"""How a refusal begins that a measured time would have decided: with `us` expected of the one way
and `apart_us` of the other, and whether it is a `gemm_chain`, as its data."""


def choose(
    coarse: TaskGraph,
    fine: TaskGraph,
    cost: Callable[[Task], Cost],
    trace: Trace,
    sure: Callable[[Task], bool] = lambda group: False,
) -> TaskGraph:
    """The coarse graph, with the parts of the fine one for every stretch where they are faster;
    both have kernels. Groups of which there are only estimates do not replace parts whose time
    was measured for the most part, unless they are expected to take less than half of it; those
    that must be `sure` to pay replace nothing then. A group that costs infinitely much is ruled
    out."""
    tasks: list[Task] = []
    for groups, parts in stretches(coarse, fine):
        whole, apart = [cost(group) for group in groups], [cost(part) for part in parts]
        us, parts_us = sum(c.us for c in whole), sum(c.us for c in apart)
        if len(parts) == len(groups) == 1:
            tasks += groups if us <= parts_us else parts
            continue
        names = ", ".join(group.name for group in groups)
        guess = only_guessed(whole, apart) or any(
            c.source == "estimated" and sure(g) for g, c in zip(groups, whole, strict=True)
        )
        if us < parts_us and not guess:
            why = f"{us:.2f} us in {_launches(groups)}, {parts_us:.2f} in {len(parts)}"
            trace.add("applied", "fusion", names, why, us=parts_us - us)
            tasks += groups
        else:
            what, why = f"{names}, {len(parts)} parts", f"{us:.2f} us > {parts_us:.2f} us apart"
            if math.isinf(us):
                trace.add("refused", "fusion", what, "it is wanted in parts")
            elif guess:
                data = {"us": us, "apart_us": parts_us, "gemm_chain": int(any(map(sure, groups)))}
                trace.add("refused", "fusion", what, ESTIMATED, **data)
            else:
                trace.add("refused", "fusion", what, why)
            tasks += parts
    return _ordered(tasks, coarse, fine) or min(
        (coarse, fine), key=lambda graph: sum(cost(task).us for task in graph.tasks)
    )


def only_guessed(whole: Sequence[Cost], apart: Sequence[Cost]) -> bool:
    """Whether groups of which there are only estimates are not to replace these parts, which were
    measured for the most part."""
    us, parts_us = sum(c.us for c in whole), sum(c.us for c in apart)
    estimated = any(c.source == "estimated" for c in whole)
    measured = sum(c.us for c in apart if c.source != "estimated")
    return estimated and 2 * measured > parts_us and 2 * us > parts_us


def stretches(coarse: TaskGraph, fine: TaskGraph) -> list[Stretch]:
    """The graphs side by side: tasks that share nodes, in the order of the fine graph."""
    homes: dict[str, list[str]] = {}
    for task in fine.tasks:
        for node in computed(task):
            homes.setdefault(node, []).append(task.name)
    stretch_of: dict[str, Stretch] = {task.name: ([], [task]) for task in fine.tasks}
    for group in coarse.tasks:
        own = [name for node in computed(group) for name in homes[node]]
        joined = {id(stretch_of[name]): stretch_of[name] for name in own}
        first, *others = joined.values()
        first[0].append(group)
        for other in others:
            first[0].extend(other[0])
            first[1].extend(other[1])
            stretch_of.update((part.name, first) for part in other[1])
    return list({id(stretch): stretch for stretch in stretch_of.values()}.values())


def computed(task: Task) -> list[str]:
    """The nodes of the task: a cheap one may be in several tasks, as a view may."""
    table = types(task.body)
    return [node.name for node in task.body.nodes if not ops.is_view(node, table)]


def _ordered(tasks: Sequence[Task], coarse: TaskGraph, fine: TaskGraph) -> TaskGraph | None:
    """The tasks in an order in which they can run; None if they wait for each other in a circle,
    which stretches that are each cut in a sound way may do."""
    place = {node.name: i for i, task in enumerate(fine.tasks) for node in task.body.nodes}
    last = {task.name: max(place.get(node.name, -1) for node in task.body.nodes) for task in tasks}
    tasks = sorted(tasks, key=lambda task: last[task.name])
    mixed = replace(fine, tasks=tuple(tasks), aliases=_aliases(tasks, coarse, fine))
    try:
        order = dag_of(mixed).names
    except ScheduleError:
        return None
    named = {task.name: task for task in tasks}
    return replace(mixed, tasks=tuple(named[name] for name in order))


def _aliases(tasks: Sequence[Task], coarse: TaskGraph, fine: TaskGraph) -> tuple[Node, ...]:
    """The aliases that these tasks and the caller need: a group may hold views in its body of which
    its parts read the results. A view that nobody reads is an alias in both."""
    needed = {name for task in tasks for name in task.reads} | {ref.name for ref in fine.outputs}
    both = {node.name for node in coarse.aliases} & {node.name for node in fine.aliases}
    every = {node.name: node for node in (*coarse.aliases, *fine.aliases)}
    aliases: list[Node] = []
    for node in _in_order(every):
        if node.name in both or needed.intersection(node.results):
            aliases.insert(0, node)
            needed.update(node.uses)
    return tuple(aliases)


def _in_order(aliases: dict[str, Node]) -> list[Node]:
    """Views of views before what they are views of."""
    makers = {name: node for node in aliases.values() for name in node.results}
    depth: dict[str, int] = {}
    for node in aliases.values():
        chain = [node]
        while chain[-1].uses[0] in makers:
            chain.append(makers[chain[-1].uses[0]])
        depth[node.name] = len(chain)
    return sorted(aliases.values(), key=lambda node: -depth[node.name])


def _launches(groups: Sequence[Task]) -> str:
    return "one launch" if len(groups) == 1 else f"{len(groups)} launches"

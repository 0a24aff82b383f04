"""Choosing: groups that only a kernel generator runs, or their parts, by what both take.

    coarse  {conv, add, sigmoid, mul} 9.1 us      parts  {conv, add} 4.0  {sigmoid} 1.6  {mul} 1.7
                                                  7.3 us: the parts stay apart

DeepCuts (algorithm 1) keeps a merge of two subsets only if the kernels it finds for it are faster.
Here the merges are those that `grow` holds for good, and each is judged whole: chains against their
nodes, then clusters against what was chosen for their chains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anabranch.ir.graph import Node
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace


def choose(
    coarse: TaskGraph, fine: TaskGraph, cost: Callable[[Task], Cost], trace: Trace
) -> TaskGraph:
    """The coarse graph, with the parts of the fine one for every group that they outrun; both have
    kernels. A group of which there are only estimates does not replace parts that were measured."""
    views = {node.name for node in (*coarse.aliases, *fine.aliases)}
    home = {node.name: task for task in fine.tasks for node in task.body.nodes}
    tasks: list[Task] = []
    for group in coarse.tasks:
        own = [home[node.name] for node in group.body.nodes if node.name not in views]
        parts = list({part.name: part for part in own}.values())
        whole, apart = cost(group), [cost(part) for part in parts]
        if len(parts) == 1:
            tasks += [group] if whole.us <= apart[0].us else parts
            continue
        parts_us = sum(c.us for c in apart)
        guess = whole.source == "estimated" and any(c.source != "estimated" for c in apart)
        if whole.us < parts_us and not guess:
            why = f"{whole.us:.2f} us in one launch, {parts_us:.2f} in {len(parts)}"
            trace.add("applied", "fuse", group.name, why, us=parts_us - whole.us)
            tasks.append(group)
        else:
            why = "only estimated" if guess else f"{whole.us:.2f} us > {parts_us:.2f} us apart"
            trace.add("refused", "fuse", f"{group.name}, {len(parts)} parts", why)
            order = {task.name: i for i, task in enumerate(fine.tasks)}
            tasks += sorted(parts, key=lambda part: order[part.name])
    return replace(coarse, tasks=tuple(tasks), aliases=_aliases(tasks, coarse, fine))


def _aliases(tasks: list[Task], coarse: TaskGraph, fine: TaskGraph) -> tuple[Node, ...]:
    """The aliases that these tasks and the caller need: a group may hold views in its body of which
    its parts read the results. A view that neither graph needed is an alias in both."""
    needed = {name for task in tasks for name in task.reads} | {ref.name for ref in fine.outputs}
    kept = {node.name for node in coarse.aliases}
    found: list[Node] = []
    for node in reversed(fine.aliases):
        if node.name in kept or needed.intersection(node.results):
            found.insert(0, node)
            needed.update(node.uses)
    return tuple(found)

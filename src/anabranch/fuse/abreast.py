"""Abreast: tasks of one level as one task, whose body has as many independent parts.

    level 0      level 1              level 2        level 0   level 1                level 2
    x -- a --+-- b (3.1 us) --+-- d       ->         x -- a -- {b, c} as one launch -- d
             +-- c (2.9 us) --+

A level is as far from the inputs as the longest way to it: tasks of one level never depend on each
other, and however they are put together, no cycle comes of it. Which of them are small enough to
share the machine, and whether a launch of all is faster than theirs, others must say: `suits` does
the first, kernels and their times the second (`choose`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from anabranch.ir.dag import bits, dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace

MOST = 4
"""Tasks in a launch."""


def abreast(tasks: TaskGraph, suits: Callable[[Task], bool], trace: Trace) -> TaskGraph:
    """The tasks with those that suit put together, level by level; the same object if there are
    no two of one level. What is put together has no kernel yet."""
    dag, by_name = dag_of(tasks), {task.name: task for task in tasks.tasks}
    levels: list[int] = []
    for direct in dag.preds:
        levels.append(1 + max((levels[before] for before in bits(direct)), default=-1))
    found: list[Task] = []
    for level in range(max(levels, default=-1) + 1):
        own = [by_name[name] for name, at in zip(dag.names, levels, strict=True) if at == level]
        found += [task for task in own if not suits(task)]
        for group in _groups([task for task in own if suits(task)]):
            found.append(_together(group) if len(group) > 1 else group[0])
            if len(group) > 1:
                names = ", ".join(task.name for task in group)
                trace.add("applied", "fuse", names, "abreast: one launch of independent parts")
    return replace(tasks, tasks=tuple(found)) if len(found) < len(tasks.tasks) else tasks


def _groups(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """In order, as many as go into one launch; a node that two of them compute parts them."""
    group: list[Task] = []
    made: set[str] = set()
    for task in tasks:
        own = {name for node in task.body.nodes for name in node.results}
        if group and (len(group) == MOST or own & made):
            yield group
            group, made = [], set()
        group.append(task)
        made |= own
    if group:
        yield group


def _together(group: Sequence[Task]) -> Task:
    bodies = [task.body for task in group]
    name = f"{group[0].name}_and_{len(group) - 1}"
    inputs = {value.name: value for body in bodies for value in body.inputs}
    constants = {value.name: value for body in bodies for value in body.constants}
    body = Graph(
        name,
        tuple(inputs.values()),
        tuple(constants.values()),
        tuple(node for body in bodies for node in body.nodes),
        tuple(ref for body in bodies for ref in body.outputs),
    )
    return Task(name, body)

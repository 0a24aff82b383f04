"""Horizontal fusion: independent tasks as one task, whose body has as many independent parts.

    level 0      level 1              level 2        level 0   level 1                level 2
    x -- a --+-- b (3.1 us) --+-- d       ->         x -- a -- {b, c} as one launch -- d
             +-- c (2.9 us) --+

A level is as far from the inputs as the longest way to it, or, `late`, as far from the end: tasks
of one level never depend on each other, and however they are put together, no cycle comes of it.
Within a level the longest stand together, for a launch takes as long as its longest part. Which
tasks are short enough, and which fit beside each other, others must say (`tuning.joint_offers`),
and whether a launch of all is faster, those who time it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.key import structure_text
from anabranch.ir.state import in_input_order
from anabranch.ir.task import Task, TaskGraph

MOST_TASKS = 4
"""Tasks in a launch, but for leaves (`horizontal.leaves`)."""
TaskGroup = tuple[Task, ...]
Fits = Callable[[Sequence[Task]], bool]


def levelled(tasks: TaskGraph, us: Mapping[str, float], fits: Fits, late: bool) -> list[TaskGroup]:
    """Groups of at least two of the tasks that `us` has times of, each of one level. Equal groups
    have their tasks in equal order."""
    dag, by_name = dag_of(tasks), {task.name: task for task in tasks.tasks}
    groups: list[TaskGroup] = []
    levels: dict[int, list[Task]] = {}
    for name, level in zip(dag.names, _levels(dag, late), strict=True):
        if name in us:
            levels.setdefault(level, []).append(by_name[name])
    for _, own in sorted(levels.items()):
        if len(own) > 1:
            groups += _groups(own, us, fits)
    return groups


def together(
    tasks: TaskGraph, joined: Mapping[str, Task], groups: Sequence[TaskGroup]
) -> TaskGraph:
    """The tasks with each of these groups as the task that `joined` has under the group's name.
    ScheduleError if they would wait for each other in a circle, as groups of several levels may."""
    gone = {task.name for group in groups for task in group}
    new_tasks = [task for task in tasks.tasks if task.name not in gone]
    new_tasks += [joined[name_of(group)] for group in groups]
    mixed = replace(tasks, tasks=tuple(new_tasks))
    named = {task.name: task for task in new_tasks}
    return replace(mixed, tasks=tuple(named[name] for name in dag_of(mixed).names))


def name_of(group: TaskGroup) -> str:
    """What the task of this group is called: by all of few tasks, by the first of many."""
    if len(group) > MOST_TASKS:
        return f"{group[0].name}_and_{len(group) - 1}_more"
    return "_and_".join(task.name for task in group)


def joint(group: TaskGroup) -> Task:
    """The group as one task, without a kernel."""
    bodies = [task.body for task in group]
    inputs = {value.name: value for body in bodies for value in body.inputs}
    constants = {value.name: value for body in bodies for value in body.constants}
    outputs = tuple(ref for body in bodies for ref in body.outputs)
    states = [
        replace(state, output=outputs.index(part.outputs[state.output]))
        for part in bodies
        for state in part.states
    ]
    body = Graph(
        name_of(group),
        tuple(inputs.values()),
        tuple(constants.values()),
        tuple(node for body in bodies for node in body.nodes),
        outputs,
        states=in_input_order(states, tuple(inputs.values())),
    )
    return Task(body.name, body)


def _levels(dag: Dag, late: bool) -> list[int]:
    count = len(dag.names)
    before = dag.succs if late else dag.preds
    levels = [0] * count
    for i in reversed(range(count)) if late else range(count):
        levels[i] = 1 + max((levels[other] for other in bits(before[i])), default=-1)
    return [-level for level in levels] if late else levels


def _groups(own: Sequence[Task], us: Mapping[str, float], fits: Fits) -> list[TaskGroup]:
    """The longest first, each into the first group where there is room for it; a node that two of
    them have parts them."""
    ranked = sorted(own, key=lambda task: (-us[task.name], structure_text(task.body)))
    groups: list[list[Task]] = []
    for task in ranked:
        for group in groups:
            if len(group) < MOST_TASKS and not share(group, task) and fits([*group, task]):
                group.append(task)
                break
        else:
            groups.append([task])
    return [tuple(group) for group in groups if len(group) > 1]


def share(group: Sequence[Task], task: Task) -> bool:
    """Whether both compute a node, a view say, or one of them what the other one reads."""
    own = _computed(task)
    return any(
        not own.isdisjoint((*_computed(other), *other.reads))
        or not _computed(other).isdisjoint(task.reads)
        for other in group
    )


def _computed(task: Task) -> set[str]:
    return {name for node in task.body.nodes for name in node.results}

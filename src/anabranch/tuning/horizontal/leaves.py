"""Leaves: small tasks whose results nobody waits for, dozens of them in one launch.

    backward --> running statistics of 53 batch norms, 53 counters, 106 small updates
                 212 launches of a microsecond   ->   7 launches

A training step has hundreds: counters of steps, running statistics, updates of biases and of the
scales of norms. Since nobody waits for them they may run at any time behind what they read, and a
launch of many of them can never wait for itself. Neighbours in the order of launches go together,
for these can start at about the same time; what is computed early need not be kept to the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.ir.dag import dag_of
from anabranch.ir.key import structure_text
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.tiles import PointwiseTile
from anabranch.tuning.joint_offers import JointPart
from anabranch.tuning.joint_tasks import TaskGroup, joint, share

MOST_LEAVES = 32
"""Tasks in a launch: each is a function of its own in the kernel, and has pointers of its own."""
FEWEST_LEAVES = 4
MOST_CTAS = 16
"""CTAs that a leaf may have: a larger one is worth a launch of its own, where it runs beside what
others wait for."""
MOST_POINTERS = 200
"""Values that a launch may read and write."""


def leaf_groups(tasks: TaskGraph, part_of: Mapping[str, JointPart]) -> list[list[TaskGroup]]:
    """Groups of leaves that could be one launch each, those of equal structure together."""
    dag = dag_of(tasks)
    ends = {name for name, after in zip(dag.names, dag.succs, strict=True) if not after}
    small = [
        task for task in tasks.tasks if task.name in ends and _is_small(part_of.get(task.name))
    ]
    groups_by_structure: dict[str, list[TaskGroup]] = {}
    for group in _in_a_row(small):
        groups_by_structure.setdefault(structure_text(joint(group).body), []).append(group)
    return list(groups_by_structure.values())


def _is_small(part: JointPart | None) -> bool:
    if part is None or part.resources.ctas > MOST_CTAS:
        return False
    return all(isinstance(tile, PointwiseTile) for tile in part.tiles)


def _in_a_row(leaves: Sequence[Task]) -> list[TaskGroup]:
    """Neighbours together, as many as a launch may have."""
    groups, now, values = list[TaskGroup](), list[Task](), set[str]()
    for task in leaves:
        own = {*task.reads, *task.writes}
        full = len(now) == MOST_LEAVES or len(values | own) > MOST_POINTERS
        if now and (full or share(now, task)):
            groups.append(tuple(now))
            now, values = [], set()
        now.append(task)
        values |= own
    groups.append(tuple(now))
    return [group for group in groups if len(group) >= FEWEST_LEAVES]

"""Sequential: one stream, the tasks' own order. The plan that is never wrong, and every other
plan's yardstick.

    a --> b --> d
    a --> c --> d      a @0   b @0   c @0   d @0
"""

from __future__ import annotations

from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import TaskGraph


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """As `in_a_row`; costs and limits are not asked."""
    return in_a_row(tasks)


def in_a_row(tasks: TaskGraph) -> Schedule:
    """All tasks on one stream in their own order."""
    return Schedule("sequential", sequential_launches(dag_of(tasks)))

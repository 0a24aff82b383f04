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
    """All tasks on one stream in their own order; costs and limits are not asked."""
    return Schedule("sequential", sequential_launches(dag_of(tasks)))

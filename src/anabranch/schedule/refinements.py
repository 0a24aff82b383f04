"""Refinements: a schedule -> others of the same streams that a device may run faster.

Which one does is left to the device, or to the model where there is none: `urgent` streams that
are critical, and `rooted` ones that do not start by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Schedule
from anabranch.schedule.single_root import rooted
from anabranch.schedule.stream_priority import urgent


def refinements(schedule: Schedule, dag: Dag, us: Sequence[float]) -> Iterator[Schedule]:
    """Under names of their own, where there are any. `us`: of each task, as in the dag."""
    for changed in (urgent, rooted):
        refined = changed(schedule, dag, us)
        if refined is not None:
            yield refined

"""How tasks follow each other: Plan -> predecessors and a drawing; Timeline -> its critical chain.

The drawing has a column a stream and a row a step: a task stands one row below the last of those
that it must come after, on its stream or elsewhere. No two tasks share a place, every edge and
every wait points down, and what may run side by side stands side by side:

    stream 0   stream 1
       a                      row 0
       b          c           row 1      c waits for a
       d                      row 2      d waits for c
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.ir.task import task_producers


@dataclass(frozen=True, slots=True)
class Flow:
    """By position in the launches: the launches whose results each reads, those it waits for, the
    one before it on its stream (-1: none), its row, and its column."""

    reads: tuple[tuple[int, ...], ...]
    waits: tuple[tuple[int, ...], ...]
    previous: tuple[int, ...]
    row: tuple[int, ...]
    column: tuple[int, ...]


def flow(plan: Plan) -> Flow:
    """The plan's dependencies and its drawing, tasks numbered in launch order."""
    launches = plan.schedule.launches
    position = {launch.task: i for i, launch in enumerate(launches)}
    by_name = {task.name: task for task in plan.tasks.tasks}
    producer = task_producers(plan.tasks)
    reads = tuple(
        tuple(
            dict.fromkeys(
                position[source]
                for name in by_name[launch.task].reads
                for source in producer.get(name, ())
            )
        )
        for launch in launches
    )
    waits = tuple(tuple(position[name] for name in launch.waits) for launch in launches)
    previous = _previous(plan.schedule)
    column = {stream: i for i, stream in enumerate(sorted({x.stream for x in launches}))}
    row: list[int] = []
    for i in range(len(launches)):
        after = [p for p in (*reads[i], *waits[i], previous[i]) if 0 <= p < i]
        row.append(1 + max((row[p] for p in after), default=-1))
    columns = tuple(column[launch.stream] for launch in launches)
    return Flow(reads, waits, previous, tuple(row), columns)


def critical_chain(timeline: Timeline, plan_flow: Flow, position: Mapping[str, int]) -> list[int]:
    """The launches that set the end of the timeline: from the one that ends last, back to whatever
    it had to wait for longest. What lies on it is worth making faster; nothing else is."""
    end = {position[s.task]: s.end for s in timeline.spans if s.task in position}
    chain: list[int] = []
    here = max(end, key=lambda i: (end[i], i), default=None)
    while here is not None:
        chain.append(here)
        before = (*plan_flow.reads[here], *plan_flow.waits[here], plan_flow.previous[here])
        earlier = [p for p in before if p in end and p < here]
        here = max(earlier, key=lambda i: (end[i], i), default=None)
    return chain[::-1]


def busy(timeline: Timeline) -> dict[int, float]:
    """By stream, the part of the latency during which something runs on it."""
    total: dict[int, float] = {}
    for span in timeline.spans:
        total[span.stream] = total.get(span.stream, 0.0) + span.end - span.start
    whole = timeline.latency or 1.0
    return {stream: us / whole for stream, us in sorted(total.items())}


def _previous(schedule: Schedule) -> tuple[int, ...]:
    last: dict[int, int] = {}
    previous = []
    for i, launch in enumerate(schedule.launches):
        previous.append(last.get(launch.stream, -1))
        last[launch.stream] = i
    return tuple(previous)

"""Urgent: a schedule -> the same with the streams of the critical path urgent, or None.

Where kernels of several streams are ready, a GPU serves the stream of higher priority first: a long
chain should not wait because a short branch came a moment earlier. A launch is critical if the
longest path through it is nearly the longest there is. Whole streams become urgent, namely those
that are critical for half of their time: changing the priority within a stream adds an edge.

    us  a 1, b 6, c 2, d 1         a @0, b @0, c @1, d @0   ->   a @0 urgent, b @0 urgent,
         +--> b --+                                              c @1, d @0 urgent
    a -->|        +--> d
         +--> c --+
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir.dag import Dag, bits
from anabranch.ir.schedule import Schedule
from anabranch.schedule.list_scheduling import ranks

CRITICAL_SHARE = 0.02
"""Of the longest path: a path that is shorter by less is as critical."""


def urgent(schedule: Schedule, dag: Dag, us: Sequence[float]) -> Schedule | None:
    """Under the name "...-urgent"; None where no stream, or every one, would be urgent, and where
    some are already."""
    if any(launch.urgent for launch in schedule.launches):
        return None
    critical = _critical(dag, us)
    number = {name: v for v, name in enumerate(dag.names)}
    total: dict[int, float] = {}
    spent: dict[int, float] = {}
    for launch in schedule.launches:
        v = number[launch.task]
        total[launch.stream] = total.get(launch.stream, 0.0) + us[v]
        spent[launch.stream] = spent.get(launch.stream, 0.0) + us[v] * critical[v]
    chosen = {
        stream for stream in total if spent[stream] > 0 and 2 * spent[stream] >= total[stream]
    }
    if not chosen or len(chosen) == len(total):
        return None
    launches = tuple(
        replace(launch, urgent=launch.stream in chosen) for launch in schedule.launches
    )
    return replace(schedule, scheduler=f"{schedule.scheduler}-urgent", launches=launches)


def _critical(dag: Dag, us: Sequence[float]) -> list[bool]:
    below = ranks(dag, us)
    above = [0.0] * len(us)
    for v, preds in enumerate(dag.preds):
        above[v] = max((above[u] + us[u] for u in bits(preds)), default=0.0)
    longest = max(below, default=0.0)
    return [a + b >= (1 - CRITICAL_SHARE) * longest for a, b in zip(above, below, strict=True)]

"""Rooted: a schedule whose streams start by themselves -> the same, started by one launch, or None.

A graph that begins with several launches is begun by the host, stream after stream: on an H200 the
second comes 4 to 8 us after the first, and each further one 1.5 to 2.6 us later. A launch that
waits for another one follows it after 1 to 2 us, the next such one 0.3 us later. So where several
streams start, all but one may wait for the shortest of the launches that start them:

    us  a 6, b 1.4, c 3          a @0, b @1, c @2     ->     b @1, a @0 after b, c @2 after b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Launch, Schedule


def rooted(schedule: Schedule, dag: Dag, us: Sequence[float]) -> Schedule | None:
    """Under the name "...-rooted"; None where fewer than two streams start by themselves. `us`: of
    each task, numbered as in the dag."""
    starts = _starts(schedule.launches)
    if len(starts) < 2:
        return None
    number = {name: v for v, name in enumerate(dag.names)}
    root = min(starts, key=lambda launch: us[number[launch.task]])
    others = {launch.task for launch in starts if launch is not root}
    launches = [root]
    for launch in schedule.launches:
        if launch is not root:
            waits = (root.task,) if launch.task in others else launch.waits
            launches.append(replace(launch, waits=waits))
    name = f"{schedule.scheduler}-rooted"
    return replace(schedule, scheduler=name, launches=tuple(launches), stages=())


def _starts(launches: Sequence[Launch]) -> list[Launch]:
    """Those that come after nothing."""
    streams: set[int] = set()
    starts = []
    for launch in launches:
        if launch.stream not in streams and not launch.waits:
            starts.append(launch)
        streams.add(launch.stream)
    return starts

"""A schedule of tasks -> one of the same tasks with some put together, as like it as can be.

    a @0   b @1   c @0 after b   d @1        {a, b} together, a the longer:
                                             a_and_b @0   c @0   d @1 after a_and_b

Tasks put together run on the stream of their first, no earlier than their last one did; all else
stays where it was, as far as dependencies allow, so that two plans differ in little else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from anabranch.ir.dag import Dag, bits
from anabranch.ir.schedule import Schedule
from anabranch.schedule.local.assignment import Placing, schedule_of


def adapted(schedule: Schedule, dag: Dag, members: Mapping[str, Sequence[str]]) -> Schedule:
    """The schedule for `dag`, whose nodes it names but for those that `members` says are several
    of its tasks."""
    place = {launch.task: i for i, launch in enumerate(schedule.launches)}
    stream = {launch.task: launch.stream for launch in schedule.launches}
    own = [members.get(name, (name,)) for name in dag.names]
    wanted = [max(place[name] for name in names) for names in own]
    streams = tuple(stream[names[0]] for names in own)
    return schedule_of(schedule.scheduler, dag, Placing(_ordered(dag, wanted), streams))


def _ordered(dag: Dag, wanted: Sequence[int]) -> tuple[int, ...]:
    """All nodes, each after those it depends on, else by where they want to be."""
    left = [mask.bit_count() for mask in dag.preds]
    ready: list[tuple[int, int]] = []
    for v, count in enumerate(left):
        if not count:
            heappush(ready, (wanted[v], v))
    order: list[int] = []
    while ready:
        _, v = heappop(ready)
        order.append(v)
        for w in bits(dag.succs[v]):
            left[w] -= 1
            if not left[w]:
                heappush(ready, (wanted[w], w))
    return tuple(order)

"""Critical: list scheduling on the critical path. HEFT (Topcuoglu et al., TPDS 2002), as LIOS uses
it for inference graphs.

Upward rank of a node: its time plus the largest rank of its successors. Nodes are placed by
falling rank, each on the stream where it ends first, given when its inputs end, when the stream is
free, and `fork_us` for every change of stream. A short branch thus stays in line where a fork
costs more than it hides. Unlike HEFT all streams are equally fast, and no node is put into a gap
before one already placed, because a stream runs in launch order. Launches are issued by their
predicted start.

    us a 2, b 8, c 3, d 1; fork 0.5         rank a 11, b 9, c 4, d 1
         +--> b --+                          b @0  2.0 - 10.0
    a -->|        +--> d                     c @1  2.5 -  5.5   (on stream 0: 10 - 13)
         +--> c --+                          d @0 10.0 - 11.0
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.event_waits import launches
from anabranch.schedule.task_weights import times


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Each task, by its rank on the critical path, goes to the stream where it ends first."""
    return plan(dag_of(tasks), times(tasks, costs), limits.max_streams, limits.spec.fork_us)


def plan(dag: Dag, us: Sequence[float], max_streams: int, fork_us: float) -> Schedule:
    """Each node on the stream where it ends first, given each node's microseconds."""
    order, stream_of = placed(dag, us, max_streams, fork_us)
    return Schedule("critical", launches(dag, order, stream_of))


def placed(
    dag: Dag, us: Sequence[float], max_streams: int, fork_us: float
) -> tuple[list[int], list[int]]:
    """The same by number: launch order, and the stream of each node."""
    rank = ranks(dag, us)
    priority = sorted(range(len(us)), key=lambda v: (-rank[v], v))
    stream_of = [0] * len(us)
    start, end = [0.0] * len(us), [0.0] * len(us)
    free: list[float] = []
    for v in priority:
        arrivals: dict[int, float] = {}
        for u in bits(dag.preds[v]):
            arrivals[stream_of[u]] = max(arrivals.get(stream_of[u], 0.0), end[u])
        streams = [*range(len(free)), len(free)] if len(free) < max_streams else range(len(free))
        begin = {
            s: max(
                free[s] if s < len(free) else 0.0,
                max((at + fork_us * (t != s) for t, at in arrivals.items()), default=0.0),
            )
            for s in streams
        }
        # On a tie: where an input ran, then the lowest.
        best = min(streams, key=lambda s: (begin[s], s not in arrivals, s))
        if best == len(free):
            free.append(0.0)
        stream_of[v], start[v], end[v] = best, begin[best], begin[best] + us[v]
        free[best] = end[v]
    place = {v: i for i, v in enumerate(priority)}
    return sorted(range(len(us)), key=lambda v: (start[v], place[v])), stream_of


def ranks(dag: Dag, us: Sequence[float]) -> list[float]:
    """For each node the time of the longest path from its start to the end."""
    rank = list(us)
    for v in reversed(range(len(us))):
        rank[v] += max((rank[w] for w in bits(dag.succs[v])), default=0.0)
    return rank

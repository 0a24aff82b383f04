"""Wavefront: launch order by depth, longest first. After Rammer (OSDI 2020, section 4.2).

Rammer packs the waves of a breadth-first walk into persistent kernels and starts a new one where
that is faster. A CUDA graph has edges instead: a node starts when its own inputs are done and no
wave has to be closed, so appending a wave always wins and what remains of the policy is its order
(Opara's evaluation does the same). Within a wave the longest node is issued first: on the stream
of an input that nobody has followed yet, else on one whose work is all done before, else on a new
one, else on the one with the least work so far.

    wave 0     a         a @0
    wave 1   b   c       b @0    c @1 after a     (b is the longer one)
    wave 2     d         d @0 after c
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
    """Tasks in order of depth, the longest of a depth first, on at most `max_streams` streams."""
    dag = dag_of(tasks)
    return plan(dag, times(tasks, costs), limits.max_streams)


def plan(dag: Dag, us: Sequence[float], max_streams: int) -> Schedule:
    """The waves on at most `max_streams` streams, given each node's microseconds."""
    depth, ancestors = depths(dag), dag.ancestors()
    order = sorted(range(len(us)), key=lambda v: (depth[v], -us[v], v))
    stream_of = [0] * len(us)
    tail: list[int] = []
    work: list[float] = []
    for v in order:
        every = range(len(tail))
        follows = [s for s in every if dag.preds[v] >> tail[s] & 1]
        done = [s for s in every if ancestors[v] >> tail[s] & 1]
        if not (follows or done) and len(tail) < max_streams:
            done = [len(tail)]
            tail.append(v)
            work.append(0.0)
        unused = [s for s in every if depth[tail[s]] < depth[v]]
        stream = min(follows or done or unused or every, key=lambda s: (work[s], s))
        stream_of[v], tail[stream] = stream, v
        work[stream] += us[v]
    return Schedule("wavefront", launches(dag, order, stream_of))


def depths(dag: Dag) -> list[int]:
    """For each node the number of nodes on the longest path to it."""
    depth: list[int] = []
    for preds in dag.preds:
        depth.append(max((depth[u] + 1 for u in bits(preds)), default=0))
    return depth

"""Stages as a schedule: a dag and its stages of groups -> launches.

A group is an ordered run of nodes for one stream, groups of a stage run side by side. IOS puts a
barrier between stages. A captured graph has no barrier, only edges, so by default a stage is just
an order and a stream assignment, and a node may start before the stage before it has ended. With
`barrier` the first node of a group waits for the last of every group before it, as in IOS.

    stages {a}, {b | c}, {d}               a @0
                                           b @0
         +--> b                            c @1 after a
    a -->|         d (alone)               d @0            with barrier: d @0 after c
         +--> c

A group goes to the stream where one of its inputs has just run, else to the lowest free one. The
host issues the first node of each group, then the second of each, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from anabranch.ir.dag import Dag
from anabranch.ir.schedule import Schedule
from anabranch.schedule.event_waits import launches

StageGroup = tuple[int, ...]
Stage = tuple[StageGroup, ...]


def stage_schedule(
    scheduler: str, dag: Dag, stages: Sequence[Stage], barrier: bool = False
) -> Schedule:
    """The stages, which must respect the edges, as launches on as many streams as the widest."""
    order = [v for stage in stages for turn in zip_longest(*stage) for v in turn if v is not None]
    stream_of = _streams(dag, stages)
    fenced = _fenced(dag, stages) if barrier else dag
    return Schedule(
        scheduler,
        launches(fenced, order, stream_of),
        tuple(tuple(tuple(dag.names[v] for v in group) for group in stage) for stage in stages),
    )


def _streams(dag: Dag, stages: Sequence[Stage]) -> list[int]:
    stream_of = [0] * len(dag.names)
    tail: dict[int, int] = {}
    for stage in stages:
        free = list(range(max(len(stage), len(tail))))
        taken: dict[StageGroup, int] = {}
        for group in stage:
            needed = 0
            for v in group:
                needed |= dag.preds[v]
            follows = [s for s in free if s in tail and needed >> tail[s] & 1]
            if follows:
                taken[group] = follows[0]
                free.remove(follows[0])
        for group in stage:
            stream = taken[group] if group in taken else free.pop(0)
            for v in group:
                stream_of[v] = stream
            tail[stream] = group[-1]
    return stream_of


def _fenced(dag: Dag, stages: Sequence[Stage]) -> Dag:
    """The dag with an edge from the end of each group to the begin of each group after it."""
    preds, succs = list(dag.preds), list(dag.succs)
    for stage in stages:
        for group in stage:
            for u, v in pairwise(group):
                preds[v] |= 1 << u
                succs[u] |= 1 << v
    for earlier, later in pairwise(stages):
        for first in later:
            for last in earlier:
                preds[first[0]] |= 1 << last[-1]
                succs[last[-1]] |= 1 << first[0]
    return Dag(dag.names, tuple(preds), tuple(succs))

"""Nimble: as much concurrency as the graph has. Kwon et al., NeurIPS 2020, Algorithm 1.

(1) minimum equivalent graph; (2, 3) maximum matching of its edges; (4) matched edges form chains;
(5) a stream per chain. Any two unordered nodes are on different streams, with the fewest waits
among such assignments: edges minus matched edges. As in Nimble's code, chains that do not overlap
then share a stream: a second matching, on the closure of "the end of chain i reaches the begin of
chain j". That brings GoogLeNet from 28 streams to 4.

Unlike the code, waits are those of `event_waits`, not one for every cross-stream edge of the raw
graph, and above `max_streams` chains are put together.

    1 -+-> 2 ----> 5 -> 7       matched 1-2 2-5 3-6 4-7
       +-> 3 -+--> 5            streams {1,2,5} {3,6} {4,7}
       |      +--> 6            waits 1->3 1->4 3->5 4->6 5->7: 9 edges - 4 matched
       +-> 4 -+--> 6
              +--> 7
"""

from __future__ import annotations

from anabranch.ir.dag import Dag, dag_of, maximum_matching, minimum_equivalent
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.event_waits import launches
from anabranch.schedule.streams import fewer


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Streams by a minimum path cover of the reduced graph, waits where paths meet (Algorithm 1);
    costs are not asked."""
    return plan(dag_of(tasks), limits.max_streams)


def plan(dag: Dag, max_streams: int) -> Schedule:
    """Nimble's streams, at most so many, the dag's own order."""
    order = range(len(dag.names))
    stream_of = [0] * len(dag.names)
    for stream, chain in enumerate(repacked(dag, chains(dag))):
        for v in chain:
            stream_of[v] = stream
    if len(set(stream_of)) > max_streams:
        stream_of = fewer(dag, order, stream_of, max_streams)
    return Schedule("nimble", launches(dag, order, stream_of))


def chains(dag: Dag) -> list[list[int]]:
    """Nimble's Algorithm 1: the chains of a maximum matching, by their first node."""
    return _linked(len(dag.names), maximum_matching(minimum_equivalent(dag).succs))


def repacked(dag: Dag, chains: list[list[int]]) -> list[list[int]]:
    """Chains of which one ends before the other begins, joined where that leaves the fewest."""
    descendants = dag.descendants()
    reaches = tuple(
        sum(1 << j for j, later in enumerate(chains) if descendants[chain[-1]] >> later[0] & 1)
        for chain in chains
    )
    packs = _linked(len(chains), maximum_matching(reaches))
    return [[v for i in pack for v in chains[i]] for pack in packs]


def _linked(n: int, following: dict[int, int]) -> list[list[int]]:
    followers = set(following.values())
    result = []
    for first in range(n):
        if first not in followers:
            chain = [first]
            while chain[-1] in following:
                chain.append(following[chain[-1]])
            result.append(chain)
    return result

"""Which values may be computed again: a graph by numbers and a border -> sets of nodes.

    everything kept      nothing runs again
    by price             what takes least time for its bytes, as much as the limit asks for
    minimum cut          the fewest bytes across the border, if no product or loop runs again
    segments             what crosses the ends of 2, 3, ... pieces of what is before the border is
                         kept, all else runs again: memory falls with the root of the depth

The first three are what compilers of training steps choose from (AOTAutograd's partitioners), the
last is Chen's: training deep nets with sublinear memory cost (2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from anabranch.rewrite.remat.live_bytes import LiveBytes

MOST_SEGMENTS = 12
SOURCE, SINK = "source", "sink"


def crossing(live: LiveBytes, border: int) -> list[int]:
    """Nodes that may run again and whose results are read behind the border."""
    readers = live.readers()
    return [
        i
        for i in sorted(live.repeatable)
        if i <= border and live.nbytes[i] and any(reader > border for reader in readers[i])
    ]


def by_price(
    live: LiveBytes, border: int, us: Sequence[float], fits: Callable[[Collection[int]], bool]
) -> frozenset[int]:
    """The fewest of those that cross, cheapest for their bytes first, that fit; all where none
    do."""
    ranked = sorted(crossing(live, border), key=lambda i: (us[i] / live.nbytes[i], i))
    low, high = 0, len(ranked)
    while low < high:
        middle = (low + high) // 2
        if fits(ranked[:middle]):
            high = middle
        else:
            low = middle + 1
    return frozenset(ranked[:high])


def minimum_cut(live: LiveBytes, border: int, heavy: Collection[int]) -> frozenset[int]:
    """All that runs again where the fewest bytes cross the border; of `heavy` nothing does."""
    graph: Any = nx.DiGraph()
    graph.add_nodes_from((SOURCE, SINK))
    readers = live.readers()
    early = [i for i in range(border + 1) if live.roots[i] == i]
    for i in early:
        graph.add_edge((i, "in"), (i, "out"), capacity=live.nbytes[i])
        if i in heavy or i not in live.repeatable:
            graph.add_edge(SOURCE, (i, "in"))
        for reader in readers[i]:
            if reader > border:
                graph.add_edge((i, "out"), SINK)
            elif live.roots[reader] == reader:
                graph.add_edge((i, "out"), (reader, "in"))
    # Who needs a value to run again needs it behind the border: nothing flows from there, so what
    # is on the sink's side is what must be made there.
    _, (_, behind) = nx.minimum_cut(graph, SOURCE, SINK, flow_func=boykov_kolmogorov)
    return frozenset(i for i in early if (i, "in") in behind and i in live.repeatable)


def segments(live: LiveBytes, border: int) -> Iterator[frozenset[int]]:
    """For each number of pieces, of about equal bytes, all but what crosses their ends."""
    readers, total = live.readers(), sum(live.nbytes[: border + 1])
    early = [i for i in sorted(live.repeatable) if i <= border]
    for count in range(2, min(MOST_SEGMENTS, math.isqrt(len(early)) + 2) + 1):
        ends, done, kept = list[int](), 0, set[int]()
        for i in range(border + 1):
            done += live.nbytes[i]
            if len(ends) < count - 1 and done * count >= total * (len(ends) + 1):
                ends.append(i)
        for end in ends:
            kept |= {i for i in early if i <= end and any(end < r <= border for r in readers[i])}
        yield frozenset(early) - kept

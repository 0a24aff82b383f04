"""The fewest event waits: dag, launch order, stream of each node -> launches.

A wait is dropped when stream order and the other waits imply it, however many steps that takes.
Order, streams and edges together fix which launch must come before which, and the least set of
relations with the same closure is unique (transitive reduction of a DAG); waits are what it holds
across streams. Nimble's code and Opara wait on every cross-stream edge instead.

    edges a->b a->c b->c b->d c->d         a @0
    a, b on stream 0; c, d on stream 1     b @0
                                           c @1 after b        (a ends before b)
                                           d @1                (b before c, c before d)

>>> dag = Dag.of(("a", "b", "c", "d"), [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)])
>>> [launch.waits for launch in launches(dag, range(4), (0, 0, 1, 1))]
[(), (), ('b',), ()]
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits, waited
from anabranch.ir.schedule import Launch


def launches(dag: Dag, order: Sequence[int], stream_of: Sequence[int]) -> tuple[Launch, ...]:
    """The launches in this order, which must respect the edges; streams are numbered anew as they
    first appear, so that equal schedules are equal whoever made them."""
    number: dict[int, int] = {}
    result: list[Launch] = []
    for v, waits in zip(order, waited(dag, order, stream_of), strict=True):
        stream = number.setdefault(stream_of[v], len(number))
        result.append(Launch(dag.names[v], stream, tuple(dag.names[u] for u in bits(waits))))
    return tuple(result)

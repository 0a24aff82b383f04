"""Fewer streams: a stream assignment -> one that reuses finished streams, at most so many.

Chains are kept whole. A chain that begins takes over a stream whose work is all done before (its
last node is an ancestor: no concurrency is lost); else a new stream; once there is none left, the
stream with the fewest nodes still to launch, of these the one that was given the fewest.

          +--> b          a, b on stream 0; c on stream 1; d begins a third chain and
    a --> |               takes stream 1 over, because c comes before d anyway
          +--> c --> d

>>> fewer(Dag.of(("a", "b", "c", "d"), [(0, 1), (0, 2), (2, 3)]), range(4), (0, 0, 1, 2), 16)
[0, 0, 1, 1]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anabranch.ir.dag import Dag


def fewer(dag: Dag, order: Sequence[int], stream_of: Sequence[int], max_streams: int) -> list[int]:
    """For each node its new stream; nodes that shared one still do."""
    ancestors = dag.ancestors()
    length = Counter(stream_of)
    home: dict[int, int] = {}
    tail: list[int] = []
    pending: list[int] = []
    total: list[int] = []
    for v in order:
        old = stream_of[v]
        if old not in home:
            done = [s for s, t in enumerate(tail) if not pending[s] and ancestors[v] >> t & 1]
            if done:
                home[old] = done[-1]
            elif len(tail) < max_streams:
                home[old] = len(tail)
                tail.append(v)
                pending.append(0)
                total.append(0)
            else:
                home[old] = min(range(len(tail)), key=lambda s: (pending[s], total[s]))
            pending[home[old]] += length[old]
            total[home[old]] += length[old]
        tail[home[old]] = v
        pending[home[old]] -= 1
    return [home[stream] for stream in stream_of]

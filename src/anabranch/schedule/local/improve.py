"""Improve: a placing -> a better one, whole or window by window, within so many evaluations.

A dag of a few dozen nodes is annealed as a whole. A window of the launch order of a larger one is
annealed alone: a few nodes move, some before and after them stand still and are evaluated with
them, so that what overlaps is seen. What a window found is kept only if the whole gets faster:

    order    a b c d e f g h i j k l m n o p q r s t
                   [ still | ----- move ---- | still ]
                                       [ still | ---- move ...

A run of a legal launch order holds all that lies between its nodes, so it is a dag of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.dag import Dag
from anabranch.schedule.local.anneal import ROUNDING_US, annealed, priced
from anabranch.schedule.local.assignment import Placing
from anabranch.schedule.local.evaluate import Latency

ANNEALED_NODES = 32
"""Nodes of a dag that is annealed as one."""
MOVE, STILL = 24, 12
WINDOW_EVALUATIONS = 300
PASSES = 8
COLD, WARM = 0.6, 6.0
"""Temperatures to begin with, in forks: near the start, and anywhere."""

LatencyOf = Callable[[Sequence[int]], Latency]
"""Some nodes, in rising order -> the latency of their placings alone."""


def improved(
    dag: Dag,
    starts: Sequence[Placing],
    latency_of: LatencyOf,
    work: int,
    max_streams: int,
    fork_us: float,
    until: Deadline = ENDLESS,
) -> list[Placing]:
    """Placings no slower than the first start, best first, equal ones once; `work`: evaluations
    times the nodes that each looks at."""
    n = len(dag.names)
    cost = priced(dag, latency_of(range(n)), fork_us)
    placings = list(starts[:1])
    if n <= ANNEALED_NODES:
        evaluations = max(1, work // (2 * n))
        for start, heat in zip((starts[0], starts[-1]), (COLD, WARM), strict=True):
            warm_us = heat * fork_us
            placings.append(
                annealed(dag, start, cost, evaluations, max_streams, warm_us, until=until)
            )
    else:
        placings.append(_by_windows(dag, starts[0], latency_of, work, max_streams, fork_us, until))
    # Of equally fast ones the start comes first: known schedulers keep their chains in line.
    return sorted(dict.fromkeys(placings), key=lambda placing: round(cost(placing), 6))


def _by_windows(
    dag: Dag,
    placing: Placing,
    latency_of: LatencyOf,
    work: int,
    max_streams: int,
    fork_us: float,
    until: Deadline,
) -> Placing:
    """Passes over all windows, every other one half a window aside, until nothing gets faster."""
    n = len(placing.order)
    cost = priced(dag, latency_of(range(n)), fork_us)
    us = cost(placing)
    idle = 0
    for turn in range(PASSES):
        idle += 1
        for at in range(-(MOVE // 2) if turn % 2 else 0, n, MOVE):
            if work <= 0 or idle > 2 or until.over():
                return placing
            low, high = max(0, at - STILL), min(n, at + MOVE + STILL)
            work -= WINDOW_EVALUATIONS * (high - low) + n
            tried = _window(
                dag, placing, (low, max(0, at), at + MOVE, high), latency_of, max_streams, fork_us
            )
            tried_us = cost(tried)
            if tried_us < us - ROUNDING_US:
                placing, us, idle = tried, tried_us, 0
    return placing


def _window(
    dag: Dag,
    placing: Placing,
    window: tuple[int, int, int, int],
    latency_of: LatencyOf,
    max_streams: int,
    fork_us: float,
) -> Placing:
    """The placing with the inner part of a window annealed; where the window and its inner part
    begin and end."""
    low, first, last, high = window
    run = placing.order[low:high]
    free = set(placing.order[first:last])
    nodes = sorted(run)
    place = {v: i for i, v in enumerate(nodes)}
    start = Placing(tuple(place[v] for v in run), tuple(placing.stream_of[v] for v in nodes))
    part = dag.restrict(sum(1 << v for v in nodes))
    better = annealed(
        part,
        start,
        priced(part, latency_of(nodes), fork_us),
        WINDOW_EVALUATIONS,
        max_streams,
        COLD * fork_us,
        movable=[place[v] for v in nodes if v in free],
    )
    stream_of = list(placing.stream_of)
    for v, stream in zip(nodes, better.stream_of, strict=True):
        stream_of[v] = stream
    inner = tuple(nodes[i] for i in better.order)
    return Placing(placing.order[:low] + inner + placing.order[high:], tuple(stream_of))

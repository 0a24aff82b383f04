"""Annealing: a placing and a latency -> a better placing. Kirkpatrick et al., Science 1983.

A step that makes it slower by d is taken with probability exp(-d / temperature); the temperature
falls from about the cost of a fork to nothing, so at first branches may leave good places, at last
only gains are taken. Steps are drawn from fixed dice and counted, so that the same graph gives the
same placing; the clock can only end the search early.

Models err most about the price of edges. So a task that does not follow one of its inputs costs a
little more than the model says (`priced`), and of equally fast placings `tidied` takes one with
fewer waits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from random import Random

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.dag import Dag, bits, waited
from anabranch.schedule.local.assignment import AssignmentMoves, Placing, breaks
from anabranch.schedule.local.evaluate import Latency

SEED = 20
ROUNDING_US = 1e-6  # microseconds; less is rounding
BREAK = 0.05
"""The cost of a task off its inputs' streams beyond the model, in forks."""
LOOK = 64  # evaluations between two looks at the clock
MET = 4_096  # placings whose costs are remembered


def annealed(
    dag: Dag,
    start: Placing,
    cost: Callable[[Placing], float],
    evaluations: int,
    max_streams: int,
    warm_us: float,
    movable: Sequence[int] | None = None,
    until: Deadline = ENDLESS,
) -> Placing:
    """The cheapest placing met within so many evaluations. `warm_us`: the temperature at first;
    `movable`: the nodes that may move, all if not given; `until`: when to stop at the latest."""
    dice = Random(SEED)
    steps = AssignmentMoves(
        dag, range(len(dag.names)) if movable is None else movable, max_streams, dice
    )
    here = best = start
    us = best_us = cost(start)
    cooling = (1e-2) ** (1 / max(1, evaluations))
    temperature = warm_us
    for turn in range(evaluations):
        temperature *= cooling
        if turn % LOOK == 0 and until.over():
            break
        tried = steps.step(here)
        if tried == here:
            continue
        tried_us = cost(tried)
        if tried_us <= us or dice.random() < math.exp((us - tried_us) / temperature):
            here, us = tried, tried_us
            if us < best_us - ROUNDING_US:
                best, best_us = here, us
    return best


def priced(dag: Dag, latency: Latency, fork_us: float) -> Callable[[Placing], float]:
    """The latency of a placing, and a little for each break. Of few nodes there are few placings,
    which a search meets again and again."""
    break_us = BREAK * fork_us

    @functools.lru_cache(maxsize=MET)
    def cost(placing: Placing) -> float:
        return latency(placing.order, placing.stream_of) + break_us * breaks(dag, placing)

    return cost


def tidied(
    dag: Dag, placing: Placing, latency: Latency, evaluations: int, until: Deadline = ENDLESS
) -> Placing:
    """Faster, or as fast with fewer waits: each node tries the streams of its neighbours."""
    us, waits = latency(placing.order, placing.stream_of), waits_of(dag, placing)
    gained = True
    while gained:
        gained = False
        for v in placing.order:
            near = bits(dag.preds[v] | dag.succs[v])
            for stream in sorted({placing.stream_of[u] for u in near} - {placing.stream_of[v]}):
                if evaluations <= 0 or until.over():
                    return placing
                evaluations -= 1
                stream_of = (*placing.stream_of[:v], stream, *placing.stream_of[v + 1 :])
                tried = Placing(placing.order, stream_of)
                tried_us, tried_waits = latency(tried.order, stream_of), waits_of(dag, tried)
                if tried_us < us - ROUNDING_US or (
                    tried_us <= us + ROUNDING_US and tried_waits < waits
                ):
                    placing, us, waits, gained = tried, tried_us, tried_waits, True
    return placing


def waits_of(dag: Dag, placing: Placing) -> int:
    """How many event waits between streams the placing needs."""
    return sum(mask.bit_count() for mask in waited(dag, placing.order, placing.stream_of))

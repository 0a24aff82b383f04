"""Seeds: where a search begins. A dag and what its nodes weigh -> placings of known schedulers.

critical                    under 1 to 16 streams, for forks at their price and at four times it
wavefront, nimble, opara    as they are
ios                         of dags that are small enough for an exact one
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from anabranch.ir.dag import Dag
from anabranch.ir.protocols import Limits
from anabranch.ir.schedule import Schedule
from anabranch.schedule import list_scheduling
from anabranch.schedule.baselines import nimble, opara, wavefront
from anabranch.schedule.ios import scheduler as ios
from anabranch.schedule.local.assignment import Placing, placing_of
from anabranch.schedule.streams import fewer
from anabranch.trace import Trace

STREAMS = (1, 2, 3, 4, 6, 8, 16)
DEAR = 4.0
"""A second price of forks: with it fewer branches leave their line."""
IOS_NODES = 24


@dataclass(frozen=True, slots=True)
class Weights:
    """Of each node: microseconds, share of the machine, Opara's demand, whether it computes."""

    us: Sequence[float]
    shares: Sequence[float]
    demands: Sequence[float]
    compute: Sequence[bool]

    def of(self, nodes: Sequence[int]) -> Weights:
        """Those of some nodes."""
        return Weights(
            [self.us[v] for v in nodes],
            [self.shares[v] for v in nodes],
            [self.demands[v] for v in nodes],
            [self.compute[v] for v in nodes],
        )


def seeds(dag: Dag, weights: Weights, limits: Limits) -> list[Placing]:
    """Different placings, in a fixed order; the first is sequential."""
    placings: dict[Placing, None] = {}
    for schedule in _schedules(dag, weights, limits):
        placings.setdefault(placing_of(schedule, dag))
    order = opara.launch_order(dag, weights.demands, weights.compute)
    stream_of = fewer(dag, order, opara.allocate(dag, order), limits.max_streams)
    placings.setdefault(Placing(tuple(order), tuple(stream_of)))
    return list(placings)


def _schedules(dag: Dag, weights: Weights, limits: Limits) -> Iterator[Schedule]:
    us, most = list(weights.us), limits.max_streams
    for streams in dict.fromkeys(min(streams, most) for streams in STREAMS):
        yield list_scheduling.plan(dag, us, streams, limits.spec.fork_us)
        yield list_scheduling.plan(dag, us, streams, DEAR * limits.spec.fork_us)
    yield wavefront.plan(dag, us, most)
    yield nimble.plan(dag, most)
    if len(us) <= IOS_NODES:
        yield ios.plan(dag, us, list(weights.shares), replace(limits, trace=Trace(quiet=True)))

"""The resources that kernels take of the machine, as the model of simultaneous kernels sees them.

A `Demand` is what one takes alone; `Kernels` is all of a graph by column, with what the machine's
calibration makes of it: time without processors, turns of CTAs, pressure. Out of it
`costs.gpu_simulator` makes latencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec

TURNS = 4
"""A kernel of more turns is taken as one of fewer and longer ones."""
ROW = 8
"""How often a task runs in a row when it is timed alone."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a kernel takes alone: microseconds and launches; its CTAs and how many of them a
    processor holds; arithmetic and traffic at peak rates; what a CTA waits for of the traffic, None
    for all of it; whether it goes on from a launch of its own stream alone (`costs.work.bound`)."""

    us: float
    launches: int
    ctas: int
    per_sm: int
    busy_us: float = 0.0
    moved_us: float = 0.0
    awaited_us: float | None = None
    bound: bool = False


@dataclass(frozen=True, slots=True)
class Kernels:
    """By task: `ahead`, what a launch behind it has before it in another lane; `lead`, its time
    without processors; `turn`, the time of one turn of CTAs; `ctas`; `held`, what one takes of a
    processor; and per CTA its demand of bandwidth, of arithmetic, and how much of a kernel that is
    on every processor it is; `bound`, as of a demand."""

    ahead: list[float]
    lead: list[float]
    turn: list[float]
    ctas: list[int]
    held: list[float]
    bandwidth: list[float]
    arithmetic: list[float]
    cover: list[float]
    bound: list[bool]
    processors: float

    def part(self, nodes: Sequence[int]) -> Kernels:
        """Those of these tasks."""
        columns = [[column[v] for v in nodes] for column in self.columns()]
        ahead, lead, turn, ctas, held, bandwidth, arithmetic, cover, bound = columns
        counts, flags = list(map(int, ctas)), list(map(bool, bound))
        return Kernels(
            ahead, lead, turn, counts, held, bandwidth, arithmetic, cover, flags, self.processors
        )

    def columns(self) -> tuple[Sequence[float], ...]:
        """The columns in the order in which the simulator's core reads them."""
        return (
            self.ahead,
            self.lead,
            self.turn,
            self.ctas,
            self.held,
            self.bandwidth,
            self.arithmetic,
            self.cover,
            self.bound,
        )


def evicted(demands: Sequence[Demand], spec: TargetSpec) -> float:
    """The part of what a run reads that it finds no more in the cache, having been there in the
    last one: nothing while all its traffic fits, all from twice the size of the cache on."""
    if not spec.l2_bytes:
        return 1.0
    traffic = sum(min(demand.moved_us, demand.us) for demand in demands) * 1e-6 * spec.bandwidth
    return min(1.0, max(0.0, traffic / spec.l2_bytes - 1.0))


def kernels_of(
    dag: Dag, demands: Sequence[Demand], spec: TargetSpec, calibration: Calibration
) -> Kernels:
    """The tasks as columns, times in microseconds; a kernel's own time is split into its launch and
    the turns of its CTAs."""
    kernels = Kernels([], [], [], [], [], [], [], [], [], float(spec.sms))
    cold = calibration.cold * evicted(demands, spec)
    for demand, preds in zip(demands, dag.preds, strict=True):
        own = demand.us - min(demand.us / 2, calibration.start_us / ROW)
        lead = min(own, calibration.launch_us * demand.launches)
        body = own - lead
        moved = min(demand.moved_us, demand.us)  # of a table of embeddings little is read
        awaited = moved if demand.awaited_us is None else min(demand.awaited_us, moved)
        late = cold * _not_hidden(awaited, calibration.hidden_us) if preds else 0.0
        at_once = spec.sms * demand.per_sm
        ctas = max(1, demand.ctas)
        ctas = math.ceil(ctas / max(1, math.ceil(ctas / (at_once * TURNS))))
        resident = min(ctas, at_once)
        scale = 1.0 / (body * resident) if body > 0 else 0.0
        longer = max(0.0, own + late - calibration.short_us)
        kernels.ahead.append(min(calibration.lane_us, longer))
        kernels.lead.append(lead + late)
        kernels.turn.append(body / math.ceil(ctas / at_once))
        kernels.ctas.append(ctas)
        kernels.held.append(1.0 / demand.per_sm)
        kernels.bandwidth.append(min(1.0 / resident, moved / calibration.bandwidth * scale))
        kernels.arithmetic.append(
            min(1.0 / resident, demand.busy_us / calibration.arithmetic * scale)
        )
        kernels.cover.append(min(1.0, resident / spec.sms) / resident)
        kernels.bound.append(demand.bound)
    return kernels


def _not_hidden(traffic_us: float, hidden_us: float) -> float:
    """What of a task's traffic it waits for, both in microseconds at the peak rate."""
    return traffic_us / (1.0 + traffic_us / hidden_us) if hidden_us else traffic_us

"""Outlook: what a graph would take with its tasks side by side, by the model of `costs.corun`.

    pieces, each after those it waits for --list schedule--> order, streams --co-run model--> us

    a 3.0 --+--> b 2.9 --+--> d 1.2      mixed price, alpha 8: 8 * 7.1 + 10.0, merged 8 * 7.3 + 7.5
            +--> c 2.9 --+               outlook: c starts a fork later, and shares the machine with
                                         b; merged, there is neither fork nor company

The mixed price of a graph ranks thousands of graphs, and is the same whoever starts a branch: it
knows neither forks nor launches, nor what fills the machine. Those few that it finds best are asked
what they would take under the schedule that a trial gets: the better of one stream and of list
scheduling on the critical path.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.autograph.cuts import Cut
from anabranch.costs.corun import Simulator
from anabranch.costs.forecast import calibration_of, demand_of
from anabranch.costs.work import Work
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec
from anabranch.schedule.critical import placed

STREAMS = 8
"""A list schedule may use so many."""


def outlook(cut: Cut, us: Sequence[float], works: Sequence[Work], spec: TargetSpec) -> float:
    """Microseconds. `us`, `works`: of each piece, what it takes alone, and of the machine."""
    edges = [(u, v) for v, before in enumerate(cut.preds) for u in before]
    dag = Dag.of(tuple(map(str, range(len(us)))), edges)
    demands = [demand_of(own, work) for own, work in zip(us, works, strict=True)]
    simulator = Simulator.of(dag, demands, spec, calibration_of(spec))
    row = range(len(us))
    order, streams = placed(dag, us, STREAMS, spec.fork_us)
    return min(simulator.latency(row, [0] * len(us)), simulator.latency(order, streams))

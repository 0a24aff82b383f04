"""Outlook: what a graph would take with its tasks side by side, by the model of
`costs.gpu_simulator`.

    pieces, each after those it waits for --list schedule--> order, streams --co-run model--> us

    a 3.0 --+--> b 2.9 --+--> d 1.2      mixed price, alpha 8: 8 * 7.1 + 10.0, merged 8 * 7.3 + 7.5
            +--> c 2.9 --+               outlook: c starts a fork later, and shares the machine with
                                         b; merged, there is neither fork nor company

The mixed price of a graph ranks thousands of graphs, and is the same whoever starts a branch: it
knows neither forks nor launches, nor what fills the machine. Those few that it finds best are asked
what they would take under the schedule that a trial gets (`schedule.parallel_forecast`).
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.costs.work import Work
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec
from anabranch.schedule.parallel_forecast import outlook as side_by_side
from anabranch.search.cost.task_cuts import TaskCut


def outlook(cut: TaskCut, us: Sequence[float], works: Sequence[Work], spec: TargetSpec) -> float:
    """Microseconds. `us`, `works`: of each piece, what it takes alone, and of the machine."""
    edges = [(u, v) for v, before in enumerate(cut.preds) for u in before]
    dag = Dag.of(tuple(map(str, range(len(us)))), edges)
    return side_by_side(dag, us, works, spec)

"""What searches ask: tasks, costs -> the latency of placings, of all tasks or of some alone.

    evaluate = Evaluator(tasks, costs, spec)
    latency = evaluate.latency((4, 5, 6))      a block of three tasks, as if it were all there is
    latency((0, 1, 2), (0, 1, 0))  ->  7.25    launch order and streams, by place in the block

A search gets no other word from the machine than this function, so that another model of kernels
that run side by side changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from anabranch.costs.forecast import Forecast
from anabranch.costs.work import work
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.schedule.weigh import times

Latency = Callable[[Sequence[int], Sequence[int]], float]
"""Launch order, stream of each task -> microseconds."""


class Evaluator:
    """Latencies of the tasks of one graph, by number."""

    def __init__(self, tasks: TaskGraph, costs: Costs, spec: TargetSpec) -> None:
        self.dag = dag_of(tasks)
        self.us = times(tasks, costs)
        self._works = [work(task, spec) for task in tasks.tasks]
        self._fork_us = spec.fork_us

    def latency(self, nodes: Sequence[int]) -> Latency:
        """For placings of these nodes, given in rising order, alone."""
        return Forecast(
            preds_inside(self.dag, nodes),
            [self.us[v] for v in nodes],
            [self._works[v] for v in nodes],
            self._fork_us,
        )

    def signature(self, nodes: Sequence[int]) -> Hashable:
        """Equal for nodes whose placings have equal latencies."""
        return (
            preds_inside(self.dag, nodes),
            tuple(self.us[v] for v in nodes),
            tuple(self._works[v] for v in nodes),
        )


def preds_inside(dag: Dag, nodes: Sequence[int]) -> tuple[int, ...]:
    """For each of the nodes its predecessors among them, as masks over their places."""
    place = {v: i for i, v in enumerate(nodes)}
    return tuple(sum(1 << place[u] for u in bits(dag.preds[v]) if u in place) for v in nodes)

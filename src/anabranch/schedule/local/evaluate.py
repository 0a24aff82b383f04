"""What searches ask: tasks, costs -> the latency of placings, of all tasks or of some alone.

    evaluate = ScheduleEvaluator(tasks, costs, spec)
    latency = evaluate.latency((4, 5, 6))      a block of three tasks, as if it were all there is
    latency((0, 1, 2), (0, 1, 0))  ->  7.25    launch order and streams, by place in the block

A search gets no other word from the machine than this function, so that another model of kernels
that run side by side changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from anabranch.costs.forecast import evaluator
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Costs
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph
from anabranch.schedule.task_weights import times

Latency = Callable[[Sequence[int], Sequence[int]], float]
"""Launch order, stream of each task -> microseconds."""


class ScheduleEvaluator:
    """Latencies of the tasks of one graph, by number."""

    def __init__(self, tasks: TaskGraph, costs: Costs, spec: TargetSpec) -> None:
        self.dag = dag_of(tasks)
        self.us = times(tasks, costs)
        self._simulator = evaluator(tasks, costs, spec)

    def latency(self, nodes: Sequence[int]) -> Latency:
        """For placings of these nodes, given in rising order, alone."""
        return self._simulator.part(nodes).latency

    def signature(self, nodes: Sequence[int]) -> Hashable:
        """Equal for nodes whose placings have equal latencies."""
        return self._simulator.part(nodes).signature()

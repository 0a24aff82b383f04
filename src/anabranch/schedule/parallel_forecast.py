"""Outlook: what tasks would take side by side, by the model of `costs.gpu_simulator`.

    tasks, each after those it waits for --list schedule--> order, streams --co-run model--> us

    a 3.0 --+--> b 2.9 --+--> d 1.2      sum 10.0; one after another they take as long
            +--> c 2.9 --+               outlook 7.6 where a fork takes 0.5 and both fit beside
                                         each other: c starts a fork later

The better of one stream and of list scheduling on the critical path: a look ahead that costs some
milliseconds, for whoever compares many sets of tasks. What is kept is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.costs.forecast import calibration_of, demand_of
from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.work import Work, work
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.schedule.list_scheduling import placed

STREAMS = 8
"""A list schedule may use so many."""


def outlook(
    dag: Dag,
    us: Sequence[float],
    works: Sequence[Work],
    spec: TargetSpec,
    streams: int = STREAMS,
) -> float:
    """Microseconds. `us`, `works`: of each node, what it takes alone, and of the machine."""
    demands = [demand_of(own, work) for own, work in zip(us, works, strict=True)]
    simulator = Simulator.of(dag, demands, spec, calibration_of(spec))
    row = range(len(us))
    order, stream_of = placed(dag, us, min(streams, STREAMS), spec.fork_us)
    return min(simulator.latency(row, [0] * len(us)), simulator.latency(order, stream_of))


def outlook_of(
    tasks: TaskGraph, us: Callable[[Task], float], spec: TargetSpec, streams: int = STREAMS
) -> float:
    """The same of tasks with kernels."""
    works = [work(task, spec) for task in tasks.tasks]
    return outlook(dag_of(tasks), list(map(us, tasks.tasks)), works, spec, streams)

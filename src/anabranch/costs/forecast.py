"""Tasks, what each takes alone -> what a schedule of them would take, by the model of
`gpu_simulator`.

    forecast(tasks, schedule, costs.task, spec)    --> Timeline, for people and for a first choice
    simulator = evaluator(tasks, costs, spec)      prepared once, for searches
    simulator.latency((0, 1, 2, 3), (0, 0, 1, 0))  --> 12.4    launch order, stream of each task
    simulator.part((4, 5, 6)).latency(...)         tasks 4 to 6, as if they were all there is

The numbers of the machine are the spec's calibration; of one without, that a fork costs something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.resource_demand import Demand
from anabranch.costs.work import Work, work
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost, Costs
from anabranch.ir.schedule import CostSource, Schedule, Span, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph

CostOf = Callable[[Task], Cost]
WorkOf = Callable[[Task], Work]


def evaluator(tasks: TaskGraph, costs: Costs, spec: TargetSpec) -> Simulator:
    """The latencies of all schedules of these tasks."""
    each = [costs.task(task) for task in tasks.tasks]
    return _simulator(tasks, each, streaming(spec) if costs.cold else spec, None)


def forecast(
    tasks: TaskGraph,
    schedule: Schedule,
    cost_of: CostOf,
    spec: TargetSpec,
    work_of: WorkOf | None = None,
) -> Timeline:
    """The predicted timeline, spans in launch order. `work_of` saves asking twice for the demands
    of a task. The source is "recorded" if every task's cost is known from a machine (recorded or
    measured), else "estimated"; never "measured", for the whole was not."""
    costs = [cost_of(task) for task in tasks.tasks]
    simulator = _simulator(tasks, costs, spec, work_of)
    outcome = simulator.run(simulator.captured(schedule, [task.name for task in tasks.tasks]))
    timed = zip(schedule.launches, outcome.starts, outcome.ends, strict=True)
    spans = tuple(Span(launch.task, launch.stream, start, end) for launch, start, end in timed)
    return Timeline(spans, outcome.latency, _source(costs))


def begun(spec: TargetSpec) -> TargetSpec:
    """The machine as a part of a graph finds it: what waits for nothing in the part starts like
    others that wait for one, and not like the launches that begin a run."""
    calibration = calibration_of(spec)
    return replace(
        spec,
        calibration=replace(calibration, split_us=calibration.fork_us, root_us=calibration.fork_us),
    )


def streaming(spec: TargetSpec) -> TargetSpec:
    """The machine as tasks find it whose own times are those of weights that come from memory."""
    return replace(spec, calibration=replace(calibration_of(spec), cold=0.0))


def calibration_of(spec: TargetSpec) -> Calibration:
    """The machine's calibration; without one, defaults with the fork time of its specification."""
    return spec.calibration or Calibration(fork_us=spec.fork_us)


def demand_of(us: float, work: Work) -> Demand:
    """What a task asks of the machine that takes so long alone."""
    return Demand(
        us,
        work.launches,
        work.ctas,
        work.per_sm,
        work.busy_us,
        work.moved_us,
        work.awaited_us,
        work.bound,
    )


def _simulator(
    tasks: TaskGraph, costs: Sequence[Cost], spec: TargetSpec, work_of: WorkOf | None
) -> Simulator:
    works = [work_of(task) if work_of else work(task, spec) for task in tasks.tasks]
    demands = [demand_of(cost.us, w) for cost, w in zip(costs, works, strict=True)]
    return Simulator.of(dag_of(tasks), demands, spec, calibration_of(spec))


def _source(costs: Sequence[Cost]) -> CostSource:
    return "estimated" if any(cost.source == "estimated" for cost in costs) else "recorded"

"""Adds graphs to observations: tasks alone, and their schedules side by side.

recorder = ObservationRecorder(None, spec)
recorder.add(subject, schedules, alone, together)     what times tasks, what times schedules
recorder.observations --> Observations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.bench.provenance import recorded_provenance
from anabranch.bench.record import label
from anabranch.costs.measured import Measured
from anabranch.costs.observed import (
    GraphKind,
    KernelSource,
    Observations,
    ObservedGraph,
    ObservedRun,
    ObservedTask,
)
from anabranch.costs.recorded import timing_key
from anabranch.costs.work import work
from anabranch.errors import OptionError
from anabranch.ir import ops
from anabranch.ir.dag import bits, dag_of
from anabranch.ir.graph import types
from anabranch.ir.protocols import Cost, Costs
from anabranch.ir.schedule import Schedule, text_schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph to be observed: its name, what it is, and for each task the one to be timed alone,
    which is the task itself but in a graph of copies; `of`: the network that gave the tasks."""

    name: str
    kind: GraphKind
    batch: int
    dtype: str
    tasks: TaskGraph
    originals: Sequence[Task]
    of: str = ""
    kernels: KernelSource = "library"


class ObservationRecorder:
    """Observations of one machine that grow. OptionError if `earlier` are of another machine."""

    def __init__(self, earlier: Observations | None, spec: TargetSpec) -> None:
        spec = replace(spec, tf32=False)
        if earlier is None:
            earlier = Observations(spec=spec)
        elif earlier.spec.fingerprint != spec.fingerprint:
            raise OptionError(
                f"the observations are of {earlier.spec.name} with {dict(earlier.spec.versions)}",
                f"this is {spec.name} with {dict(spec.versions)}",
                "write to another file, or remove this one",
            )
        sessions = (*earlier.sessions, recorded_provenance())
        self.observations = earlier.model_copy(update={"sessions": sessions})
        self._rows: dict[str, int] = {}

    def begin(self) -> None:
        """From here tasks count as new: their times are taken again, beside what follows."""
        self._rows = {}

    def add(
        self,
        subject: Subject,
        schedules: Sequence[Schedule],
        alone: Costs,
        together: Measured,
        captures: int = 1,
    ) -> int:
        """Times so many captures of each schedule and keeps those that ran; how many did. A graph
        of which none ran is left out."""
        tasks = subject.tasks
        names = {task.name: f"t{i}" for i, task in enumerate(tasks.tasks)}
        timed = zip(schedules, together.captured(tasks, schedules, captures), strict=True)
        runs = tuple(
            ObservedRun(
                schedule=text_schedule(_called(schedule, names)),
                us=round(cost.us, 3),
                spread=round(cost.spread, 3),
            )
            for schedule, costs in timed
            for cost in costs
            if cost.source == "measured" and cost.us > 0
        )
        if not runs:
            return 0
        dag = dag_of(tasks)
        order = {name: i for i, name in enumerate(names)}
        preds: list[tuple[int, ...]] = [()] * len(names)
        for name, mask in zip(dag.names, dag.preds, strict=True):
            preds[order[name]] = tuple(sorted(order[dag.names[u]] for u in bits(mask)))
        spec = replace(self.observations.spec, tf32=subject.dtype == "tf32")
        rows = tuple(self._row(task, alone, spec) for task in subject.originals)
        graph = ObservedGraph(
            name=subject.name,
            kind=subject.kind,
            batch=subject.batch,
            dtype=subject.dtype,
            of=subject.of,
            kernels=subject.kernels,
            session=len(self.observations.sessions) - 1,
            tasks=rows,
            preds=tuple(preds),
            runs=runs,
        )
        self.observations = self.observations.model_copy(
            update={"graphs": (*self.observations.graphs, graph)}
        )
        return len(runs)

    def _row(self, task: Task, alone: Costs, spec: TargetSpec) -> int:
        key = timing_key(task, spec.tf32)
        if key not in self._rows:
            row = observed_task(task, key, alone.task(task), spec)
            self._rows[key] = len(self.observations.tasks)
            self.observations = self.observations.model_copy(
                update={"tasks": (*self.observations.tasks, row)}
            )
        return self._rows[key]


def observed_task(task: Task, key: str, cost: Cost, spec: TargetSpec) -> ObservedTask:
    """What is known of a task with a kernel."""
    assert task.kernel is not None, f"task {task.name} has no kernel"
    demand, body = work(task, spec), task.kernel.body
    table = types(body)
    outer = [value.type for value in body.inputs] + [table[ref.name] for ref in body.outputs]
    return ObservedTask(
        key=key,
        label=label(task),
        us=round(cost.us, 3),
        spread=round(cost.spread, 3),
        launches=demand.launches,
        busy_us=round(demand.busy_us, 4),
        moved_us=round(demand.moved_us, 4),
        flops=sum(ops.flops(node, table) for node in body.nodes),
        weights=sum(constant.type.nbytes for constant in body.constants),
        traffic=sum(type.nbytes for type in outer),
        resources=task.kernel.resources,
    )


def _called(schedule: Schedule, names: dict[str, str]) -> Schedule:
    """The schedule with tasks called by these names."""
    launches = tuple(
        replace(launch, task=names[launch.task], waits=tuple(names[name] for name in launch.waits))
        for launch in schedule.launches
    )
    return Schedule(schedule.scheduler, launches)

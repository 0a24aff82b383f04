"""Part timing: parts of a network and what may replace them, as they would be built and run.

    graphs -> simplified -> side by side as one graph -> kernels for all in one batch
           -> apart again, each under a schedule -> each a few times in a row, all interleaved

Compilations for parts are done for all at once, with work for every core; fewer kernels are tried
for each body than where a plan is built in earnest, and no decision is kept for later. Forks, joins
and launches are all in what is timed: that is what no price of tasks knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs import costs_of
from anabranch.costs.forecast import begun, forecast
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError
from anabranch.fusion.concat_elision import CAT
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, rename
from anabranch.ir.protocols import Cost, Costs
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.variant import PdlMode
from anabranch.memory import pack
from anabranch.schedule import list_scheduling
from anabranch.schedule.sequential import in_a_row
from anabranch.targets.sampled import known_as
from anabranch.trace import Trace
from anabranch.tuning.build import simplified, tuner_of
from anabranch.tuning.job import Job, limits_of
from anabranch.tuning.launch.pdl import launched_in
from anabranch.tuning.tuner import with_probes

REPEATS = 8
"""How often a part runs to be timed once: its forks and joins count, the start of a graph does
not."""
MOST_PART_KERNELS = 320
"""Generated kernels that are compiled for all parts together: some ten seconds on sixteen cores."""


@dataclass(frozen=True, slots=True)
class PartTimes:
    """`costs`: of each graph, None where it cannot run; `taken`: what tasks of theirs take."""

    costs: tuple[Cost | None, ...]
    taken: tuple[tuple[Task, Cost], ...]


def time_parts(job: Job, graphs: Sequence[Graph], mode: PdlMode | None = None) -> PartTimes:
    """What these graphs take, comparable with each other. `mode`: how the network launches its
    kernels, for a chain gains more by that than a fork."""
    child_job = replace(job, trace=Trace(quiet=True))
    ready: list[Graph | None] = []
    for graph in graphs:
        try:
            ready.append(simplified(child_job, graph))
        except (AnabranchError, ValueError):
            ready.append(None)
    able = [i for i, graph in enumerate(ready) if graph is not None]
    able_graphs = [graph for graph in ready if graph is not None]
    whole, target = side_by_side(able_graphs), known_as(job.target, titles(able_graphs))
    job = replace(job, target=target)
    costs = costs_of(
        target,
        partial(pack, spec=target.spec),
        job.cache,
        child_job.trace,
        job.deadline,
        TIME.kernel_s,
        cold=job.cold,
    )
    tuner = tuner_of(job, MOST_PART_KERNELS)
    try:
        selection = tuner.kernels(tuner.cuts(whole, child_job.trace), costs, child_job.trace)[
            0
        ].selection
    except AnabranchError as failed:
        job.trace.add("refused", "search", "parts", f"{failed.what}: {failed.why}")
        return PartTimes((None,) * len(graphs), ())
    tasks = with_probes(selection, costs).tasks
    times: list[Cost | None] = [None] * len(graphs)
    if not job.deadline.over():  # else nobody would build what had won
        scheduled = [_scheduled(job, part, costs) for part in apart(tasks, len(able))]
        plans = launched_in(mode, scheduled, job.target, job.cache, child_job.trace)
        for i, cost in zip(able, costs.race(plans, REPEATS), strict=True):
            times[i] = cost if math.isfinite(cost.us) else None
    taken = ((task, costs.task(task)) for task in tasks.tasks)
    return PartTimes(tuple(times), tuple(pair for pair in taken if _tells(*pair)))


def _tells(task: Task, cost: Cost) -> bool:
    """Whether the time of the task is known, and of use for prices: whether a concatenation is a
    task of its own depends on who writes its parts."""
    return cost.source != "estimated" and any(node.op != CAT for node in task.body.nodes)


def side_by_side(graphs: Sequence[Graph]) -> Graph:
    """One graph of all of them, which share nothing: what belongs to the first is called p0_..."""
    inputs, constants = list[Input](), list[Constant]()
    nodes, outputs = list[Node](), list[Ref]()
    for i, graph in enumerate(graphs):
        own = _title(i)
        inputs += [Input(own + value.name, value.type) for value in graph.inputs]
        constants += [replace(c, name=own + c.name) for c in graph.constants]
        outputs += [Ref(own + ref.name) for ref in graph.outputs]
        for node in graph.nodes:
            table = {name: own + name for name in node.uses}
            nodes.append(
                Node(
                    own + node.name,
                    node.op,
                    tuple(rename(arg, table) for arg in node.args),
                    tuple((key, rename(arg, table)) for key, arg in node.kwargs),
                    node.types,
                    node.origin,
                    node.strict,
                )
            )
    return Graph("parts", tuple(inputs), tuple(constants), tuple(nodes), tuple(outputs))


def titles(graphs: Sequence[Graph]) -> dict[str, str]:
    """The names that values of each graph have side by side, each with its own."""
    return {
        _title(i) + name: name
        for i, graph in enumerate(graphs)
        for name in (
            *(value.name for value in graph.inputs),
            *(result for node in graph.nodes for result in node.results),
        )
    }


def apart(tasks: TaskGraph, count: int) -> list[TaskGraph]:
    """The task graphs of so many graphs that were put side by side."""
    return [
        TaskGraph(
            f"part{i}",
            tuple(value for value in tasks.inputs if value.name.startswith(_title(i))),
            tuple(value for value in tasks.constants if value.name.startswith(_title(i))),
            tuple(task for task in tasks.tasks if task.name.startswith(_title(i))),
            tuple(node for node in tasks.aliases if node.name.startswith(_title(i))),
            tuple(ref for ref in tasks.outputs if ref.name.startswith(_title(i))),
            tuple(node for node in tasks.elided_concats if node.name.startswith(_title(i))),
        )
        for i in range(count)
    ]


def _title(i: int) -> str:
    return f"p{i}_"


def _scheduled(job: Job, tasks: TaskGraph, costs: Costs) -> tuple[TaskGraph, Schedule]:
    """Under the better of two schedules that are found at once, as far as is predicted."""
    plain = in_a_row(tasks)
    if job.options.scheduler == "sequential":
        return tasks, plain
    listed = list_scheduling.schedule(tasks, costs, limits_of(job))
    spec = begun(job.target.spec)

    def us(schedule: Schedule) -> float:
        return forecast(tasks, schedule, costs.task, spec).latency

    return tasks, min(plain, listed, key=us)

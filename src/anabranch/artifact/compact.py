"""A plan told briefly: Plan <-> Brief, which is kept beside the graph that it was made of.

Whoever has the rewritten graph knows nearly all of a plan: tasks are its nodes, by name (`ir.codec`
tells them so). What is not in the graph is told in full: nodes whose strides an elided concat
changed, kernels, schedule, places.

    graph: 1,200 nodes          plan:  task conv3   nodes [conv3, relu3]   triton rows:64.w4
                                       task pool1   nodes [%pool1: f16[..]{..} = ..]   cudnn 2

Generated texts are not told but written anew by a function of the body and the variant, whose
answers (`Program`) come along: equal layers share one. Weights come from the graph at hand. A brief
is for the cache of its writer: it is checked like any plan, but not as `artifact.reading` checks
what strangers made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anabranch.artifact.owned_constants import constants_of
from anabranch.cache import Codec
from anabranch.errors import VerifyError
from anabranch.ir.codec import Beside, nouns
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Task, TaskGraph
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.kernels.triton.codegen import learn, program, unnamed
from anabranch.kernels.triton.program import Program
from anabranch.memory.race_check import check_plan


@dataclass(frozen=True, slots=True)
class Brief:
    """A plan without the texts of its kernels. `programs`: what is written for the tasks of these
    numbers, in the names of `codegen.unnamed`, each once."""

    tasks: TaskGraph
    programs: tuple[tuple[int, Program], ...]
    schedule: Schedule
    slots: tuple[Slot, ...]
    workspaces: tuple[Workspace, ...]
    arena_bytes: int
    graph: bool = True


BRIEFS: Codec[Brief] = nouns(Brief)


def write(plan: Plan, graph: Graph) -> Brief:
    """The plan, told to one who has the graph. ValueError where that cannot be."""
    brief = Brief(
        replace(plan.tasks, tasks=tuple(map(_without_text, plan.tasks.tasks))),
        tuple(_programs(plan.tasks)),
        plan.schedule,
        plan.slots,
        plan.workspaces,
        plan.arena_bytes,
        plan.graph,
    )
    beside = Beside.of(graph)
    again = BRIEFS.read(BRIEFS.write(brief, beside), beside)
    if read(again, graph, plan.spec, plan.signature) != plan:
        raise ValueError(f"plan {plan.tasks.name} does not read back as it was")
    return brief


def read(told: Brief, graph: Graph, spec: TargetSpec, signature: Signature | None) -> Plan:
    """The plan that was told of such a graph. ValueError if it was not of this one."""
    try:
        plan = _plan(told, spec, signature)
        _check_constants(plan.tasks, graph)
        verify_tasks(plan.tasks)
        verify_schedule(plan.schedule, dag_of(plan.tasks))
        check_plan(plan)
    except (ValueError, LookupError, TypeError, AttributeError, VerifyError) as broken:
        raise ValueError(f"no plan of graph {graph.name}: {broken}") from broken
    return plan


def _plan(told: Brief, spec: TargetSpec, signature: Signature | None) -> Plan:
    tasks = told.tasks.tasks
    for number, written in told.programs:
        kernel = tasks[number].kernel
        if kernel is not None:
            learn(tasks[number].body, kernel.variant, written)
    whole = replace(told.tasks, tasks=tuple(map(_with_text, tasks)))
    places = told.slots, told.workspaces, told.arena_bytes
    return Plan(whole, told.schedule, *places, spec, signature, graph=told.graph)


def _without_text(task: Task) -> Task:
    if task.kernel is None or task.kernel.provider != GENERATED:
        return task
    return replace(task, kernel=replace(task.kernel, source=""))


def _with_text(task: Task) -> Task:
    kernel = task.kernel
    if kernel is None or kernel.provider != GENERATED:
        return task
    return replace(task, kernel=replace(kernel, source=program(kernel.body, kernel.variant).text))


def _check_constants(tasks: TaskGraph, graph: Graph) -> None:
    """ValueError unless all constants are the graph's, which have values."""
    constant_ids = {id(constant) for constant in graph.constants}
    for constant in constants_of(tasks):
        if id(constant) not in constant_ids:
            raise ValueError(f"%{constant.name} is no constant of the graph")


def _programs(tasks: TaskGraph) -> Iterator[tuple[int, Program]]:
    """Each program once, with the number of a task that runs it."""
    seen: set[int] = set()
    for i, task in enumerate(tasks.tasks):
        if task.kernel is None or task.kernel.provider != GENERATED:
            continue
        written = unnamed(task.kernel.body, task.kernel.variant)
        if id(written) not in seen and task.kernel.body == task.body:
            seen.add(id(written))
            yield i, written

"""A plan told briefly: Plan <-> text, beside the graph that it was made of.

Whoever has the rewritten graph knows nearly all of a plan: tasks are its nodes, by name. What is
not in the graph is told in full: nodes whose strides a join changed, kernels, schedule, places.

    graph: 1,200 nodes          plan:  task conv3   nodes [conv3, relu3]   triton rows:64.w4
                                       task pool1   nodes [%pool1: f16[..]{..} = ..]   cudnn 2

Generated texts are not told but written anew by a function of the body and the variant, whose
answers (`Program`) come along: equal layers share one. Weights come from the graph at hand. A brief
is for the cache of its writer: it is checked like any plan, but not as `artifact.schema` checks
what strangers made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, JsonValue, ValidationError

from anabranch.errors import VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, types
from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.text import parse_node, parse_type, text_node
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.kernels.triton.program import facts_of, program_of
from anabranch.kernels.triton.write import learn, program, unnamed
from anabranch.memory.race_check import check_plan

GENERATES = "triton"
"""The provider whose texts are written anew."""


class _Body(BaseModel):
    """A graph: values by name where the whole graph has them so, else as text."""

    name: str
    inputs: list[str]
    constants: list[str]
    nodes: list[str]
    outputs: list[str]


class _Kernel(BaseModel):
    """`body` None: the task's own."""

    provider: str
    name: str
    body: _Body | None
    variant: str
    writes_out: bool
    workspace: int
    temporary: int
    launches: int
    resources: Resources | None


class _Task(BaseModel):
    name: str
    body: _Body
    kernel: _Kernel | None


class _Program(BaseModel):
    """What is written for the task of this number, in the names of `write.unnamed`."""

    task: int
    facts: dict[str, JsonValue]


class Brief(BaseModel):
    """A plan without what the graph says."""

    border: _Body
    joins: list[str]
    tasks: list[_Task]
    programs: list[_Program]
    schedule: Schedule
    slots: list[Slot]
    workspaces: list[Workspace]
    arena_bytes: int
    graph: bool = True


@dataclass(frozen=True, slots=True)
class _Known:
    """What the graph says, by name."""

    inputs: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    nodes: Mapping[str, Node]


def write(plan: Plan, graph: Graph) -> Brief:
    """The plan, told to one who has the graph. ValueError where that cannot be."""
    known, tasks = _known(graph), plan.tasks
    border = Graph(tasks.name, tasks.inputs, tasks.constants, tasks.aliases, tasks.outputs)
    told = Brief(
        border=_write_body(border, known),
        joins=[_write_node(node, known) for node in tasks.joins],
        tasks=[_write_task(task, known) for task in tasks.tasks],
        programs=list(_programs(tasks)),
        schedule=plan.schedule,
        slots=list(plan.slots),
        workspaces=list(plan.workspaces),
        arena_bytes=plan.arena_bytes,
        graph=plan.graph,
    )
    if read(told, graph, plan.spec, plan.signature) != plan:
        raise ValueError(f"plan {tasks.name} does not read back as it was")
    return told


def read(told: Brief, graph: Graph, spec: TargetSpec, signature: Signature | None) -> Plan:
    """The plan that was told of such a graph. ValueError if it was not of this one."""
    try:
        plan = _plan(told, _known(graph), spec, signature)
        verify_tasks(plan.tasks)
        verify_schedule(plan.schedule, dag_of(plan.tasks))
        check_plan(plan)
    except (ValidationError, LookupError, TypeError, AttributeError, VerifyError) as broken:
        raise ValueError(f"no plan of graph {graph.name}: {broken}") from broken
    return plan


def _plan(told: Brief, known: _Known, spec: TargetSpec, signature: Signature | None) -> Plan:
    border = _read_body(told.border, known)
    bodies = [_read_body(task.body, known) for task in told.tasks]
    for item in told.programs:
        kernel = told.tasks[item.task].kernel
        if kernel is not None:
            learn(bodies[item.task], kernel.variant, program_of(item.facts))
    tasks = TaskGraph(
        border.name,
        border.inputs,
        border.constants,
        tuple(
            Task(task.name, body, _read_kernel(task.kernel, body, known))
            for task, body in zip(told.tasks, bodies, strict=True)
        ),
        border.nodes,
        border.outputs,
        tuple(_read_node(text, known) for text in told.joins),
    )
    slots, workspaces = tuple(told.slots), tuple(told.workspaces)
    places = slots, workspaces, told.arena_bytes
    return Plan(tasks, told.schedule, *places, spec, signature, graph=told.graph)


def _known(graph: Graph) -> _Known:
    return _Known(
        types(graph),
        {constant.name: constant for constant in graph.constants},
        {node.name: node for node in graph.nodes},
    )


def _write_body(body: Graph, known: _Known) -> _Body:
    for constant in body.constants:
        if known.constants.get(constant.name) != constant:
            raise ValueError(f"%{constant.name} is no constant of the graph")
    return _Body(
        name=body.name,
        inputs=[
            value.name
            if known.inputs.get(value.name) == value.type
            else f"{value.name}: {value.type.text}"
            for value in body.inputs
        ],
        constants=[constant.name for constant in body.constants],
        nodes=[_write_node(node, known) for node in body.nodes],
        outputs=[ref.name for ref in body.outputs],
    )


def _read_body(told: _Body, known: _Known) -> Graph:
    return Graph(
        told.name,
        tuple(_read_input(text, known) for text in told.inputs),
        tuple(known.constants[name] for name in told.constants),
        tuple(_read_node(text, known) for text in told.nodes),
        tuple(map(Ref, told.outputs)),
    )


def _read_input(text: str, known: _Known) -> Input:
    name, other, type = text.partition(": ")
    return Input(name, parse_type(type) if other else known.inputs[name])


def _write_node(node: Node, known: _Known) -> str:
    same = known.nodes.get(node.name)
    return node.name if same == node and same.origin == node.origin else text_node(node)


def _read_node(text: str, known: _Known) -> Node:
    return parse_node(text) if text.startswith("%") else known.nodes[text]


def _write_task(task: Task, known: _Known) -> _Task:
    kernel, body = task.kernel, _write_body(task.body, known)
    if kernel is None:
        return _Task(name=task.name, body=body, kernel=None)
    told = _Kernel(
        provider=kernel.provider,
        name=kernel.name,
        body=None if kernel.body == task.body else _write_body(kernel.body, known),
        variant=kernel.variant,
        writes_out=kernel.writes_out,
        workspace=kernel.workspace,
        temporary=kernel.temporary,
        launches=kernel.launches,
        resources=kernel.resources,
    )
    return _Task(name=task.name, body=body, kernel=told)


def _read_kernel(told: _Kernel | None, own: Graph, known: _Known) -> Kernel | None:
    if told is None:
        return None
    body = own if told.body is None else _read_body(told.body, known)
    return Kernel(
        told.provider,
        told.name,
        body,
        told.variant,
        told.writes_out,
        told.workspace,
        told.temporary,
        told.launches,
        told.resources,
        program(body, told.variant).text if told.provider == GENERATES else "",
    )


def _programs(tasks: TaskGraph) -> Iterator[_Program]:
    """Each program once, with the number of a task that runs it."""
    seen: set[int] = set()
    for i, task in enumerate(tasks.tasks):
        if task.kernel is None or task.kernel.provider != GENERATES:
            continue
        written = unnamed(task.kernel.body, task.kernel.variant)
        if id(written) not in seen and task.kernel.body == task.body:
            seen.add(id(written))
            yield _Program(task=i, facts=facts_of(written))

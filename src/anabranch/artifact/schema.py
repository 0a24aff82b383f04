"""The text part of a saved plan: what it says, and how it is written.

Graphs are kept in their text form (ir.text), everything else as the fields of the nouns, kernel
sources and flat weights beside it. `artifact.reading` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated

import torch
from pydantic import AliasChoices, Field, JsonValue

from anabranch.artifact import refits
from anabranch.artifact.owned_constants import constants_of
from anabranch.artifact.refits import RecipeModel, StrictModel
from anabranch.artifact.weights import flatten
from anabranch.errors import ArtifactError
from anabranch.ir.codec import tell_kernel
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Resources, Task, TaskGraph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.types import TensorType, laid_out, type_of

MAX_TEXT = 64 << 20
"""Bytes of plan.json: a network of 1,500 tasks has about four million."""
NAN = re.compile(r"\bnan\b")
"""In a text: it reads back, and does not equal itself."""
Size = Annotated[int, Field(ge=0, lt=1 << 48)]


class GraphModel(StrictModel):
    """A graph: its name, which may hold any character, and the rest as text."""

    name: str
    text: str


class KernelModel(StrictModel):
    """What `ir.codec` tells of a kernel, its body as text; `source`: the number of its file."""

    provider: str
    name: str
    body: GraphModel | None
    variant: str
    writes_out: bool
    workspace: Size
    temporary: Size
    launches: Size
    resources: Resources | None
    source: int | None


class TaskModel(StrictModel):
    """A task."""

    name: str
    body: GraphModel
    kernel: KernelModel | None


class WeightModel(StrictModel):
    """A constant's declaration as a line of text, the type of the tensor, and the tensor's name in
    the weights file, None if it has no elements."""

    constant: str
    held: str
    tensor: str | None


class StateModel(StrictModel):
    """A state: its name in the graph, the model's names for it, and the tensor's name in the
    weights file that it begins with, None if it has no elements."""

    name: str
    source: tuple[str, ...]
    tensor: str | None


class Document(StrictModel):
    """A whole plan. `border`: the task graph's inputs, constants, aliases and outputs;
    `elided_concats`: in a graph of nothing else, None where it has none, called `joins` in files
    before 2026-11-27; `recipe`: how it takes other weights, None if it does not know."""

    border: GraphModel
    elided_concats: GraphModel | None = Field(
        default=None, validation_alias=AliasChoices("elided_concats", "joins")
    )
    tasks: tuple[TaskModel, ...]
    schedule: Schedule
    slots: tuple[Slot, ...]
    workspaces: tuple[Workspace, ...]
    arena_bytes: Size
    graph: bool = True
    spec: TargetSpec
    signature: Signature | None
    weights: tuple[WeightModel, ...]
    states: tuple[StateModel, ...] = ()
    recipe: RecipeModel | None = None
    extra: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class PlanParts:
    """What `write` makes of a plan: JSON text, source texts, flat tensors by name. Plans that are
    written beside it share its texts and its tensors."""

    text: str
    sources: tuple[str, ...]
    tensors: Mapping[str, torch.Tensor]
    stored: Mapping[tuple[int, TensorType], str]
    """The name of the tensor at an address."""


def write(plan: Plan, extra: dict[str, JsonValue], beside: PlanParts | None = None) -> PlanParts:
    """The plan in parts; with those of the plans `beside` it, which it shares. ArtifactError if a
    name or an argument has no text form."""
    sources = dict.fromkeys(beside.sources if beside is not None else ())
    sources |= dict.fromkeys(
        task.kernel.source for task in plan.tasks.tasks if task.kernel and task.kernel.source
    )
    number = {source: i for i, source in enumerate(sources)}
    tensors = dict(beside.tensors if beside is not None else {})
    stored = dict(beside.stored if beside is not None else {})
    weights = _write_weights(plan, tensors, stored)
    recipe = refits.write(plan, tensors)
    states = _write_states(plan, tensors)
    border = plan.tasks
    values = border.inputs, border.constants, border.aliases, border.outputs
    document = Document(
        border=_write_graph(Graph(border.name, *values, states=border.states)),
        elided_concats=_write_elided_concats(border),
        tasks=tuple(_write_task(task, number) for task in border.tasks),
        schedule=plan.schedule,
        slots=plan.slots,
        workspaces=plan.workspaces,
        arena_bytes=plan.arena_bytes,
        graph=plan.graph,
        spec=plan.spec,
        signature=plan.signature,
        weights=weights,
        states=states,
        recipe=recipe,
        extra=extra,
    )
    return PlanParts(document.model_dump_json(), tuple(sources), tensors, stored)


def _write_task(task: Task, number: Mapping[str, int]) -> TaskModel:
    kernel = task.kernel
    if kernel is None:
        return TaskModel(name=task.name, body=_write_graph(task.body), kernel=None)
    told_kernel = tell_kernel(kernel, task.body)
    kernel_fields = {field.name: getattr(told_kernel, field.name) for field in fields(told_kernel)}
    kernel_fields["body"] = None if told_kernel.body is None else _write_graph(told_kernel.body)
    source = number[kernel.source] if kernel.source else None
    model = KernelModel(**kernel_fields, source=source)
    return TaskModel(name=task.name, body=_write_graph(task.body), kernel=model)


def _write_elided_concats(tasks: TaskGraph) -> GraphModel | None:
    if not tasks.elided_concats:
        return None
    return _write_graph(Graph("elided_concats", (), (), tasks.elided_concats, ()))


def _write_graph(graph: Graph) -> GraphModel:
    one_line = tuple(
        replace(node, origin=" ".join(node.origin.split())) if node.origin else node
        for node in graph.nodes
    )
    named = replace(graph, nodes=one_line)
    text = text_graph(replace(named, name="g"))
    try:
        again = replace(parse_graph(text), name=graph.name)
        same = again == graph or (NAN.search(text) and text_graph(again) == text_graph(named))
    except (ValueError, KeyError, AttributeError):
        same = False
    if not same:
        raise ArtifactError(
            f"graph {graph.name} cannot be saved",
            "a name or an argument in it has no text form that reads back",
            "report this as a defect, with the model",
        )
    return GraphModel(name=graph.name, text=text)


def _write_weights(
    plan: Plan, tensors: dict[str, torch.Tensor], stored: dict[tuple[int, TensorType], str]
) -> tuple[WeightModel, ...]:
    """One model for each different constant with content; tensors that are one in memory, or in
    content as their digests say, are stored once, also those of several plans."""
    held: dict[Constant, torch.Tensor] = {}
    for constant in constants_of(plan.tasks):
        if constant.value is not None and constant.value.device.type != "meta":
            held.setdefault(constant, constant.value)
    models = []
    for constant, value in held.items():
        type = type_of(value)
        name: str | None = None
        if value.numel():
            name = stored.setdefault((value.data_ptr(), type), f"{len(stored):05}")
            if name not in tensors:
                flat = flatten(value)
                # A safetensors file has no complex numbers of every size.
                tensors[name] = flat.view(torch.uint8) if type.dtype.is_complex else flat
        line = text_graph(Graph("g", (), (constant,), (), ())).splitlines()[1].strip()
        models.append(WeightModel(constant=line, held=type.text, tensor=name))
    return tuple(models)


def _write_states(plan: Plan, tensors: dict[str, torch.Tensor]) -> tuple[StateModel, ...]:
    """One model for each state; adds the values that they begin with, which plans of one model
    share."""
    models = []
    types = {value.name: value.type for value in plan.tasks.inputs}
    for state in plan.tasks.states:
        type, name = types[state.name], None
        if type.numel and state.value is not None and not state.value.is_meta:
            name = f"state {state.path}"
            flat = flatten(laid_out(type, state.value.detach()))
            tensors[name] = flat.view(torch.uint8) if type.dtype.is_complex else flat
        models.append(StateModel(name=state.name, source=state.source, tensor=name))
    return tuple(models)

"""The text part of a saved plan is read: JSON text, kernel sources and flat weights -> Plan.

Reading trusts nothing: sizes, nesting, names and types are checked as the models say, graphs as
verify says, and bodies as their operators compute on meta tensors. An operator must be one of those
that plans need (`artifact.operators`), or one that the user names. So a file cannot make its reader
call anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from pydantic import JsonValue

from anabranch.artifact import refits
from anabranch.artifact.bodies import check_bodies, check_nodes
from anabranch.artifact.bounds import (
    check_counts,
    check_places,
    check_signature,
    check_spec,
    check_texts,
    plain,
)
from anabranch.artifact.operators import check_arguments, check_operator
from anabranch.artifact.overwrites import check_overwrites
from anabranch.artifact.schema import Document, GraphModel, TaskModel
from anabranch.artifact.weights import restore
from anabranch.ir.codec import ToldKernel, told_kernel
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Arg, Constant, Graph, Node, Ref, State
from anabranch.ir.plan import Plan
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import parse_graph, parse_type
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_graph, verify_schedule, verify_tasks

MAX_DIMENSION = 1 << 40


def read(
    text: bytes,
    sources: tuple[str, ...],
    tensors: Mapping[str, torch.Tensor],
    asked: frozenset[str] = frozenset(),
    named: Named | None = None,
) -> tuple[Plan, dict[str, JsonValue]]:
    """The plan that `write` took apart. Raises what parsing and verifying raise. `asked`: operators
    that the user names, as `artifact.operators.named` spells them. `named`: gets what the plan
    names of texts and tensors that it shares with others; without it, it names all of them."""
    document = Document.model_validate_json(text)
    check_texts(text, lambda: document.model_dump_json(exclude={"extra"}).encode())
    whole, named = named is None, named or Named()
    values = _read_weights(document, tensors, named)
    border = _read_graph(document.border, values, asked)
    tasks = TaskGraph(
        border.name,
        border.inputs,
        border.constants,
        tuple(_read_task(model, sources, values, asked) for model in document.tasks),
        border.nodes,
        border.outputs,
        _read_elided_concats(document, values, asked),
        _read_states(document, border, tensors),
    )
    named.add(document)
    if whole:
        named.check(sources, tensors)
    check_counts(tasks, document.schedule)
    check_bodies(tasks, asked)
    verify_tasks(tasks)
    verify_schedule(document.schedule, dag_of(tasks))
    plan = Plan(
        tasks,
        document.schedule,
        document.slots,
        document.workspaces,
        document.arena_bytes,
        document.spec,
        document.signature,
        graph=document.graph,
    )
    check_places(plan)
    check_overwrites(plan)
    check_spec(plan.spec)
    if plan.signature is not None:
        check_signature(plan.signature, tasks)
    if document.recipe is not None:

        def check_node(node: Node, operands: Mapping[str, TensorType] | None) -> None:
            if operands is None:
                _check_node(node, asked)
            else:
                check_nodes(
                    Graph("its recipe", (), (), (node,), (Ref(node.name),)), operands, asked
                )

        plan = refits.read(document.recipe, plan, tensors, _check_type, check_node)
    extra = plain(document.extra)
    assert isinstance(extra, dict)
    return plan, extra


@dataclass(slots=True)
class Named:
    """What the plans of one file name: texts of kernels by number, tensors by name; and the tensors
    as they were read, one for all that name it in the same layout."""

    texts: set[int | None] = field(default_factory=set)
    tensors: set[str | None] = field(default_factory=set)
    restored: dict[tuple[str, TensorType], torch.Tensor] = field(default_factory=dict)
    contents: dict[tuple[str, TensorType], str | None] = field(default_factory=dict)
    """The tensor of each digest and type: constants that say the same are one in memory."""

    def add(self, document: Document) -> None:
        """One more plan."""
        self.texts |= {task.kernel.source for task in document.tasks if task.kernel is not None}
        self.tensors |= {weight.tensor for weight in document.weights}
        self.tensors |= {state.tensor for state in document.states}
        if document.recipe is not None:
            self.tensors |= {constant.tensor for constant in document.recipe.given}

    def check(self, sources: tuple[str, ...], tensors: Mapping[str, torch.Tensor]) -> None:
        """ValueError for texts and tensors that nothing in the plans names."""
        if not set(range(len(sources))) <= self.texts or not set(tensors) <= self.tensors:
            raise ValueError("it holds texts or tensors that the plan does not name")


def _read_weights(
    document: Document, tensors: Mapping[str, torch.Tensor], named: Named
) -> dict[Constant, torch.Tensor]:
    """`named`: what was read so far, filled in."""
    restored = named.restored
    values: dict[Constant, torch.Tensor] = {}
    for model in document.weights:
        (constant,) = parse_graph(model.constant).constants
        type = parse_type(model.held)
        _check_type(type)
        if (type.shape, type.dtype) != (constant.type.shape, constant.type.dtype):
            raise ValueError(f"constant %{constant.name} is {constant.type.text}, held {type.text}")
        said = constant.digest, constant.type
        if named.contents.setdefault(said, model.tensor) != model.tensor:
            raise ValueError(f"constant %{constant.name} has the digest of another content")
        if model.tensor is None:
            values[constant] = torch.empty_strided(type.shape, type.strides, dtype=type.dtype)
            if type.numel:
                raise ValueError(f"constant %{constant.name} has no content")
            continue
        key = (model.tensor, type)
        if key not in restored:
            restored[key] = restore(tensors[model.tensor].view(type.dtype), type)
        values[constant] = restored[key]
    return values


def _read_states(
    document: Document, border: Graph, tensors: Mapping[str, torch.Tensor]
) -> tuple[State, ...]:
    told = {model.name: model for model in document.states}
    if len(told) != len(document.states) or told.keys() != {state.name for state in border.states}:
        raise ValueError("its states are not those of its tasks")
    types = {value.name: value.type for value in border.inputs}

    def begun(state: State) -> State:
        model, type = told[state.name], types[state.name]
        if model.tensor is None:
            return replace(state, source=model.source)
        value = restore(tensors[model.tensor].view(type.dtype), type)
        return replace(state, source=model.source, value=value)

    return tuple(map(begun, border.states))


def _read_task(
    model: TaskModel,
    sources: tuple[str, ...],
    values: Mapping[Constant, torch.Tensor],
    asked: frozenset[str],
) -> Task:
    body = _read_body(model.body, values, asked)
    kernel = model.kernel
    if kernel is None:
        return Task(model.name, body)
    if kernel.source is not None and not 0 <= kernel.source < len(sources):
        raise ValueError(f"task {model.name} names source {kernel.source}, which is not there")
    kernel_fields = dict(kernel)
    del kernel_fields["source"]
    kernel_fields["body"] = None if kernel.body is None else _read_body(kernel.body, values, asked)
    source = "" if kernel.source is None else sources[kernel.source]
    chosen = replace(told_kernel(ToldKernel(**kernel_fields), body), source=source)
    return Task(model.name, body, chosen)


def _read_body(
    model: GraphModel, values: Mapping[Constant, torch.Tensor], asked: frozenset[str]
) -> Graph:
    graph = _read_graph(model, values, asked)
    verify_graph(graph)
    return graph


def _read_elided_concats(
    document: Document, values: Mapping[Constant, torch.Tensor], asked: frozenset[str]
) -> tuple[Node, ...]:
    model = document.elided_concats
    return _read_graph(model, values, asked).nodes if model else ()


def _read_graph(
    model: GraphModel, values: Mapping[Constant, torch.Tensor], asked: frozenset[str]
) -> Graph:
    graph = parse_graph(model.text)
    for type in (*(i.type for i in graph.inputs), *(c.type for c in graph.constants)):
        _check_type(type)
    for node in graph.nodes:
        _check_node(node, asked)
    constants = tuple(replace(c, value=values.get(c)) for c in graph.constants)
    return replace(graph, name=model.name, constants=constants)


def _check_node(node: Node, asked: frozenset[str]) -> None:
    check_operator(node.op, asked)
    for type in node.types:
        _check_type(type)
    for arg in (*node.args, *dict(node.kwargs).values()):
        _check_arg(node, arg)
    check_arguments(node)


def _check_arg(node: Node, arg: Arg) -> None:
    """The parser evaluates literals and names of torch: only some of them are arguments."""
    if isinstance(arg, tuple):
        for item in arg:
            _check_arg(node, item)
        return
    kinds = (Ref, int, float, bool, str, torch.dtype, torch.memory_format, torch.layout)
    if arg is not None and not isinstance(arg, kinds):
        raise ValueError(f"%{node.name} has an argument of type {type(arg).__name__}")


def _check_type(type: TensorType) -> None:
    sizes = (*type.shape, *type.strides)
    if any(not 0 <= size <= MAX_DIMENSION for size in sizes) or type.nbytes > MAX_DIMENSION:
        raise ValueError(f"no tensor has type {type.text}")
    if math.prod(max(size, 1) for size in type.shape) > MAX_DIMENSION:
        raise ValueError(f"no tensor has type {type.text}")

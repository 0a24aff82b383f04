"""How nouns are kept: the one codec of graphs, kernels, tasks and whatever holds some of them.

    in words of its own     %conv: f16[1,64,56,56] = aten.convolution.default(%x, %w, ...)
    beside a graph          conv        what that graph has by this name, weights included

A reader of a plan or a search has the graph that it was made of, which knows nearly all of it. What
is equal there is told by name; values with other strides, say, in full.

>>> from anabranch.ir.protocols import Cost
>>> costs = nouns(tuple[Cost, ...])
>>> costs.read(costs.write((Cost(9.4, "measured", 0.1),), None), None)
(Cost(us=9.4, source='measured', spread=0.1),)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from anabranch.cache.codec import Codec, Form, values
from anabranch.ir.former_names import with_current_names
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, State, types
from anabranch.ir.price import Price, parse_price
from anabranch.ir.task import GENERATED, Kernel, Resources, Task, read_variant
from anabranch.ir.text import parse_node, parse_type, text_node
from anabranch.ir.types import DTYPE_NAMES, DTYPES, TensorType

UNTOLD = Graph("", (), (), (), ())
"""The body of a kernel of which it is not told: whoever reads it knows."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a graph says, by name."""

    inputs: Mapping[str, TensorType]
    constants: Mapping[str, Constant]
    nodes: Mapping[str, Node]
    states: Mapping[str, State] = field(default_factory=dict)

    @staticmethod
    def of(graph: Graph) -> Beside:
        """ValueError, or what else is wrong with its text, where it is no graph."""
        return Beside(
            types(graph),
            {constant.name: constant for constant in graph.constants},
            {node.name: node for node in graph.nodes},
            {state.name: state for state in graph.states},
        )


NOTHING = Beside({}, {}, {})


@dataclass(frozen=True, slots=True)
class ToldKernel:
    """A kernel without its source, which its variant says. `body` None: the task's own."""

    provider: str
    name: str
    body: Graph | None = None
    variant: str = ""
    writes_out: bool = False
    workspace: int = 0
    temporary: int = 0
    launches: int = 1
    resources: Resources | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    name: str
    body: Graph
    kernel: ToldKernel | None = None


def nouns(kind: Any) -> Codec[Any]:
    """JSON of values of this type, in which there may be nouns; read beside a graph, or None."""
    return values(kind, FORMS)


def _write_input(value: Input, beside: Beside | None) -> str:
    implied = (beside or NOTHING).inputs.get(value.name) == value.type
    return value.name if implied else f"{value.name}: {value.type.text}"


def _read_input(told: str, beside: Beside | None) -> Input:
    name, other, type = told.partition(": ")
    return Input(name, parse_type(type) if other else (beside or NOTHING).inputs[name])


def _write_constant(constant: Constant, beside: Beside | None) -> str:
    if (beside or NOTHING).constants.get(constant.name) == constant:
        return constant.name
    return f"{constant.name}: {constant.type.text} = {constant.digest}"


def _read_constant(told: str, beside: Beside | None) -> Constant:
    name, other, rest = told.partition(": ")
    if not other:
        return (beside or NOTHING).constants[name]
    type, _, digest = rest.partition(" = ")
    return Constant(name, parse_type(type), digest)


def _write_node(node: Node, beside: Beside | None) -> str:
    same = (beside or NOTHING).nodes.get(node.name)
    if same is node or (same == node and same.origin == node.origin):
        return node.name
    return text_node(node)


def _read_node(told: str, beside: Beside | None) -> Node:
    return _parsed_node(told) if told.startswith("%") else (beside or NOTHING).nodes[told]


@functools.lru_cache(maxsize=1 << 12)
def _parsed_node(told: str) -> Node:
    """All kernels of a task have its nodes."""
    return parse_node(told)


def _read_state(told: tuple[str, int], beside: Beside | None) -> State:
    """With the tensor that the graph at hand has for it."""
    name, output = told
    return replace((beside or NOTHING).states.get(name, State(name, output)), output=output)


def tell_kernel(kernel: Kernel, own: Graph = UNTOLD) -> ToldKernel:
    """What is told of a kernel of a task with this body."""
    told = {field.name: getattr(kernel, field.name) for field in fields(ToldKernel)}
    told["body"] = None if kernel.body == own else kernel.body
    return ToldKernel(**{**told, "variant": str(kernel.variant)})


def told_kernel(told: ToldKernel, own: Graph = UNTOLD) -> Kernel:
    """The kernel that was told of, of a task with this body."""
    values = {field.name: getattr(told, field.name) for field in fields(ToldKernel)}
    values["body"] = own if told.body is None else told.body
    name, variant = told.name, told.variant
    if told.provider == GENERATED:
        name, variant = with_current_names(name), with_current_names(variant)
    return Kernel(**{**values, "name": name, "variant": read_variant(told.provider, variant)})


def _write_task(task: Task, _: Any) -> _Task:
    kernel = None if task.kernel is None else tell_kernel(task.kernel, task.body)
    return _Task(task.name, task.body, kernel)


def _read_task(told: _Task, _: Any) -> Task:
    kernel = None if told.kernel is None else told_kernel(told.kernel, told.body)
    return Task(told.name, told.body, kernel)


def _spelled(write: Callable[[Any], str], read: Callable[[str], Any]) -> Form:
    """Of what has a text wherever it stands."""
    return Form(str, lambda value, _: write(value), lambda told, _: read(told))


FORMS: Mapping[Any, Form] = {
    Ref: _spelled(lambda ref: ref.name, Ref),
    TensorType: _spelled(lambda type: type.text, parse_type),
    Price: _spelled(str, parse_price),
    torch.dtype: _spelled(DTYPE_NAMES.__getitem__, DTYPES.__getitem__),
    Input: Form(str, _write_input, _read_input),
    Constant: Form(str, _write_constant, _read_constant),
    Node: Form(str, _write_node, _read_node),
    State: Form(tuple[str, int], lambda state, _: (state.name, state.output), _read_state),
    Kernel: Form(
        ToldKernel, lambda kernel, _: tell_kernel(kernel), lambda told, _: told_kernel(told)
    ),
    Task: Form(_Task, _write_task, _read_task),
}
"""What is told of nouns that are not told field by field."""

"""Graph: an immutable, functional DAG of ATen operators.

A value is what a node, an input or a constant defines; it has a name of its own. A node with one
result defines the value of its own name; a node with several defines `name`, `name.1`, `name.2`.

>>> from anabranch.ir.text import parse_graph
>>> graph = parse_graph('''
... graph tiny {
...   input %x: f32[2,3]
...   const %w: f32[3] = 1f2e
...   %add: f32[2,3] = aten.add.Tensor(%x, %w)
...   %relu: f32[2,3] = aten.relu.default(%add)
...   return %relu
... }''')
>>> [node.op for node in graph.nodes], graph.outputs
(['aten.add.Tensor', 'aten.relu.default'], (Ref(name='relu'),))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from anabranch.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value by its name."""

    name: str


Arg = (
    Ref
    | int
    | float
    | bool
    | str
    | None
    | torch.dtype
    | torch.memory_format
    | torch.layout
    | tuple["Arg", ...]
)
"""What an operator may be called with. Devices are never stored: a graph runs where it is put."""


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the caller gives."""

    name: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class Constant:
    """A weight or buffer. `digest` names where it comes from and its content, and takes part in
    equality; `value` is the tensor itself (never written to) and does not: a graph read back from
    text has none. `derived`: how it was computed of other constants, where a pass says so.
    `source`: the qualified names under which the model holds it, several of one memory; none for
    what the model's code makes."""

    name: str
    type: TensorType
    digest: str
    value: torch.Tensor | None = field(default=None, compare=False, repr=False)
    derived: Derivation | None = field(default=None, compare=False, repr=False)
    source: tuple[str, ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator, named as `torch.ops` names it: "aten.convolution.default".

    `origin` is the user's source line and module path; it is provenance, not identity. `strict`:
    how it rounds decides something elsewhere (`ir.rounding`), so it is computed as eager does; or
    it is a cast by which the model rounds.
    """

    name: str
    op: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]
    types: tuple[TensorType, ...]
    origin: str = field(default="", compare=False)
    strict: bool = False
    uses: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """Names of the values it reads, in order of appearance, repeats included."""
    results: tuple[str, ...] = field(init=False, compare=False, repr=False)
    """Names of the values it defines."""
    exact: tuple[str, ...] = field(init=False, repr=False)
    """Its floats and truth values in words, for 0.0 == -0.0 and 1 == True, and yet they differ."""

    def __post_init__(self) -> None:
        uses: list[str] = []
        exact: list[str] = []
        _look(self.args, uses, exact)
        for _, arg in self.kwargs:
            _look((arg,), uses, exact)
        object.__setattr__(self, "uses", tuple(uses))
        object.__setattr__(self, "exact", tuple(exact))
        count = len(self.types)
        results = (self.name,) if count == 1 else _results(self.name, count)
        object.__setattr__(self, "results", results)

    @property
    def type(self) -> TensorType:
        """The type of the first result; for most operators the only one."""
        return self.types[0]


NodeGroup = tuple[Node, ...]
"""Nodes that run, or might run, as one task."""


def _look(args: tuple[Arg, ...], uses: list[str], exact: list[str]) -> None:
    """Adds what a node says of its arguments: it is asked for each node that is ever made."""
    for arg in args:
        if isinstance(arg, Ref):
            uses.append(arg.name)
        elif isinstance(arg, tuple):
            _look(arg, uses, exact)
        elif isinstance(arg, float | bool):
            exact.append(repr(arg))


def _results(name: str, count: int) -> tuple[str, ...]:
    return tuple(result_name(name, i) for i in range(count))


@dataclass(frozen=True, slots=True, eq=False)
class Derivation:
    """How a constant was computed: as the result of this number of a node. `reads`: what the node
    reads, by name: constants, here without their values, and results of other nodes."""

    node: Node
    index: int
    reads: Mapping[str, Constant | Derivation]


@dataclass(frozen=True, slots=True)
class Condition:
    """A fact about the value of a constant that a rewrite saw, and relies on: a kind of
    `ir.conditions` and its numbers. The constant has no value here."""

    constant: Constant
    kind: str
    numbers: tuple[int | float, ...] = ()


@dataclass(frozen=True, slots=True)
class State:
    """A value with a fixed place that is read and written: the input `name` is what it is before a
    call, the output of number `output` what it is after. `source`: the names under which the model
    holds it; `value`: the tensor itself. In the body of a task: the result that is written in the
    memory of that input.

    >>> from anabranch.ir.text import parse_graph
    >>> graph = parse_graph('''
    ... graph counter {
    ...   input %x: f32[3]
    ...   state %n: f32[] -> %more
    ...   %more: f32[] = aten.add.Tensor(%n, 1)
    ...   %y: f32[3] = aten.mul.Tensor(%x, %more)
    ...   return %y, %more
    ... }''')
    >>> graph.states
    (State(name='n', output=1),)
    """

    name: str
    output: int
    source: tuple[str, ...] = field(default=(), compare=False, repr=False)
    value: torch.Tensor | None = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str:
        """What a person calls it: the model's first name for it, or else its own."""
        return self.source[0] if self.source else self.name


class GraphMemo:
    """Facts that follow from a graph, which never changes, are kept with the object once they were
    asked for."""

    __slots__ = ("code", "same", "structure")

    code: int
    """Its hash."""
    same: Graph
    """`ir.key.canonical` of it, without content."""
    structure: str
    """`ir.key.structure_text`."""


@dataclass(frozen=True, slots=True)
class Graph(GraphMemo):
    """Inputs, constants and nodes in an order in which they can run, and what is returned.
    `conditions`: what it is right under, where rewrites looked at values. `states`: which inputs
    are states, and which outputs their new values; the graph itself writes nothing."""

    name: str
    inputs: tuple[Input, ...]
    constants: tuple[Constant, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    conditions: tuple[Condition, ...] = field(default=(), compare=False, repr=False)
    states: tuple[State, ...] = ()

    def __hash__(self) -> int:
        try:
            return self.code
        except AttributeError:
            parts = self.name, self.inputs, self.constants, self.nodes, self.outputs, self.states
            object.__setattr__(self, "code", hash(parts))
            return self.code

    @property
    def call_inputs(self) -> tuple[Input, ...]:
        """The inputs that a call brings: those that are no states."""
        held = {state.name for state in self.states}
        return tuple(value for value in self.inputs if value.name not in held)


def result_name(node: str, index: int) -> str:
    """The name of a node's result by its place: the node's own for the first, "node.1" for the
    second."""
    return node if index == 0 else f"{node}.{index}"


def refs(arg: Arg) -> Iterator[Ref]:
    """The references inside an argument, nested tuples included."""
    return (leaf for leaf in leaves(arg) if isinstance(leaf, Ref))


def leaves(arg: Arg) -> Iterator[Arg]:
    """What an argument holds that is no tuple."""
    if isinstance(arg, tuple):
        for item in arg:
            yield from leaves(item)
    else:
        yield arg


def rename(arg: Arg, names: dict[str, str]) -> Arg:
    """The argument with the values it refers to renamed; names not in the table stay."""
    if isinstance(arg, Ref):
        return Ref(names.get(arg.name, arg.name))
    if isinstance(arg, tuple):
        return tuple(rename(item, names) for item in arg)
    return arg


def types(graph: Graph) -> dict[str, TensorType]:
    """The type of each value of the graph."""
    table = {value.name: value.type for value in graph.inputs}
    table.update((constant.name, constant.type) for constant in graph.constants)
    for node in graph.nodes:
        table.update(zip(node.results, node.types, strict=True))
    return table


def result_types(graph: Graph) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and dtype of each output: what a rewrite leaves as it is, where strides may change."""
    table = types(graph)
    return [(table[ref.name].shape, table[ref.name].dtype) for ref in graph.outputs]


def producers(graph: Graph) -> dict[str, Node]:
    """The node that defines each value that a node defines."""
    return {result: node for node in graph.nodes for result in node.results}


def users(graph: Graph) -> dict[str, list[Node]]:
    """The nodes that read each value, once each, in graph order; an unread value has no entry."""
    table: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in dict.fromkeys(node.uses):
            table.setdefault(name, []).append(node)
    return table

"""Marks: where nothing that a call brings hides its padding, the padding itself does.

    softmax(scores[b,h,N,N])                  sums over keys that are padding: refused
    ids i64[b,N] looks up a table             its padding is a number that no index is
    padding = eq(ids[0], mark)                bool[N]
    softmax(scores + masked_fill(0, padding, -inf))

The graph that is compiled is the rewritten one, and `padding_proof` is of it: what is written here
is checked there, and takes nothing on trust. In a call as large as the plan nothing is a mark, and
the graph computes what the model does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.errors import CaptureError
from anabranch.frontend.captured import Captured
from anabranch.frontend.padded_axes import CARRIED, MixedRowsError, Number, PaddedAxis, PaddedCall
from anabranch.frontend.padded_indices import SAME
from anabranch.frontend.padded_sums import SUMS
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, rename, types
from anabranch.ir.padding_marks import MARKS
from anabranch.ir.types import TensorType

NEUTRAL: Sequence[Number] = (-math.inf, 0, math.inf, 1)
"""What hides padding from one operator or another."""
MASK = "attn_mask"
WEIGHTS = tuple(f"aten.{name}" for name in ("softmax", "_softmax", "_safe_softmax"))
"""Operators that make weights of scores."""
PARTS = tuple(f"aten.{name}" for name in ("select", "slice"))
"""Operators that leave numbers out, which nothing looks up then."""
Types = Mapping[str, TensorType]


@dataclass(frozen=True, slots=True)
class Hidden:
    """An operand of a node: along this axis of it, padding becomes `fill`. `op`: what the node
    calls; `node`: its number among the nodes of a graph that call it, of which there are `count`.
    For attention the operand is the mask, which may not be there yet: its last axis is that of
    keys.

    Graphs of two sizes may have other numbers of nodes: a slice of all of a table is none."""

    node: int
    operand: str
    axis: int
    fill: Number
    op: str
    count: int


@dataclass(frozen=True, slots=True)
class MarkedPadding:
    """Padding along `axis` of the call's tensor number `place` is a mark, and by that hidden."""

    place: int
    axis: int
    hidden: tuple[Hidden, ...] = ()


def can_mark(captured: Captured, rows: Sequence[Sequence[tuple[int, int, int]]]) -> list[int]:
    """The call's tensors that a table is looked up by, and that have rows on one axis: padding of
    theirs may be a number that none of the call's own is."""
    graph = captured.graph
    makers, table, looked_up = producers(graph), types(graph), set[str]()
    for node in graph.nodes:
        if ops.packet_name(node.op) == "aten.embedding":
            looked_up.update(_sources(node.args[1], makers, table))
    return [
        place
        for place, (value, at) in enumerate(zip(graph.call_inputs, rows, strict=True))
        if value.name in looked_up
        and value.type.dtype in MARKS
        and len(at) == 1
        and at[0][1:] == (1, 1)
    ]


def _sources(index: Arg, makers: Mapping[str, Node], table: Types) -> Iterator[str]:
    """The values all of whose numbers an index has, as they are."""
    while isinstance(index, Ref):
        yield index.name
        maker = makers.get(index.name)
        name = ops.packet_name(maker.op) if maker is not None else ""
        if maker is None or name not in (*CARRIED, *SAME) or name in PARTS:
            return
        read = maker.args[0]
        if not isinstance(read, Ref):
            return
        if table[read.name].dtype.itemsize > maker.type.dtype.itemsize:
            return  # which makes another number of a mark
        index = read


def numbered(nodes: Sequence[Node]) -> Iterator[tuple[int, Node]]:
    """The nodes, each with its number among those that call the same operator."""
    met = Counter[str]()
    for node in nodes:
        name = ops.packet_name(node.op)
        yield met[name], node
        met[name] += 1


def hiding(
    number: tuple[int, int],
    name: str,
    call: PaddedCall,
    operand: str,
    rows: PaddedAxis,
    type: TensorType,
) -> Hidden | None:
    """What hides padding from a node, which works along the axis of an operand; None if nobody
    knows. `number`: of the node among those that call the same, and how many there are."""
    node, count = number
    if (rows.outer, rows.inner) != (1, 1):
        return None
    if name == "aten.scaled_dot_product_attention":
        shape = call.shape(MASK)
        last = call.at(MASK, len(shape) - 1) if shape else rows
        alike = last is not None and (last.outer, last.inner) == (1, 1)
        causal = call.arguments.get("is_causal")
        return Hidden(node, MASK, -1, -math.inf, name, count) if alike and not causal else None
    for fill in NEUTRAL:
        try:
            SUMS[name](call, replace(rows, fill=fill))
        except (MixedRowsError, KeyError):
            continue
        own = _as(fill, type.dtype)
        return None if own is None else Hidden(node, operand, rows.axis, own, name, count)
    return None


def _as(fill: Number, dtype: torch.dtype) -> Number | None:
    """The number in this type; of integers the least and the largest are as good as infinities."""
    if dtype.is_floating_point:
        return fill
    if dtype == torch.bool:
        return bool(fill) if fill in (0, 1) else None
    if dtype.is_complex:
        return None if fill != 0 else 0
    ends = torch.iinfo(dtype)
    return {-math.inf: ends.min, math.inf: ends.max}.get(fill, fill)


def with_infinities(rows: PaddedAxis, dtype: torch.dtype) -> PaddedAxis:
    """The axis with an infinity for an integer that is the last of its type."""
    if rows.fill is None or dtype == torch.bool or dtype.is_floating_point or dtype.is_complex:
        return rows
    ends = torch.iinfo(dtype)
    fill = {ends.min: -math.inf, ends.max: math.inf}.get(int(rows.fill), rows.fill)
    return replace(rows, fill=fill)


def with_marks(captured: Captured, markings: Sequence[MarkedPadding]) -> Captured:
    """The graph that reads marks, one axis after the other: the nodes of a marking are those of
    the graph before it."""
    for marking in markings:
        captured = replace(captured, graph=_Marking(captured.graph, marking).graph())
    return captured


class _Marking:
    """One graph on its way to another."""

    def __init__(self, source: Graph, marking: MarkedPadding) -> None:
        self.source, self.marking = source, marking
        self.nodes: list[Node] = []
        self.types = types(source)
        self.input = source.call_inputs[marking.place]

    def graph(self) -> Graph:
        marked, axis = self.input, self.marking.axis
        mark, row = MARKS[marked.type.dtype], Ref(marked.name)
        for other in reversed(range(len(marked.type.shape))):
            if other != axis:
                row = self._call("row", "aten.select.int", row, other, 0)
        self.padding = self._call("padding", "aten.eq.Scalar", row, mark)
        where = self._call("marks", "aten.eq.Scalar", Ref(marked.name), mark)
        plain = self._call("unmarked", "aten.masked_fill.Scalar", Ref(marked.name), where, 0)
        names = {marked.name: plain.name}
        asked: dict[tuple[str, int], list[Hidden]] = {}
        calls = Counter(ops.packet_name(node.op) for node in self.source.nodes)
        for hidden in self.marking.hidden:
            asked.setdefault((hidden.op, hidden.node), []).append(hidden)
            if calls[hidden.op] != hidden.count:
                raise CaptureError(
                    "the model is another graph at this size",
                    f"it calls {hidden.op} {calls[hidden.op]} times, and {hidden.count} times at "
                    "those at which padding was proved harmless",
                    "compile this size for itself, without dynamic_shapes",
                )
        for number, node in numbered(self.source.nodes):
            args = tuple(rename(arg, names) for arg in node.args)
            kwargs = tuple((key, rename(arg, names)) for key, arg in node.kwargs)
            node = replace(node, args=args, kwargs=kwargs) if marked.name in node.uses else node
            for hidden in asked.get((ops.packet_name(node.op), number), ()):
                node = self._hidden(node, hidden)
            self.nodes.append(node)
        return replace(self.source, nodes=tuple(self.nodes))

    def _hidden(self, node: Node, hidden: Hidden) -> Node:
        arguments = ops.arguments(node)
        operand = arguments[hidden.operand]
        if hidden.operand == MASK:
            return _with(node, MASK, self._mask(operand, arguments["query"]))
        assert isinstance(operand, Ref), "what has rows is a value"
        if ops.packet_name(node.op) in WEIGHTS:
            return _with(node, hidden.operand, self._masked(operand, hidden.axis))
        return _with(node, hidden.operand, self._filled(operand, hidden.axis, hidden.fill))

    def _masked(self, scores: Ref, axis: int) -> Ref:
        """Scores and a mask that is added, as attention has it: by that it is known again."""
        type, rows = self.types[scores.name], self.types[self.padding.name].shape[0]
        none = self._call("mask", "aten.zeros.default", (rows,), dtype=type.dtype)
        mask = self._call("mask", "aten.masked_fill.Scalar", none, self.padding, -math.inf)
        if (after := len(type.shape) - 1 - axis) > 0:
            mask = self._call("mask", "aten.view.default", mask, (rows, *[1] * after))
        return self._call("hidden", "aten.add.Tensor", scores, mask)

    def _filled(self, value: Ref, axis: int, fill: Number) -> Ref:
        rank = len(self.types[value.name].shape)
        where = self._along(rank - axis % rank)
        return self._call("hidden", "aten.masked_fill.Scalar", value, where, fill)

    def _mask(self, mask: Arg, query: Arg) -> Ref:
        """The mask of an attention that keeps every row from padding, too."""
        assert isinstance(query, Ref)
        if not isinstance(mask, Ref):
            rows = self.types[self.padding.name].shape[0]
            dtype = self.types[query.name].dtype
            mask = self._call("mask", "aten.zeros.default", (1, rows), dtype=dtype)
        if self.types[mask.name].dtype == torch.bool:
            return self._filled(mask, -1, False)
        return self._filled(mask, -1, -math.inf)

    def _along(self, axes: int) -> Ref:
        """Which rows are padding, for a value in which so many axes begin with that of rows."""
        if axes == 1:
            return self.padding
        rows = self.types[self.padding.name].shape[0]
        return self._call("padding", "aten.view.default", self.padding, (rows, *[1] * (axes - 1)))

    def _call(self, hint: str, op: str, *args: Arg, **kwargs: Arg) -> Ref:
        name, number = f"{self.input.name}_{hint}", 0
        while name in self.types:
            name, number = f"{self.input.name}_{hint}_{number}", number + 1
        node = ops.make_node(name, op, args, self.types, tuple(kwargs.items()))
        self.nodes.append(node)
        self.types[name] = node.type
        return Ref(name)


def _with(node: Node, operand: str, value: Ref) -> Node:
    """The node with another operand."""
    place = [parameter.name for parameter in ops.parameters(node.op)].index(operand)
    args, kwargs = list(node.args), dict(node.kwargs)
    if operand in kwargs:
        kwargs[operand] = value
    else:
        args += ops.defaults(node.op)[len(args) : place + 1]
        args[place] = value
    return replace(node, args=tuple(args), kwargs=tuple(kwargs.items()))

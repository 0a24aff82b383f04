"""Attention told apart: what is read for a block of queries, and what becomes of the result.

    scaled_dot_product_attention(query, key, value, mask)  at  (n, c, h, w)

    batch  n, c      a head of a sample: its queries meet its own keys (or those of its group)
    row    h         a query           deep   the numbers of a query, multiplied with a key's
    col    w         of the result     place  a key, with the value that stands at the same place

Heads of a single query that share their keys are rows of one block (`gathered`), so that the keys
are read once: batches are then the groups, and rows the heads of one.

The operator is no reduction of a task's data-flow graph, for softmax in blocks is none. What it
reads, and what stands after it, are: a view, a cast, a residual.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import (
    BufferStore,
    Dfg,
    Expr,
    KernelVariable,
    Within,
    all_parts,
    parts,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axes_of, axis, number
from anabranch.kernels.dfg.lower import held, lower, values_of
from anabranch.kernels.dfg.lowering_api import LoweringCall, NotLowered, Point, Value, arguments
from anabranch.kernels.dfg.simplify import both, bounded, choose
from anabranch.kernels.dfg.traversal import (
    AxisIndices,
    reductions,
    scans,
    substitute_index,
    substitute_stores,
)
from anabranch.kernels.triton.axis_layout import apart, flattened
from anabranch.kernels.triton.product import ProductAxes, plain

OPERATOR = "aten.scaled_dot_product_attention.default"
NAME = "attended"
"""The name of the result in a kernel, before anything is done with it."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_HEAD_CHANNELS = 256
"""Numbers of a head, at most: a block of queries and its sums lie in registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(ProductAxes):
    """The graph that stores what is made of `result`, and what that is made of. The axes are those
    of the second product, of weights and values: rows are queries, columns the numbers of a value,
    batches samples and heads. The depth is the first one's, the numbers of a query, which are no
    axis of the graph."""

    dfg: Dfg
    result: KernelVariable
    query: Value
    key: Value
    value: Value
    mask: Value | None
    causal: bool
    scale: float
    grouped: bool
    gathered: bool

    @property
    def row(self) -> Axis | None:
        """The graph's axis along queries, or along the heads of a group (`gathered`); None for a
        single query of a head with keys of its own."""
        return self.rows[0] if self.rows else None

    @property
    def col(self) -> Axis:
        """The graph's axis along the numbers of a value."""
        return self.cols[0]

    @property
    def places(self) -> int:
        """Keys of each batch and head."""
        return self.key.shape[-2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the query in memory."""
        return self.query.type.dtype


def attention_of(body: Graph) -> Attention | Refused:
    """The attention that a body is, with what stands around it, or why it is none."""
    nodes = [node for node in body.nodes if node.op == OPERATOR]
    bindings = {node.name: held(NAME, node.type) for node in nodes}
    dfg = lower(body, bindings)
    if isinstance(dfg, Refused):
        return dfg
    if len(nodes) != 1:
        return Refused("it has no attention" if not nodes else "it has several attentions")
    try:
        return _with_axes(dfg, arguments(nodes[0], values_of(body, bindings)))
    except NotLowered as failed:
        return Refused(str(failed))


def _with_axes(dfg: Dfg, call: LoweringCall) -> Attention | Refused:
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    mask = call.arguments.get("attn_mask")
    results = _results(dfg)
    why = _why_not(call, query, key, value)
    why = why or _why_not_after(dfg, results, (query.shape[-2], value.shape[-1]))
    for read in (query, key, value, mask):
        if read is not None and _folds(read.at(_anywhere(read.shape))):
            why = why or Refused("what it reads is reduced from something else")
    if why:
        return why
    (result,) = results
    row, col = (_alone(index) for index in result.index[-2:])
    assert col is not None
    heads = _heads_that_share(call, result)
    if heads is not None:
        dfg = apart(dfg, {heads: query.shape[-3] // key.shape[-3]})
        (result,) = _results(dfg)
        *_, row = (dim for dim in dfg.axes if dim in axes_of(result.index[-3]))
    scale = call.arguments.get("scale")
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return Attention(
        batch=tuple(dim for dim in dfg.axes if dim not in (row, col) and dim.extent > 1),
        rows=() if row is None else (row,),
        cols=(col,),
        depth=(Axis("deep", query.shape[-1]),),
        dfg=dfg,
        result=result,
        query=query,
        key=key,
        value=value,
        mask=mask,
        causal=bool(call.arguments.get("is_causal")),
        scale=scale,
        grouped=bool(call.arguments.get("enable_gqa")),
        gathered=heads is not None,
    )


def _results(dfg: Dfg) -> list[KernelVariable]:
    """Where what is stored reads the result."""
    exprs = {part for store in dfg.stores for part in all_parts(store.expr)}
    return [part for part in exprs if isinstance(part, KernelVariable)]


def _heads_that_share(call: LoweringCall, result: KernelVariable) -> Axis | None:
    """The axis along heads whose single queries see the same keys in groups, if there are any."""
    query, key, value = (call.arguments[name] for name in ("query", "key", "value"))
    mask = call.arguments.get("attn_mask")
    if not call.arguments.get("enable_gqa") or call.arguments.get("is_causal"):
        return None
    heads = query.shape[-3]
    if query.shape[-2] > 1 or heads == key.shape[-3] or key.shape[-3] != value.shape[-3]:
        return None
    if mask is not None and len(mask.shape) > 2 and mask.shape[-3] > 1:
        return None
    axis = _alone(result.index[-3])
    if axis in {other for index in result.index[:-3] for other in axes_of(index)}:
        return None
    return axis if axis is not None and axis.extent == heads else None


def _why_not(call: LoweringCall, query: Value, key: Value, value: Value) -> Refused | None:
    """Why no kernel is written for such a call."""
    options = call.arguments
    if options.get("dropout_p"):
        return Refused("attention with dropout draws random numbers")
    if options.get("is_causal") and options.get("attn_mask") is not None:
        return Refused("attention that is causal has no other mask")
    scale = options.get("scale")
    if scale is not None and not 0 < scale < math.inf:
        # What is hidden is -inf before it is scaled, in some of ATen's kernels, and nan after it.
        return Refused(f"attention with a scale of {scale} is ATen's affair")
    if query.type.dtype not in DTYPES:
        return Refused(f"attention in {query.type.dtype} has no kernel")
    if len({operand.type.dtype for operand in (query, key, value)}) > 1:
        return Refused("query, key and value are of several types")
    for size in (query.shape[-1], value.shape[-1]):
        if not 1 < size <= MOST_HEAD_CHANNELS:
            return Refused(
                f"a head of {size} numbers has no kernel: it takes 2 to {MOST_HEAD_CHANNELS}"
            )
    heads = [operand.shape[-3] if len(operand.shape) > 2 else 1 for operand in (query, key, value)]
    if options.get("enable_gqa"):
        if min(len(operand.shape) for operand in (query, key, value)) < 3:
            return Refused("groups of heads, and a tensor without heads")
        if heads[0] % heads[1] or heads[0] % heads[2]:
            return Refused(
                f"{heads[0]} heads are no whole number of groups of {heads[1]} and {heads[2]}"
            )
    return None


def _why_not_after(
    dfg: Dfg, results: list[KernelVariable], sizes: tuple[int, int]
) -> Refused | None:
    """Why what is made of the result cannot be made of a block of it."""
    if len(results) != 1:
        return Refused("what is made of it reads no element of it, or several")
    if parts(results[0]):
        return Refused("what is made of it reads it at places that are themselves computed")
    *lead, row, col = results[0].index
    ends = [_alone(row), _alone(col)]
    if tuple(axis.extent if axis is not None else 1 for axis in ends) != sizes:
        return Refused("what is made of it has other rows and columns")
    if ends[0] == ends[1] or set(ends) & {axis for index in lead for axis in axes_of(index)}:
        return Refused("what is made of it has rows and columns in common")
    if any(store.type.numel != dfg.points for store in dfg.stores):
        return Refused("its results are of several sizes")
    if _folds(*(store.expr for store in dfg.stores)):
        return Refused("what is made of it is reduced")
    return None


def _folds(*exprs: Expr) -> bool:
    return bool(reductions(*exprs) or scans(*exprs))


def _alone(index: Index) -> Axis | None:
    """The axis that the index is, if it is one."""
    atom = index.terms[0][0] if len(index.terms) == 1 else None
    if isinstance(atom, Axis) and index == axis(atom.name, atom.extent):
        return atom
    return None


def _anywhere(shape: tuple[int, ...]) -> Point:
    return tuple(axis(f"i{d}", n) for d, n in enumerate(shape))


@dataclass(frozen=True, slots=True)
class Block:
    """An attention in terms of a kernel's own axes, which run on to the end of its blocks: what is
    read, and what is stored, as far as it is there."""

    query: Expr
    key: Expr
    value: Expr
    mask: Expr | None
    stores: tuple[BufferStore, ...]


def block_of(attention: Attention, axes: dict[str, Axis]) -> Block:
    """`axes`: row, deep, place and col; deep_down and place_down are the same seen from a factor
    on the right."""
    at = {name: axis(dim.name, dim.extent) for name, dim in axes.items()}
    batch = flattened(attention.batch, "batch")[1]
    place = {**batch, attention.col: at["col"]}
    if attention.row is not None:
        place[attention.row] = at["row"]
    lead, shared, query = _lead(attention, place), _lead(attention, batch), at["row"]
    there: Within = ()
    if attention.gathered:
        assert attention.row is not None
        first = {**batch, attention.row: number(0)}
        shared, query = _lead(attention, first), number(0)
        there = bounded(at["row"], 0, attention.m)

    def read(value: Value, lead: Point, *ends: Index, there: Within = ()) -> Expr:
        own = _own(value, lead, attention)
        within = both(there, _within(ends, value.shape[-2:]))
        return plain(choose(within, value.at((*own, *ends), within), 0.0))

    mask = attention.mask
    return Block(
        read(attention.query, lead, query, at["deep"], there=there),
        read(attention.key, shared, at["place"], at["deep_down"]),
        read(attention.value, shared, at["place_down"], at["col"]),
        _masked(mask, (*shared, query, at["place"])) if mask is not None else None,
        substitute_stores(attention.dfg.stores, place),
    )


def _lead(attention: Attention, place: AxisIndices) -> Point:
    """Which head of which sample the result is of, in terms of the kernel's axes."""
    lead = attention.result.index[:-2]
    return tuple(substitute_index(index, place, lambda expr: expr) for index in lead)


def _own(value: Value, lead: Point, attention: Attention) -> Point:
    """Which matrix of a stack; several heads of a group share theirs."""
    sizes = value.shape[:-2]
    own = list(lead[len(lead) - len(sizes) :])
    if attention.grouped:
        own[-1] = own[-1] // (attention.query.shape[-3] // sizes[-1])
    return tuple(number(0) if n == 1 else i for i, n in zip(own, sizes, strict=True))


def _masked(mask: Value, point: Point) -> Expr:
    """The mask at a query and a key; along an axis of one element it is the same for all."""
    pairs = zip(point[len(point) - len(mask.shape) :], mask.shape, strict=True)
    own = tuple(number(0) if n == 1 else i for i, n in pairs)
    return mask.at(own, _within(own, mask.shape))


def _within(point: Point, shape: tuple[int, ...]) -> Within:
    """Where the point lies in the tensor."""
    pairs = zip(point, shape, strict=True)
    return tuple(bound for i, n in pairs for bound in bounded(i, 0, n))

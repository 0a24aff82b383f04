"""Lowering: the body of a task -> its Dfg, or a sentence that says why it has none.

Each value of the body is a function from an index to an expression. A node's function asks those
of what it reads, so the result of a whole chain is one expression over loads of the body's inputs:
composing functions is fusion in registers, and nothing in between is stored.

    %add  = aten.add(%x, %bias)         for n < 1, c < 64, h < 56, w < 56:
    %relu = aten.relu(%add)        ->     relu[n, c, h, w] = f16(max(x[n, c, h, w] + bias[c], 0.0))

    %k_1 = index_copy(%k, 2, %at, %add)  ->  k_1[n, c, at[h], w] = f16(x[n, c, h, w] + ...)

The last is of `lower_parts`, for bodies that write parts of states in their places.

`bindings` supply the function of a node's result that something else computes, such as the
accumulator of a contraction: only what stands around it is lowered then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph, Node, types
from anabranch.ir.refused import Refused
from anabranch.ir.rounding import divides_by_number, strict_values
from anabranch.ir.state import written_parts
from anabranch.ir.types import TensorType
from anabranch.kernels.dfg.argreduce import ARG_REDUCTIONS
from anabranch.kernels.dfg.computed_index import ELSEWHERE
from anabranch.kernels.dfg.concat_stores import ConcatPart, parts_of
from anabranch.kernels.dfg.draws import DRAWS
from anabranch.kernels.dfg.expr import (
    COMPUTE,
    Arith,
    BufferStore,
    Dfg,
    Expr,
    KernelVariable,
    Reduce,
    Scan,
    Within,
)
from anabranch.kernels.dfg.im2col import PATCHES
from anabranch.kernels.dfg.index_expr import Axis, Index, axis, number
from anabranch.kernels.dfg.lowering_api import (
    ROUNDED,
    At,
    Lowering,
    LoweringCall,
    NotLowered,
    Point,
    Value,
    arguments,
)
from anabranch.kernels.dfg.movement import MOVES
from anabranch.kernels.dfg.part_stores import PartStore, part_store
from anabranch.kernels.dfg.pointwise import POINTWISE
from anabranch.kernels.dfg.pool_gradients import POOL_GRADIENTS
from anabranch.kernels.dfg.reductions import REDUCTIONS
from anabranch.kernels.dfg.scans import SCANS
from anabranch.kernels.dfg.simplify import cast, load
from anabranch.kernels.dfg.strict import strict
from anabranch.kernels.dfg.window_ops import WINDOWS

LOWERINGS: dict[str, Lowering] = {
    **POINTWISE,
    **MOVES,
    **ELSEWHERE,
    **REDUCTIONS,
    **ARG_REDUCTIONS,
    **SCANS,
    **WINDOWS,
    **PATCHES,
    **POOL_GRADIENTS,
    **DRAWS,
}
"""How each operator is lowered, by its name without the overload."""

OVERLOADS_REFUSED = frozenset({"aten.where.default", "aten.sum.dim_DimnameList"})

MOST_NODES = 600
"""Longer bodies take seconds to compile, and registers to run."""

AXES = {4: "nchw", 3: "nlc", 2: "nc", 1: "c", 5: "ncdhw"}
"""What the dimensions of a result are called, by their number."""


def lower(
    body: Graph, bindings: Mapping[str, At] | None = None, most: int = MOST_NODES
) -> Dfg | Refused:
    """The data-flow graph of the body, or why there is none. `most`: nodes that it
    may have."""
    try:
        return _tried(body, bindings, most) if bindings else _alone(_bare(body), most)
    except RecursionError:
        return Refused("its values depend on each other through too many others")


@functools.lru_cache(maxsize=1 << 9)
def lower_parts(body: Graph) -> Dfg | Refused:
    """The data-flow graph of a body that writes parts of states in their places, and of these
    nothing else; or why there is none."""
    if not written_parts(body):
        return Refused("it writes no part of a state in its place")
    try:
        return _tried(body, {}, MOST_NODES, parts=True)
    except RecursionError:
        return Refused("its values depend on each other through too many others")


@functools.lru_cache(maxsize=1 << 9)
def _alone(body: Graph, most: int) -> Dfg | Refused:
    """Every template asks for the same graph of a body, and whoever looks for groups to fuse comes
    back to the same ones."""
    return _tried(body, {}, most)


def _bare(body: Graph) -> Graph:
    """The body without its name and the content of weights, which would be kept alive."""
    constants = tuple(Constant(c.name, c.type, "-") for c in body.constants)
    return Graph("g", body.inputs, constants, body.nodes, body.outputs)


def _tried(
    body: Graph, bindings: Mapping[str, At], most: int, parts: bool = False
) -> Dfg | Refused:
    try:
        return _lowered(body, bindings, most, parts)
    except NotLowered as failed:
        return Refused(str(failed))
    except OverflowError as beyond:
        return Refused(f"one of its numbers is none of its type: {beyond}")


def held(name: str, type: TensorType) -> At:
    """For `bindings`: a value that the surrounding kernel holds in a variable of this name, in the
    type that such values are computed in."""
    return lambda point, within: KernelVariable(name, COMPUTE[type.dtype], point)


def values_of(body: Graph, bindings: Mapping[str, At]) -> dict[str, Value]:
    """Every value of the body as a function. NotLowered if one cannot be."""
    values: dict[str, Value] = {}
    declared = [(value.name, value.type) for value in body.inputs]
    declared += [(constant.name, constant.type) for constant in body.constants]
    for name, type in declared:
        values[name] = Value(type, bindings.get(name, _read(name, type)))
    decided = strict_values(body)
    for node in body.nodes:
        bound = {name: bindings[name] for name in node.results if name in bindings}
        lowered = () if len(bound) == len(node.types) else _lowering(node, values, bool(bound))
        for k, (name, type) in enumerate(zip(node.results, node.types, strict=True)):
            at = bound.get(name) or (lowered[k] if k < len(lowered) else _missing(node, name))
            if name in decided and name not in bound:
                read = [values[name] for name in node.uses]
                at = strict(at, type.dtype, read, inverse=divides_by_number(node))
            values[name] = Value(type, _called(name, at))
    return values


def _lowered(body: Graph, bindings: Mapping[str, At], most: int, parts: bool) -> Dfg:
    if len(body.nodes) > most:
        raise NotLowered(f"{len(body.nodes)} nodes are too many for one expression")
    for name, type in types(body).items():
        if type.dtype not in COMPUTE and name not in bindings:
            raise NotLowered(f"%{name} is of {type.dtype}, for which there are no kernels")
        if type.numel == 0:
            raise NotLowered(f"%{name} is empty")
    written = written_parts(body) if parts else {}
    values = values_of(body, {**bindings, **dict.fromkeys(written, _unread)})
    stores = _part_stores(body, written, values)
    pieces = [
        piece
        for ref in body.outputs
        for piece in stores.get(ref.name) or _pieces(ref.name, body, values)
    ]
    try:
        shape = _space([piece.value.shape for piece in pieces])
    except NotLowered:
        pieces = [StorePiece(ref.name, values[ref.name]) for ref in body.outputs]
        # Only contractions sum blocks; elsewhere what is short would be computed for each element.
        if any(ops.contracts(node) for node in body.nodes):
            pieces = _by_blocks(pieces) or pieces
        elif not any(ops.packet_name(node.op) in WINDOWS for node in body.nodes):
            finest = refined([piece.shape for piece in pieces])
            pieces = [replace(piece, finest=finest) for piece in pieces]
        shape = _space([piece.shape for piece in pieces])
    if written and any(math.prod(piece.shape) != math.prod(shape) for piece in pieces):
        raise NotLowered("one of its results would be stored several times")
    names = AXES.get(len(shape)) or [f"i{d}" for d in range(len(shape))]
    axes = tuple(Axis(name, n) for name, n in zip(names, shape, strict=True))
    point = tuple(axis(dim.name, dim.extent) for dim in axes)
    _in_order(body, values, point)
    return Dfg(axes, tuple(_stored(piece, point, values[piece.name].type) for piece in pieces))


def _stored(piece: StorePiece, point: Point, type: TensorType) -> BufferStore:
    """What the piece stores at a point of the space, in a result of this type."""
    own = piece.own(_own(point, piece.shape))
    if _overlaps(type):
        raise NotLowered(f"%{piece.name} has several elements at one place of memory")
    expr = cast(piece.value.at(own), type.dtype)
    if isinstance(expr, Arith) and expr.op == ROUNDED.get(type.dtype):
        (expr,) = expr.args  # storing it rounds
    index = piece.part.index(own) if piece.part else own
    where = piece.part.where(own) if isinstance(piece.part, PartStore) else None
    return BufferStore(piece.name, type, index, expr, where)


def _part_stores(
    body: Graph, written: Mapping[str, str], values: Mapping[str, Value]
) -> dict[str, list[StorePiece]]:
    """By the name of each value of which a part is written what is stored."""
    stores: dict[str, list[StorePiece]] = {}
    for node in body.nodes:
        if node.name in written:
            part = part_store(arguments(node, values))
            stores[node.name] = [StorePiece(node.name, part.value, part)]
    return stores


def _unread(point: Point, within: Within) -> Expr:
    raise NotLowered("what is written in part is read by nobody in the same launch")


@dataclass(frozen=True, slots=True)
class StorePiece:
    """What one store writes: a result, or a part of it. `blocks`: into how many its rows are cut
    in the space of all results; `whole`: whether it has a number for each element of a block, and
    not one for each block. `finest`: the shape of that space, if its own has some axes of that as
    one."""

    name: str
    value: Value
    part: ConcatPart | PartStore | None = None
    blocks: int = 0
    whole: bool = True
    finest: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """What it takes of the space."""
        if self.finest:
            return self.finest
        *lead, last = self.value.shape if self.value.shape else (1,)
        if not self.blocks:
            return self.value.shape
        return (*lead, self.blocks, last // self.blocks if self.whole else 1)

    def own(self, point: Point) -> Point:
        """The point of the value at a point of what it takes of the space."""
        if self.finest:
            return _joined(point, self.finest, self.value.shape)
        if not self.blocks:
            return point
        *lead, block, inside = point
        each = self.value.shape[-1] // self.blocks
        return (*lead, block * each + inside if self.whole else block)


def _pieces(name: str, body: Graph, values: Mapping[str, Value]) -> list[StorePiece]:
    parts = [StorePiece(name, part.value, part) for part in parts_of(name, body, values)]
    return parts or [StorePiece(name, values[name])]


def _by_blocks(pieces: list[StorePiece]) -> list[StorePiece]:
    """The pieces in a space of rows that are cut into blocks, if some of them have a number for
    each element of a row and all others one for each block of it; [] otherwise."""
    shapes = {piece.value.shape for piece in pieces}
    lasts = sorted({shape[-1] for shape in shapes if shape})
    if len(shapes) != 2 or len(lasts) != 2 or lasts[0] == 1 or lasts[1] % lasts[0]:
        return []
    if len({shape[:-1] for shape in shapes}) > 1:
        return []
    blocks, row = lasts
    return [replace(p, blocks=blocks, whole=p.value.shape[-1] == row) for p in pieces]


def refined(shapes: Collection[tuple[int, ...]]) -> tuple[int, ...]:
    """The coarsest shape from which each of these follows by taking neighbouring axes as one, in
    whatever order its elements lie in memory; () if there is none.

    >>> refined([(1, 196, 384), (1, 14, 14, 384)]), refined([(6, 4), (8, 3)])
    ((14, 14, 384), ())
    """
    if len({math.prod(shape) for shape in shapes}) != 1:
        return ()
    ends = {math.prod(shape[d:]) for shape in shapes for d in range(len(shape) + 1)}
    sizes = []
    for inner, outer in pairwise(sorted(ends)):
        if outer % inner:
            return ()
        sizes.append(outer // inner)
    return tuple(reversed(sizes))


def _joined(point: Point, finest: Sequence[int], shape: Sequence[int]) -> Point:
    """A point of the finest shape in one that takes neighbouring axes as one."""
    left, indices = list(zip(point, finest, strict=True)), list[Index]()
    for size in reversed(shape):
        index, taken = number(0), 1
        while taken < size:
            inner, extent = left.pop()
            index, taken = index + taken * inner, taken * extent
        indices.append(index)
    return tuple(reversed(indices))


def _in_order(body: Graph, values: Mapping[str, Value], point: Point) -> None:
    """Asks values of the whole space for their point, one after the other. They remember their
    answers, so that functions of a long chain do not call each other through all of it."""
    sizes = tuple(index.range[1] + 1 for index in point)
    long = [index for index, n in zip(point, sizes, strict=True) if n != 1]
    for node in body.nodes:
        shape = node.type.shape
        if ops.packet_name(node.op) not in POINTWISE:
            continue
        if len(shape) <= len(sizes) and _broadcast(shape, sizes):
            values[node.name].at(_own(point, shape))
        elif [n for n in shape if n != 1] == [n for n in sizes if n != 1]:
            left = iter(long)
            values[node.name].at(tuple(number(0) if n == 1 else next(left) for n in shape))


def _broadcast(shape: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether it broadcasts to a space of these sizes."""
    return all(n in (1, m) for n, m in zip(shape, sizes[len(sizes) - len(shape) :], strict=True))


def _own(point: Point, shape: tuple[int, ...]) -> Point:
    """The point in a value that is broadcast to the space."""
    own = point[len(point) - len(shape) :]
    return tuple(number(0) if n == 1 else i for i, n in zip(own, shape, strict=True))


def _space(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    """The one index space of all results, to which each of their shapes broadcasts."""
    rank = max(map(len, shapes))
    space = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1 and space[d] not in (1, n):
                raise NotLowered(
                    f"results of shapes {' and '.join(map(str, shapes))} share no space"
                )
            space[d] = max(space[d], n)
    return tuple(space)


def _overlaps(type: TensorType) -> bool:
    return any(n > 1 and s == 0 for n, s in zip(type.shape, type.strides, strict=True))


def _lowering(node: Node, values: Mapping[str, Value], partly: bool) -> tuple[At, ...]:
    lowering = LOWERINGS.get(ops.packet_name(node.op))
    if lowering is None or node.op in OVERLOADS_REFUSED:
        raise NotLowered(f"{node.op} has no lowering")
    call: LoweringCall = arguments(node, values)
    if not isinstance(next(iter(call.arguments.values()), None), Value) and node.uses:
        listed = next(iter(call.arguments.values()), None)
        if not isinstance(listed, tuple | int | float):
            raise NotLowered(f"{node.op} is called without a tensor")
    return lowering(call)


def _read(name: str, type: TensorType) -> At:
    return lambda point, within: load(name, type, point, within)


def _missing(node: Node, name: str) -> At:
    def at(point: Point, within: Within) -> Expr:
        raise NotLowered(f"%{name}, a further result of {node.op}, has no lowering")

    return at


def _called(name: str, at: At) -> At:
    """Notes on the expression which value of the model it is, for the text of the kernel."""

    def named(point: Point, within: Within) -> Expr:
        expr = at(point, within)
        if isinstance(expr, Arith | Reduce | Scan) and not expr.value_name:
            return replace(expr, value_name=name)
        return expr

    return named

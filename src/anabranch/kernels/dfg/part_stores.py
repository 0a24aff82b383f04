"""Parts of states, stored where they belong: a node that writes few elements of what was there
before runs over those elements, and the others are neither read nor written.

    %k_1 = index_copy(%k, 2, %at, %new)          for n < 1, c < 8, h < 1, w < 64:
                                           ->      k_1[n, c, at[h], w] = new[n, c, h, w]
                                                   where 0 <= at[h] < 1024
    %k_1 = slice_scatter(%k, %new, 2, 0, 5)        k_1[n, c, h, w] = new[n, c, h, w]

Nothing is stored at an index outside of the state, where eager raises (on a GPU the device
asserts). Where two indices are equal either element is there afterwards, as the operators have it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.state import broadcast
from anabranch.ir.types import TensorType
from anabranch.kernels.dfg.computed_index import counted, neighbouring_indices, start_of
from anabranch.kernels.dfg.expr import Expr
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.lookups import row_of
from anabranch.kernels.dfg.lowering_api import LoweringCall, NotLowered, Point, Value
from anabranch.kernels.dfg.simplify import arith

PartPlace = Callable[[Point], tuple[Point, "Expr | None"]]
"""Where an element of the part goes, and whether it is stored, None for always."""


@dataclass(frozen=True, slots=True)
class PartStore:
    """The part as a value, of the shape of all that is written, and where its elements go."""

    value: Value
    place: PartPlace

    def index(self, own: Point) -> Point:
        """The element of the state that the element of the part becomes."""
        return self.place(own)[0]

    def where(self, own: Point) -> Expr | None:
        """Whether the element is stored."""
        return self.place(own)[1]


def part_store(call: LoweringCall) -> PartStore:
    """What the node stores, and where. NotLowered if nobody can say."""
    return _STORES[ops.packet_name(call.node.op)](call)


def _index_copy(call: LoweringCall) -> PartStore:
    dim, index = call.dim(), call.arguments["index"]
    source: Value = call.arguments["source"]
    if not source.shape:
        raise NotLowered("a number is copied by no kernel")

    def place(own: Point) -> tuple[Point, Expr | None]:
        row = index.at(own[dim : dim + 1] if index.shape else ())
        there, inside = row_of(row, call.x.shape[dim])
        return (*own[:dim], there, *own[dim + 1 :]), inside

    return PartStore(source, place)


def _slice_scatter(call: LoweringCall) -> PartStore:
    dim, step = call.dim(), call.arguments.get("step", 1)
    start = start_of(call.arguments, call.x.shape[dim])
    return PartStore(
        call.arguments["src"],
        lambda own: ((*own[:dim], own[dim] * step + start, *own[dim + 1 :]), None),
    )


def _select_scatter(call: LoweringCall) -> PartStore:
    dim = call.dim()
    at = number(call.arguments["index"] % call.x.shape[dim])
    return PartStore(call.arguments["src"], lambda own: ((*own[:dim], at, *own[dim:]), None))


def _index_put(call: LoweringCall) -> PartStore:
    """x[:, i, j] = values: tensors of indices for neighbouring dimensions, broadcast to each
    other; the values are broadcast to what they name."""
    indices = neighbouring_indices(call)
    first, count = min(indices), len(indices)
    shared = broadcast(value.shape for value in indices.values())
    shape = call.x.shape
    whole = (*shape[:first], *shared, *shape[first + count :])
    values: Value = call.arguments["values"]

    def place(own: Point) -> tuple[Point, Expr | None]:
        inside: Expr | None = None
        rows: list[Index] = []
        for d, value in indices.items():
            row = counted(value.spread(own[first : first + len(shared)]), shape[d])
            there, here = row_of(row, shape[d])
            rows.append(there)
            if here is not None:
                inside = here if inside is None else arith("and", inside, here)
        return (*own[:first], *rows, *own[first + len(shared) :]), inside

    type = TensorType(whole, values.type.dtype)
    return PartStore(Value(type, values.spread), place)


_STORES: Mapping[str, Callable[[LoweringCall], PartStore]] = {
    "aten.index_copy": _index_copy,
    "aten.slice_scatter": _slice_scatter,
    "aten.select_scatter": _select_scatter,
    "aten.index_put": _index_put,
    "aten._unsafe_index_put": _index_put,
}

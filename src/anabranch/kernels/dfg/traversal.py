"""Walking expressions: other indices in place of axes, and what a Dfg holds.

`substitute` is how a template tiles: an axis becomes `4 * block + 1`, two axes become one flat one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from anabranch.kernels.dfg.expr import (
    Arith,
    BufferLoad,
    BufferStore,
    Cast,
    Expr,
    Inside,
    KernelVariable,
    Position,
    Reduce,
    Scan,
    Within,
    all_parts,
    parts,
)
from anabranch.kernels.dfg.index_expr import (
    Atom,
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    axes_of,
    gathered,
    weighted,
)
from anabranch.kernels.dfg.simplify import both, bounded, const

AxisIndices = Mapping[Axis, Index]


def substitute(expr: Expr, place: AxisIndices) -> Expr:
    """The expression with indices in place of axes. Loads that may now leave their tensor, because
    an index reaches beyond the axis it replaces, get the condition that they do not."""
    done: dict[Expr, Expr] = {}
    for part in all_parts(expr):
        done[part] = _rebuilt(part, place, done.__getitem__)
    return done[expr]


def substitute_index(index: Index, place: AxisIndices, get: Callable[[Expr], Expr]) -> Index:
    """The index with other indices in place of axes; `get` does the same for expressions in it.
    The very same index where it has none of these axes."""
    placed = [_placed(atom, place, get) for atom, _ in index.terms]
    if all(inner is None for inner in placed):
        return index
    return weighted(
        (
            (Index(((atom, 1),), 0) if inner is None else inner, factor)
            for inner, (atom, factor) in zip(placed, index.terms, strict=True)
        ),
        index.constant,
    )


def _placed(atom: Atom, place: AxisIndices, get: Callable[[Expr], Expr]) -> Index | None:
    """What an atom becomes; None where it stays what it is."""
    match atom:
        case Axis():
            return place.get(atom)
        case Quotient():
            inner = substitute_index(atom.index, place, get)
            return None if inner is atom.index else inner // atom.by
        case Remainder():
            inner = substitute_index(atom.index, place, get)
            return None if inner is atom.index else inner % atom.by
        case Gathered():
            value = get(atom.value)
            return None if value is atom.value else gathered(value, atom.extent)


def substitute_stores(stores: Sequence[BufferStore], place: AxisIndices) -> tuple[BufferStore, ...]:
    """All together, so that what they share is still one object: two equal ones would have to be
    compared part by part."""
    done: dict[Expr, Expr] = {}
    for part in all_parts(*(root for store in stores for root in store.roots)):
        done[part] = _rebuilt(part, place, done.__getitem__)
    return tuple(
        replace(
            store,
            index=tuple(substitute_index(i, place, done.__getitem__) for i in store.index),
            expr=done[store.expr],
            where=None if store.where is None else done[store.where],
        )
        for store in stores
    )


def substitute_store(store: BufferStore, place: AxisIndices) -> BufferStore:
    """The store with other indices in place of axes."""
    return substitute_stores((store,), place)[0]


def replace_parts(expr: Expr, table: Mapping[Expr, Expr]) -> Expr:
    """The expression with some of its parts replaced by others. What has none of them stays the
    same object: two equal ones would have to be compared part by part."""
    done: dict[Expr, Expr] = {}
    for part in all_parts(expr):
        if part in table:
            done[part] = table[part]
        elif all(done[inner] is inner for inner in parts(part)):
            done[part] = part
        else:
            done[part] = _rebuilt(part, {}, done.__getitem__)
    return done[expr]


def reductions(*exprs: Expr) -> list[Reduce]:
    """Every reduction, inner ones first, each once."""
    return [part for part in all_parts(*exprs) if isinstance(part, Reduce)]


def scans(*exprs: Expr) -> list[Scan]:
    """Every scan, inner ones first, each once."""
    return [part for part in all_parts(*exprs) if isinstance(part, Scan)]


def loads(*exprs: Expr) -> list[BufferLoad]:
    """All loads in these expressions, each once."""
    return [part for part in all_parts(*exprs) if isinstance(part, BufferLoad)]


def within_of(bounds: Within, place: AxisIndices, get: Callable[[Expr], Expr]) -> Within:
    """The bounds with other indices in place of axes; bounds that always hold are left out."""
    within: Within = ()
    for bound in bounds:
        within = both(
            within, bounded(substitute_index(bound.index, place, get), bound.low, bound.high)
        )
    return within


def _rebuilt(part: Expr, place: AxisIndices, get: Callable[[Expr], Expr]) -> Expr:
    match part:
        case BufferLoad():
            index = tuple(substitute_index(i, place, get) for i in part.index)
            within = within_of(part.within, place, get)
            for i, size in zip(index, part.type.shape, strict=True):
                within = both(within, bounded(i, 0, size))
            return BufferLoad(part.value, part.type, index, within, part.fill)
        case KernelVariable():
            return replace(part, index=tuple(substitute_index(i, place, get) for i in part.index))
        case Position():
            at = substitute_index(part.index, place, get)
            fixed = at.is_number  # a tile of an axis of one point
            return const(at.constant, part.dtype) if fixed else replace(part, index=at)
        case Inside():
            within = within_of(part.within, place, get)
            return Inside(within) if within else const(True, torch.bool)
        case Cast():
            return Cast(get(part.arg), part.dtype)
        case Arith("where", (test, then, _)) if get(test) == const(True, torch.bool):
            return get(then)
        case Arith():
            return Arith(part.op, tuple(map(get, part.args)), part.dtype, part.value_name)
        case Reduce():
            over = (axes_of(place[a]) if a in place else (a,) for a in part.axes)
            axes = tuple(dict.fromkeys(axis for substitutes in over for axis in substitutes))
            arg = get(part.arg)
            return Reduce(part.op, axes, arg, part.value_name) if axes else arg
        case Scan():
            # What stands in place of its own axis is an axis too, of another name.
            (along,) = axes_of(place[part.axis]) if part.axis in place else (part.axis,)
            at = substitute_index(part.at, place, get)
            by = None if part.by is None else get(part.by)
            return replace(part, axis=along, arg=get(part.arg), at=at, by=by)
        case _:
            return part

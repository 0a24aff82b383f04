r"""Columns: what all steps of a loop compute, side by side, as whole tensors.

    f[0] * c0 + u[0] = c1
    f[1] * c1 + u[1] = c2        ->    recurrence(u, f, c0)
    ...

A column of one operator is that operator of the columns of its arguments; one of cuts that follow
each other is what they were cut out of; one that is another column, a step later, is the state.
What becomes of the state on its way to the next step must be a factor and a term. What is read of
it may be more: sums of it, linears, products with one column (`READ`). Steps lie along an axis that
each column has where it is at hand; where columns meet it moves, which is a view.

    c = a[i] * c + u[i]                      c = recurrence(u, a)        a state space model as
    y.append(c @ r[i])               ->      y = sum(c * r, n)           Mamba has it, read so
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from anabranch.ir import ops, own
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.rule import Call, Known, Operand, Pattern
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules.tables import STACK, joined
from anabranch.rewrite.words import call, cat, linear, permute, reshape, transpose

Column = tuple[Arg, ...]
Shape = tuple[int, ...]

LEAST = 4
"""Steps that are worth a recurrence."""
MOST_COLUMNS = 64
"""Values that each step computes, at most."""
MOST_PEELED = 4
"""Values whose first step is tried apart from the others, at most."""
ADD, SUB, MUL, NEG = "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.neg.default"
EXPAND, SELECT, UNSQUEEZE = "aten.expand.default", "aten.select.int", "aten.unsqueeze.default"
SLICE, SUM = "aten.slice.Tensor", "aten.sum.dim_IntList"
FLIP = "aten.flip.default"
NUMBERS: dict[str, Callable[..., float]] = {
    ADD: operator.add,
    SUB: operator.sub,
    MUL: operator.mul,
}
"""What two numbers give."""
LERP, ADDCMUL = ("aten.lerp.Scalar", "aten.lerp.Tensor"), "aten.addcmul.default"
FILLED = frozenset(f"aten.{name}" for name in ("full", "full_like", "zeros", "zeros_like"))


class Differing(Exception):
    """Why steps are no recurrence, as a sentence."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A column as one value, of which each step has this shape and dtype, None that of a number.
    `at`: where in the value the axis of steps is; None where it has none, for all steps are the
    same: a number, say."""

    value: Operand
    shape: Shape = ()
    at: int | None = None
    dtype: torch.dtype | None = None

    @property
    def right(self) -> int:
        """How many axes stand behind the steps."""
        assert self.at is not None
        return len(self.shape) - self.at

    def moved(self, right: int) -> Operand:
        """The value with so many axes behind its steps, so that it broadcasts to others that have
        as many."""
        rank = len(self.shape)
        if not isinstance(self.value, Ref | Pattern):
            return self.value
        if self.at is None:
            return call(UNSQUEEZE, self.value, rank - right) if right < rank else self.value
        value, to = self.value, max(0, rank - right)
        if to != self.at:
            order = [d for d in range(rank + 1) if d != self.at]
            value = permute(value, (*order[:to], self.at, *order[to:]))
        for _ in range(right - rank):
            value = call(UNSQUEEZE, value, 1)
        return value


LESS = Whole(-1.0)


def each(op: str, given: Sequence[Whole], type: TensorType | None = None) -> Whole:
    """The operator of these element by element, of steps that have this type, by default that to
    which those of `given` broadcast and are promoted."""
    numbers = [one.value for one in given if isinstance(one.value, int | float)]
    if op in NUMBERS and len(numbers) == len(given):
        return Whole(NUMBERS[op](*numbers))
    dtypes = {one.dtype for one in given if one.dtype is not None}
    if len(dtypes) > 1 and any(one.at is not None and not one.shape for one in given):
        raise Differing("its steps are numbers of another type than what they meet")
    if type is not None:
        shape, dtype = type.shape, type.dtype
    else:
        dtype = functools.reduce(torch.promote_types, dtypes)
        rank = max(len(one.shape) for one in given)
        padded = [(1,) * (rank - len(one.shape)) + one.shape for one in given]
        shape = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    along = [one for one in given if one.at is not None]
    if not along:
        return Whole(call(op, *(one.value for one in given)), shape, dtype=dtype)
    right = max(along, key=lambda one: len(one.shape)).right
    value = call(op, *(one.moved(right) for one in given))
    return Whole(value, shape, len(shape) - right, dtype)


@dataclass(frozen=True, slots=True)
class Step:
    """What a column is of its state, which is `of` one step before and `first` before the first:
    `by` times that, plus `term`; None for a factor of one, and for no term."""

    of: Column
    first: Arg
    by: Whole | None = None
    term: Whole | None = None

    def scaled(self, by: Whole) -> Step:
        factor, term = (one and each(MUL, (one, by)) for one in (self.by, self.term))
        return replace(self, by=factor or by, term=term)

    def plus(self, term: Whole, op: str = ADD) -> Step:
        alone = term if op == ADD else each(MUL, (term, LESS))
        return replace(self, term=each(op, (self.term, term)) if self.term else alone)


@dataclass(slots=True)
class Columns:
    """What columns are as whole tensors. `found`: the recurrences they hold, by the states that
    these end with; `peeled`: how often first steps were tried apart."""

    known: Known
    open: list[Column] = field(default_factory=list)
    done: dict[Column, Whole | Step] = field(default_factory=dict)
    found: dict[str, Whole] = field(default_factory=dict)
    peeled: int = 0

    def whole(self, column: Column) -> Whole:
        """A column that is of no state of those that are still open."""
        found = self.of(column)
        if isinstance(found, Step):
            raise Differing("what it carries to the next step is read elsewhere, too")
        return found

    def of(self, column: Column) -> Whole | Step:
        if column not in self.done:
            if len(self.done) > MOST_COLUMNS:
                raise Differing(f"its steps compute more than {MOST_COLUMNS} values")
            self.done[column] = self._of(column)
        return self.done[column]

    def _of(self, column: Column) -> Whole | Step:
        first, *others = column
        refs = tuple(arg for arg in column if isinstance(arg, Ref))
        if all(type(arg) is type(first) and arg == first for arg in others):
            own_type = self.known.types[first.name] if isinstance(first, Ref) else None
            return Whole(first, own_type.shape, None, own_type.dtype) if own_type else Whole(first)
        if len(refs) < len(column):
            raise Differing("its steps are given different numbers")
        for state in self.open:
            if column[1:] == state[:-1]:
                return Step(state, first)
            if column == state[:-1]:
                raise Differing("its first step computes something else")
        if (cut := self._cut(refs)) is not None:
            return cut
        makers = (self.known.producers.get(ref.name) for ref in refs)
        nodes = [node for node in makers if node is not None]
        if len(nodes) < len(refs) or not _alike(nodes[1:]):
            raise Differing("its steps compute different things")
        if _alike(nodes):
            try:
                return self._computed(column, nodes)
            except Differing:
                self.peeled += 1
                if self.peeled > MOST_PEELED or len(column) <= LEAST:
                    raise
        rest = self.whole(column[1:])
        begun = self.known.types[refs[0].name]
        if rest.at is None or (begun.shape, begun.dtype) != (rest.shape, rest.dtype):
            raise Differing("its first step is of another type, or all others are the same")
        both = cat((call(UNSQUEEZE, refs[0], rest.at), rest.value), rest.at)
        return replace(rest, value=both)

    def _cut(self, refs: tuple[Ref, ...]) -> Whole | None:
        """What these were cut out of, one after the other or from the last to the first; its axis
        stays where it is, if it is a whole one or lies so."""
        type, found = self.known.types[refs[0].name], list[Whole]()
        for order in (refs, refs[::-1]):
            for at in range(len(type.shape) + 1):
                whole = joined(self.known, order, at, new=True)
                if isinstance(whole, Call) and whole.op == STACK:
                    break
                value = whole if order is refs else call(FLIP, whole, (at,))
                found.append(Whole(value, type.shape, at, type.dtype))
                if isinstance(whole, Ref):
                    break
        return min(found, key=lambda one: _depth(one.value)) if found else None

    def _computed(self, column: Column, nodes: list[Node]) -> Whole | Step:
        """A column of one operator, and where it is its own state, the recurrence."""
        node = nodes[0]
        self.open.append(column)
        try:
            given = [self.of(one) for one in zip(*map(ops.in_order, nodes), strict=True)]
        finally:
            self.open.pop()
        free = [one for one in given if isinstance(one, Whole)]
        if len(free) == len(given):
            if node.op in READ:
                return replace(READ[node.op](free, node.type.shape), dtype=node.type.dtype)
            return each(node.op, free, node.type)
        found = _step(node.op, given)
        return self._recurrence(found, node) if found.of == column else found

    def _recurrence(self, found: Step, node: Node) -> Whole:
        shape, dtype = node.type.shape, node.type.dtype
        if not dtype.is_floating_point:
            raise Differing("its state is no floating number")
        given = [one for one in (found.term, found.by) if one is not None]
        if any(one.dtype not in (None, dtype) for one in given):
            raise Differing("its factors and its terms are of several types")
        along = [one for one in given if one.at is not None]
        right = max(along, key=lambda one: len(one.shape)).right if along else len(shape)
        at = len(shape) - right
        whole = (*shape[:at], len(found.of), *shape[at:])

        def all_of(one: Whole | None, otherwise: float, wide: torch.dtype) -> Operand:
            value = one.value if one else otherwise
            if isinstance(value, int | float):
                return call("aten.full.default", whole, float(value), wide)
            assert one is not None
            value = one.moved(right)
            return (
                value if one.shape == shape and one.at is not None else call(EXPAND, value, whole)
            )

        before = found.first
        type = self.known.types[before.name] if isinstance(before, Ref) else None
        if type is None or (type.shape, type.dtype) != (shape, dtype):
            raise Differing("it begins with something of another shape or type")
        last = found.of[-1]
        assert isinstance(before, Ref) and isinstance(last, Ref)
        # A factor that is a number has no more than its own rounding, whatever the state's type.
        term = all_of(found.term, 0.0, dtype)
        by = all_of(found.by, 1.0, torch.promote_types(dtype, torch.float32))
        first = None if self._is_zero(before) else before
        steps = Whole(call(own.RECURRENCE, term, by, first, at), shape, at, dtype)
        self.found[last.name] = steps
        return steps

    def _is_zero(self, value: Ref) -> bool:
        """Whether it is filled with zeros."""
        node = self.known.producers.get(value.name)
        if node is None or ops.packet_name(node.op) not in FILLED:
            return False
        return ops.arguments(node).get("fill_value", 0) == 0


def _depth(value: Operand) -> int:
    """How many calls deep it is."""
    if not isinstance(value, Call):
        return 0
    return 1 + max((_depth(arg) for arg in value.args), default=0)


def _alike(nodes: Sequence[Node]) -> bool:
    """Whether they compute the same, element by element or as states are read, of values of the
    same types."""
    first = nodes[0]
    pointwise = ops.info(first.op).kind == "pointwise" and not ops.info(first.op).random
    able = pointwise or first.op in READ
    return able and all((n.op, n.types) == (first.op, first.types) for n in nodes)


def _step(op: str, given: Sequence[Whole | Step]) -> Step:
    """An operator's result as a factor and a term of the state that one of its arguments holds."""
    left, right, *more = given if len(given) > 1 else (given[0], Whole(None))
    usual = not more or [one.value for one in more if isinstance(one, Whole)] == [1]
    match left, right:
        case Step(), Whole() if op == ADD and usual:
            return left.plus(right)
        case Whole(), Step() if op == ADD and usual:
            return right.plus(left)
        case Step(), Whole() if op == SUB and usual:
            return left.plus(right, SUB)
        case Whole(), Step() if op == SUB and usual:
            return right.scaled(LESS).plus(left)
        case Step(), Whole() if op == MUL:
            return left.scaled(right)
        case Whole(), Step() if op == MUL:
            return right.scaled(left)
        case Step(), Whole() if op == NEG:
            return left.scaled(LESS)
        case Step(), Whole() if op in LERP and isinstance(more[0], Whole):
            return left.scaled(_rest(more[0])).plus(each(MUL, (right, more[0])))
        case Whole(), Step() if op in LERP and isinstance(more[0], Whole):
            return right.scaled(more[0]).plus(each(MUL, (left, _rest(more[0]))))
    if op == ADDCMUL and isinstance(more[-1], Whole) and more[-1].value == 1:
        match left, right, more[0]:
            case Step(), Whole(), Whole():
                return left.plus(each(MUL, (right, more[0])))
            case Whole(), Step(), Whole():
                return right.scaled(more[0]).plus(left)
            case Whole(), Whole(), Step():
                return more[0].scaled(right).plus(left)
    raise Differing("what it carries is not multiplied and added to alone")


def _rest(weight: Whole) -> Whole:
    """What of one such a weight leaves."""
    if isinstance(weight.value, int | float):
        return Whole(1.0 - weight.value)
    return replace(weight, value=call("aten.rsub.Scalar", weight.value, 1))


Read = Callable[[Sequence[Whole], Shape], Whole]
"""What a column is whose arguments are these, and each step of which has this shape."""


def _along(given: Sequence[Whole]) -> tuple[Whole, int]:
    """The value that is read, and where its steps are."""
    x = given[0]
    if x.at is None:
        raise Differing("it reads at each step what is the same at all of them")
    return x, x.at


def _number(one: Whole) -> int:
    if not isinstance(one.value, int):
        raise Differing("an axis of its steps is no number")
    return one.value


def selected(given: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), dim = _along(given), _number(given[1]) % len(given[0].shape)
    value = call(SELECT, x.value, dim + (dim >= at), given[2].value)
    return Whole(value, shape, at - (dim < at))


def _unsqueezed(given: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), dim = _along(given), _number(given[1]) % len(shape)
    before = dim <= at
    return Whole(call(UNSQUEEZE, x.value, dim if before else dim + 1), shape, at + before)


def _sliced(given: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), dim = _along(given), _number(given[1]) % len(shape)
    ends = (one.value for one in given[2:])
    return Whole(call(SLICE, x.value, dim + (dim >= at), *ends), shape, at)


def _permuted(given: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), order = _along(given), list(range(len(shape)))
    if len(given) == 1:
        order.reverse()
    elif isinstance(given[1].value, tuple):
        order = [d % len(shape) for d in given[1].value if isinstance(d, int)]
    else:
        a, b = (_number(one) for one in given[1:])
        order[a], order[b] = order[b], order[a]
    there = [d + (d >= at) for d in order]
    return Whole(permute(x.value, (*there[:at], at, *there[at:])), shape, at)


def _reshaped(given: Sequence[Whole], shape: Shape) -> Whole:
    x, _ = _along(given)
    return Whole(reshape(x.moved(len(x.shape)), (-1, *shape)), shape, 0)


def _summed(op: str) -> Read:
    def read(given: Sequence[Whole], shape: Shape) -> Whole:
        (x, at), dims = _along(given), given[1].value
        if not isinstance(dims, tuple) or not dims:
            raise Differing("it sums up all of a step")
        kept, every = given[2].value, [d % len(x.shape) for d in dims if isinstance(d, int)]
        there = tuple(d + (d >= at) for d in every)
        left = at if kept else at - sum(d < at for d in every)
        return Whole(call(op, x.value, there, kept, given[3].value), shape, left)

    return read


def _linear(given: Sequence[Whole], shape: Shape) -> Whole:
    (x, _), (weight, bias) = _along(given), given[1:]
    if weight.at is not None or bias.at is not None or len(weight.shape) != 2:
        raise Differing("a linear has weights of its own at each step, or a vector of them")
    right = max(1, x.right)
    return Whole(linear(x.moved(right), weight.value, bias.value), shape, len(shape) - right)


def _multiplied(given: Sequence[Whole], shape: Shape) -> Whole:
    """A product of matrices of which one is a column or a row: products of elements, summed up."""
    x, y = given
    rank, flat = len(shape), min(len(one.shape) for one in given) < 2
    if flat or len(x.shape) != rank or len(y.shape) != rank:
        raise Differing("it multiplies values of unlike axes")
    row, column = x.shape[-2] == 1, y.shape[-1] == 1
    if x.shape[-1] == 1:
        return each(MUL, (x, y))
    if not (row or column):
        raise Differing("it multiplies matrices by matrices")
    turned = _turned(y) if column else _turned(x)
    product = each(MUL, (x, turned) if column else (turned, y))
    if product.at is None:
        raise Differing("it reads at each step what is the same at all of them")
    dim = rank - 1 if column else rank - 2
    total = call(SUM, product.value, (dim + (dim >= product.at),), True)
    return Whole(total, shape, product.at)


def _turned(one: Whole) -> Whole:
    """The same with its last two axes in turn."""
    rank = len(one.shape)
    shape = (*one.shape[:-2], one.shape[-1], one.shape[-2])
    a, b = (d + (one.at is not None and d >= one.at) for d in (rank - 2, rank - 1))
    return Whole(transpose(one.value, a, b), shape, one.at, one.dtype)


READ: dict[str, Read] = {
    SELECT: selected,
    UNSQUEEZE: _unsqueezed,
    SLICE: _sliced,
    "aten.reshape.default": _reshaped,
    **dict.fromkeys(("aten.permute.default", "aten.transpose.int", "aten.t.default"), _permuted),
    SUM: _summed(SUM),
    "aten.mean.dim": _summed("aten.mean.dim"),
    "aten.linear.default": _linear,
    **dict.fromkeys(("aten.mm.default", "aten.bmm.default", "aten.matmul.default"), _multiplied),
}
"""What of a state is read otherwise than element by element."""

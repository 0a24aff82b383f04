"""Wholes: columns of steps as values, element by element, and what is read of them.

    steps of shape [4, 8], side by side:    whole[4, T, 8], at = 1
    each step's sum over its last axis:     sum(whole, 2), at = 1

`recurrence_columns` says which steps are columns. A read of a state may be more than element by
element: sums of it, linears, products with one column (`READ`).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from anabranch.ir.axis_order import axis_order
from anabranch.ir.graph import Ref
from anabranch.ir.rule import Operand, Pattern
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import call, linear, permute, reshape, transpose

Shape = tuple[int, ...]

ADD, SUB, MUL = "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor"
SELECT, UNSQUEEZE = "aten.select.int", "aten.unsqueeze.default"
SLICE, SUM = "aten.slice.Tensor", "aten.sum.dim_IntList"
NUMBERS: dict[str, Callable[..., float]] = {
    ADD: operator.add,
    SUB: operator.sub,
    MUL: operator.mul,
}
"""What two numbers give."""


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


def each(op: str, operands: Sequence[Whole], type: TensorType | None = None) -> Whole:
    """The operator of these element by element, of steps that have this type, by default that to
    which those of `operands` broadcast and are promoted."""
    numbers = [operand.value for operand in operands if isinstance(operand.value, int | float)]
    if op in NUMBERS and len(numbers) == len(operands):
        return Whole(NUMBERS[op](*numbers))
    dtypes = {operand.dtype for operand in operands if operand.dtype is not None}
    if len(dtypes) > 1 and any(
        operand.at is not None and not operand.shape for operand in operands
    ):
        raise Differing("its steps are numbers of another type than what they meet")
    if type is not None:
        shape, dtype = type.shape, type.dtype
    else:
        dtype = functools.reduce(torch.promote_types, dtypes)
        rank = max(len(operand.shape) for operand in operands)
        padded = [(1,) * (rank - len(operand.shape)) + operand.shape for operand in operands]
        shape = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    along = [operand for operand in operands if operand.at is not None]
    if not along:
        return Whole(call(op, *(operand.value for operand in operands)), shape, dtype=dtype)
    right = max(along, key=lambda operand: len(operand.shape)).right
    value = call(op, *(operand.moved(right) for operand in operands))
    return Whole(value, shape, len(shape) - right, dtype)


Read = Callable[[Sequence[Whole], Shape], Whole]
"""Gives the column whose arguments are these, and each step of which has this shape."""


def _along(operands: Sequence[Whole]) -> tuple[Whole, int]:
    """The value that is read, and where its steps are."""
    x = operands[0]
    if x.at is None:
        raise Differing("it reads at each step what is the same at all of them")
    return x, x.at


def _number(whole: Whole) -> int:
    if not isinstance(whole.value, int):
        raise Differing("an axis of its steps is no number")
    return whole.value


def selected(operands: Sequence[Whole], shape: Shape) -> Whole:
    """One index of an axis of every step, as one index of an axis of the whole."""
    (x, at), dim = _along(operands), _number(operands[1]) % len(operands[0].shape)
    value = call(SELECT, x.value, dim + (dim >= at), operands[2].value)
    return Whole(value, shape, at - (dim < at))


def _unsqueezed(operands: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), dim = _along(operands), _number(operands[1]) % len(shape)
    before = dim <= at
    return Whole(call(UNSQUEEZE, x.value, dim if before else dim + 1), shape, at + before)


def _sliced(operands: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), dim = _along(operands), _number(operands[1]) % len(shape)
    ends = (operand.value for operand in operands[2:])
    return Whole(call(SLICE, x.value, dim + (dim >= at), *ends), shape, at)


def _permuted(operands: Sequence[Whole], shape: Shape) -> Whole:
    (x, at), (_, *more) = _along(operands), [operand.value for operand in operands]
    names = ("dim0", "dim1") if len(more) == 2 else ("dims",)
    order = axis_order(dict(zip(names, more, strict=False)), len(shape))
    there = [d + (d >= at) for d in order]
    return Whole(permute(x.value, (*there[:at], at, *there[at:])), shape, at)


def _reshaped(operands: Sequence[Whole], shape: Shape) -> Whole:
    x, _ = _along(operands)
    return Whole(reshape(x.moved(len(x.shape)), (-1, *shape)), shape, 0)


def _summed(op: str) -> Read:
    def read(operands: Sequence[Whole], shape: Shape) -> Whole:
        (x, at), dims = _along(operands), operands[1].value
        if not isinstance(dims, tuple) or not dims:
            raise Differing("it sums up all of a step")
        kept, every = operands[2].value, [d % len(x.shape) for d in dims if isinstance(d, int)]
        there = tuple(d + (d >= at) for d in every)
        left = at if kept else at - sum(d < at for d in every)
        return Whole(call(op, x.value, there, kept, operands[3].value), shape, left)

    return read


def _linear(operands: Sequence[Whole], shape: Shape) -> Whole:
    (x, _), (weight, bias) = _along(operands), operands[1:]
    if weight.at is not None or bias.at is not None or len(weight.shape) != 2:
        raise Differing("a linear has weights of its own at each step, or a vector of them")
    right = max(1, x.right)
    return Whole(linear(x.moved(right), weight.value, bias.value), shape, len(shape) - right)


def _multiplied(operands: Sequence[Whole], shape: Shape) -> Whole:
    """A product of matrices of which one is a column or a row: products of elements, summed up."""
    x, y = operands
    rank, flat = len(shape), min(len(operand.shape) for operand in operands) < 2
    if flat or len(x.shape) != rank or len(y.shape) != rank:
        raise Differing("it multiplies values of unlike axes")
    row, column = x.shape[-2] == 1, y.shape[-1] == 1
    if x.shape[-1] == 1:
        return each(MUL, (x, y))
    if not (row or column):
        raise Differing("it multiplies matrices by matrices")
    transposed = _transposed(y) if column else _transposed(x)
    product = each(MUL, (x, transposed) if column else (transposed, y))
    if product.at is None:
        raise Differing("it reads at each step what is the same at all of them")
    dim = rank - 1 if column else rank - 2
    total = call(SUM, product.value, (dim + (dim >= product.at),), True)
    return Whole(total, shape, product.at)


def _transposed(whole: Whole) -> Whole:
    """The same with its last two axes exchanged."""
    rank = len(whole.shape)
    shape = (*whole.shape[:-2], whole.shape[-1], whole.shape[-2])
    a, b = (d + (whole.at is not None and d >= whole.at) for d in (rank - 2, rank - 1))
    return Whole(transpose(whole.value, a, b), shape, whole.at, whole.dtype)


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

"""Heads: how the factors of two products are seen as what attention reads, batches of heads.

    q: f16[1,64,2,49,32]  --permute, clone-->  f16[64,2,49,32,1,1]  --reshape-->  f16[128,49,32]
       `-------------------------- seen as f16[64,2,49,32], without the copy

Matrix products know one stack of matrices. The reshape that grouped the axes of a model into one,
which may have cost a copy, left all elements in order: so each value on the way is the same
numbers, and the first of them that a view can show as (batches, heads, rows, columns) is what
attention reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.ir.axis_order import order_of
from anabranch.ir.graph import Node, Ref
from anabranch.ir.rule import ValueFacts
from anabranch.ir.types import TensorType, meta

Stack = tuple[int, int]
"""How many batches, and how many heads in each."""
IN_ORDER = frozenset(
    f"aten.{name}" for name in ("reshape.default", "clone.default", "unsqueeze.default")
) | {"aten.squeeze.dim", "aten.squeeze.default", "aten.squeeze.dims"}


@dataclass(frozen=True, slots=True)
class HeadsOperand:
    """The value to read, in which shape it is seen, whether its matrices are transposed then, and a
    number that it was multiplied by since."""

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Mask:
    """In which shape a mask is seen, and to which it must be `repeated` before, () if to none."""

    shape: tuple[int, ...]
    repeated: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """How attention of so many batches and heads reads its operands and its masks; how many of the
    operands are `kept` as the products read them."""

    operands: tuple[HeadsOperand, HeadsOperand, HeadsOperand]
    masks: tuple[Mask, ...]
    kept: int

    @property
    def repeated(self) -> int:
        """Elements of the masks that are repeated."""
        return sum(math.prod(mask.shape) for mask in self.masks if mask.repeated)


def way_of(
    stack: Stack,
    factors: tuple[str, str, str],
    masks: Sequence[tuple[str, tuple[int, ...]]],
    facts: ValueFacts,
) -> HeadLayout:
    """For the stacks of matrices that two products read: queries, transposed keys, values.
    `masks`: with the shape of the scores that each is added to."""
    query, transposed, value = factors
    operands = (
        _operand(query, (*stack, *_matrix(query, facts)), facts),
        _key(transposed, stack, facts),
        _operand(value, (*stack, *_matrix(value, facts)), facts, scales=False),
    )
    seen = tuple(_mask(facts.types[name].shape, scores, stack) for name, scores in masks)
    kept = sum(operand.name == factor for operand, factor in zip(operands, factors, strict=True))
    return HeadLayout(operands, seen, kept)


def heads_of(name: str, facts: ValueFacts) -> list[Stack]:
    """The batches and heads of the first value of four axes with the same matrices in order."""
    matrix, stacks = _matrix(name, facts), list[Stack]()
    for earlier, _ in _earlier(name, facts):
        shape = facts.types[earlier].shape
        if len(shape) == 4 and shape[-2:] == matrix:
            stacks = [(shape[0], shape[1])]
    return stacks


def seen_as(type: TensorType, shape: Sequence[int]) -> bool:
    """Whether a view shows what lies so in another shape."""
    try:
        meta(type).view(tuple(shape))
    except RuntimeError:
        return False
    return True


def scaled(node: Node) -> tuple[str, float] | None:
    """What the node multiplies by a positive number, and that number."""
    if node.op not in ("aten.mul.Tensor", "aten.div.Tensor") or isinstance(node.args[1], Ref):
        return None
    of, by = node.args[0], node.args[1]
    if not isinstance(by, int | float) or isinstance(by, bool) or by <= 0:
        return None
    assert isinstance(of, Ref), "a tensor is multiplied"
    return of.name, float(by) if node.op == "aten.mul.Tensor" else 1.0 / by


def in_order(node: Node, facts: ValueFacts) -> bool:
    """Whether the elements come out in the order of the operand's shape, whatever their memory."""
    order = _order(node, facts)
    return node.op in IN_ORDER or (order is not None and order == sorted(order))


def _order(node: Node, facts: ValueFacts) -> list[int] | None:
    """In which order the axes of more than one element come out, of a node that permutes axes."""
    order = order_of(node)
    if order is None:
        return None
    shape = facts.types[node.uses[0]].shape
    return [d for d in order if shape[d] > 1]


def _earlier(name: str, facts: ValueFacts, scales: bool = True) -> list[tuple[str, float]]:
    """The value, and those before it that have the same numbers in the same order, or with `scales`
    those that it is a multiple of, each told with the factor."""
    sources, factor = [(name, 1.0)], 1.0
    while (node := facts.producers.get(name)) is not None:
        product = scaled(node) if scales else None
        if product is not None and facts.types[product[0]].dtype == node.type.dtype:
            name, factor = product[0], factor * product[1]
        elif in_order(node, facts):
            name = node.uses[0]
        else:
            break
        sources.append((name, factor))
    return sources


def _operand(
    name: str, shape: tuple[int, ...], facts: ValueFacts, scales: bool = True
) -> HeadsOperand:
    """The first of the same values that a view shows so, or else the value itself. `scales`: what
    it is a multiple of will do, since scores have a factor anyway."""
    best = HeadsOperand(name, shape)
    for earlier, factor in _earlier(name, facts, scales):
        if seen_as(facts.types[earlier], shape):
            best = HeadsOperand(earlier, shape, scale=factor)
    return best


def _key(transposed: str, stack: Stack, facts: ValueFacts) -> HeadsOperand:
    """The matrices before they were transposed, if they can be seen so; else they are transposed
    back, which is no copy either."""
    depth, rows = _matrix(transposed, facts)
    last, factor = _earlier(transposed, facts)[-1]
    node = facts.producers.get(last)
    order = _order(node, facts) if node is not None else None
    if node is not None and order is not None and order[:-2] + order[:-3:-1] == sorted(order):
        source = facts.types[node.uses[0]]
        if tuple(n for n in source.shape if n > 1)[-2:] == (rows, depth):
            operand = _operand(node.uses[0], (*stack, rows, depth), facts)
            if seen_as(facts.types[operand.name], operand.shape):
                return HeadsOperand(operand.name, operand.shape, scale=factor * operand.scale)
    operand = _operand(transposed, (*stack, depth, rows), facts)
    return HeadsOperand(operand.name, operand.shape, True, operand.scale)


def _matrix(name: str, facts: ValueFacts) -> tuple[int, int]:
    *_, rows, columns = facts.types[name].shape
    return rows, columns


def _mask(mask: tuple[int, ...], scores: tuple[int, ...], stack: Stack) -> Mask:
    """A mask of these scores where their leading axes are batches and heads."""
    mask = (1,) * (len(scores) - len(mask)) + mask
    *lead, rows, columns = mask
    if all(n == 1 for n in lead):
        return Mask((1, 1, rows, columns), ())
    best = Mask((*stack, rows, columns), (*scores[:-2], rows, columns))
    for at in range(len(lead) + 1):
        halves = (lead[:at], scores[:at]), (lead[at:], scores[at:-2])
        if tuple(math.prod(whole) for _, whole in halves) == stack:
            ours = [_repeated(tuple(half), whole) for half, whole in halves]
            needed = (*(n for half in ours for n in half), rows, columns)
            seen = (math.prod(ours[0]), math.prod(ours[1]), rows, columns)
            candidate = Mask(seen, needed if needed != mask else ())
            best = min(best, candidate, key=lambda m: math.prod(m.shape) if m.repeated else 0)
    return best


def _repeated(half: tuple[int, ...], whole: tuple[int, ...]) -> tuple[int, ...]:
    """The axes as they are if a view makes one of them, or else all of them in full."""
    return half if all(n == 1 for n in half) else whole

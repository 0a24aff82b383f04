r"""Columns: what all steps of a loop compute, side by side, as whole tensors.

    f[0] * c0 + u[0] = c1
    f[1] * c1 + u[1] = c2        ->    recurrence(u, f, c0)
    ...

A column of one operator is that operator of the columns of its arguments; one of cuts that follow
each other is what they were cut out of; one that is another column, a step later, is the state. The
state must reach the next step by a factor and a term. What is read of it may be more
(`recurrence_values`). Steps lie along an axis that each column has where it is at hand; where
columns meet it moves, which is a view.

    c = a[i] * c + u[i]                      c = recurrence(u, a)        a state space model as
    y.append(c @ r[i])               ->      y = sum(c * r, n)           Mamba has it, read so
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from anabranch.ir import custom_ops, ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.rule import Call, Operand, ValueFacts
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.embedding_merging import STACK, joined
from anabranch.rewrite.rules.recurrence_values import (
    ADD,
    MUL,
    READ,
    SUB,
    UNSQUEEZE,
    Differing,
    Whole,
    each,
)

Column = tuple[Arg, ...]

FEWEST_STEPS = 4
"""Steps that are worth a recurrence."""
MOST_COLUMNS = 64
"""Values that each step computes, at most."""
MOST_PEELED = 4
"""Values whose first step is tried apart from the others, at most."""
NEG, EXPAND, FLIP = "aten.neg.default", "aten.expand.default", "aten.flip.default"
MINUS_ONE = Whole(-1.0)
LERP, ADDCMUL = ("aten.lerp.Scalar", "aten.lerp.Tensor"), "aten.addcmul.default"
FILLED = frozenset(f"aten.{name}" for name in ("full", "full_like", "zeros", "zeros_like"))


@dataclass(frozen=True, slots=True)
class ColumnStep:
    """How a column follows from its state, which is `of` one step before and `first` before the
    first: `by` times that, plus `term`; None for a factor of one, and for no term."""

    of: Column
    first: Arg
    by: Whole | None = None
    term: Whole | None = None

    def scaled(self, by: Whole) -> ColumnStep:
        """The step times a value: its factor and its term, each times that."""
        factor, term = (value and each(MUL, (value, by)) for value in (self.by, self.term))
        return replace(self, by=factor or by, term=term)

    def plus(self, term: Whole, op: str = ADD) -> ColumnStep:
        """The step with a value added to its term, or taken from it."""
        alone = term if op == ADD else each(MUL, (term, MINUS_ONE))
        return replace(self, term=each(op, (self.term, term)) if self.term else alone)


@dataclass(slots=True)
class Columns:
    """What columns are as whole tensors. `recurrences`: those that they hold, by the states that
    these end with; `peeled`: how often first steps were tried apart."""

    facts: ValueFacts
    open: list[Column] = field(default_factory=list)
    done: dict[Column, Whole | ColumnStep] = field(default_factory=dict)
    recurrences: dict[str, Whole] = field(default_factory=dict)
    peeled: int = 0

    def whole(self, column: Column) -> Whole:
        """A column that is of no state of those that are still open."""
        whole = self.of(column)
        if isinstance(whole, ColumnStep):
            raise Differing("what it carries to the next step is read elsewhere, too")
        return whole

    def of(self, column: Column) -> Whole | ColumnStep:
        """The column as a value of all steps, or as what becomes of the state; found once.
        Differing if it is neither, or there are too many."""
        if column not in self.done:
            if len(self.done) > MOST_COLUMNS:
                raise Differing(f"its steps compute more than {MOST_COLUMNS} values")
            self.done[column] = self._of(column)
        return self.done[column]

    def _of(self, column: Column) -> Whole | ColumnStep:
        first, *others = column
        refs = tuple(arg for arg in column if isinstance(arg, Ref))
        if all(type(arg) is type(first) and arg == first for arg in others):
            own_type = self.facts.types[first.name] if isinstance(first, Ref) else None
            return Whole(first, own_type.shape, None, own_type.dtype) if own_type else Whole(first)
        if len(refs) < len(column):
            raise Differing("its steps are given different numbers")
        for state in self.open:
            if column[1:] == state[:-1]:
                return ColumnStep(state, first)
            if column == state[:-1]:
                raise Differing("its first step computes something else")
        if (cut := self._cut(refs)) is not None:
            return cut
        makers = (self.facts.producers.get(ref.name) for ref in refs)
        nodes = [node for node in makers if node is not None]
        if len(nodes) < len(refs) or not _alike(nodes[1:]):
            raise Differing("its steps compute different things")
        if _alike(nodes):
            try:
                return self._computed(column, nodes)
            except Differing:
                self.peeled += 1
                if self.peeled > MOST_PEELED or len(column) <= FEWEST_STEPS:
                    raise
        rest = self.whole(column[1:])
        begun = self.facts.types[refs[0].name]
        if rest.at is None or (begun.shape, begun.dtype) != (rest.shape, rest.dtype):
            raise Differing("its first step is of another type, or all others are the same")
        both = cat((call(UNSQUEEZE, refs[0], rest.at), rest.value), rest.at)
        return replace(rest, value=both)

    def _cut(self, refs: tuple[Ref, ...]) -> Whole | None:
        """The value that these were cut out of, one after the other or from the last to the first;
        its axis stays where it is, if it is a whole one or lies so."""
        type, wholes = self.facts.types[refs[0].name], list[Whole]()
        for order in (refs, refs[::-1]):
            for at in range(len(type.shape) + 1):
                whole = joined(self.facts, order, at, new=True)
                if isinstance(whole, Call) and whole.op == STACK:
                    break
                value = whole if order is refs else call(FLIP, whole, (at,))
                wholes.append(Whole(value, type.shape, at, type.dtype))
                if isinstance(whole, Ref):
                    break
        return min(wholes, key=lambda candidate: _depth(candidate.value)) if wholes else None

    def _computed(self, column: Column, nodes: list[Node]) -> Whole | ColumnStep:
        """A column of one operator, and where it is its own state, the recurrence."""
        node = nodes[0]
        self.open.append(column)
        try:
            operands = [self.of(args) for args in zip(*map(ops.in_order, nodes), strict=True)]
        finally:
            self.open.pop()
        free = [operand for operand in operands if isinstance(operand, Whole)]
        if len(free) == len(operands):
            if node.op in READ:
                return replace(READ[node.op](free, node.type.shape), dtype=node.type.dtype)
            return each(node.op, free, node.type)
        step = _step(node.op, operands)
        return self._recurrence(step, node) if step.of == column else step

    def _recurrence(self, step: ColumnStep, node: Node) -> Whole:
        shape, dtype = node.type.shape, node.type.dtype
        if not dtype.is_floating_point:
            raise Differing("its state is no floating number")
        operands = [operand for operand in (step.term, step.by) if operand is not None]
        if any(operand.dtype not in (None, dtype) for operand in operands):
            raise Differing("its factors and its terms are of several types")
        along = [operand for operand in operands if operand.at is not None]
        right = max(along, key=lambda operand: len(operand.shape)).right if along else len(shape)
        at = len(shape) - right
        whole = (*shape[:at], len(step.of), *shape[at:])

        def all_of(operand: Whole | None, otherwise: float, wide: torch.dtype) -> Operand:
            value = operand.value if operand else otherwise
            if isinstance(value, int | float):
                return call("aten.full.default", whole, float(value), wide)
            assert operand is not None
            value = operand.moved(right)
            return (
                value
                if operand.shape == shape and operand.at is not None
                else call(EXPAND, value, whole)
            )

        before = step.first
        type = self.facts.types[before.name] if isinstance(before, Ref) else None
        if type is None or (type.shape, type.dtype) != (shape, dtype):
            raise Differing("it begins with something of another shape or type")
        last = step.of[-1]
        assert isinstance(before, Ref) and isinstance(last, Ref)
        # A factor that is a number has no more than its own rounding, whatever the state's type.
        term = all_of(step.term, 0.0, dtype)
        by = all_of(step.by, 1.0, torch.promote_types(dtype, torch.float32))
        first = None if self._is_zero(before) else before
        steps = Whole(call(custom_ops.RECURRENCE, term, by, first, at), shape, at, dtype)
        self.recurrences[last.name] = steps
        return steps

    def _is_zero(self, value: Ref) -> bool:
        """Whether it is filled with zeros."""
        node = self.facts.producers.get(value.name)
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
    pointwise = ops.kind_of(first) == "pointwise" and not ops.draws(first)
    able = pointwise or first.op in READ
    return able and all((n.op, n.types) == (first.op, first.types) for n in nodes)


def _step(op: str, operands: Sequence[Whole | ColumnStep]) -> ColumnStep:
    """An operator's result as a factor and a term of the state that one of its arguments holds."""
    left, right, *more = operands if len(operands) > 1 else (operands[0], Whole(None))
    usual = not more or [operand.value for operand in more if isinstance(operand, Whole)] == [1]
    match left, right:
        case ColumnStep(), Whole() if op == ADD and usual:
            return left.plus(right)
        case Whole(), ColumnStep() if op == ADD and usual:
            return right.plus(left)
        case ColumnStep(), Whole() if op == SUB and usual:
            return left.plus(right, SUB)
        case Whole(), ColumnStep() if op == SUB and usual:
            return right.scaled(MINUS_ONE).plus(left)
        case ColumnStep(), Whole() if op == MUL:
            return left.scaled(right)
        case Whole(), ColumnStep() if op == MUL:
            return right.scaled(left)
        case ColumnStep(), Whole() if op == NEG:
            return left.scaled(MINUS_ONE)
        case ColumnStep(), Whole() if op in LERP and isinstance(more[0], Whole):
            return left.scaled(_rest(more[0])).plus(each(MUL, (right, more[0])))
        case Whole(), ColumnStep() if op in LERP and isinstance(more[0], Whole):
            return right.scaled(more[0]).plus(each(MUL, (left, _rest(more[0]))))
    if op == ADDCMUL and isinstance(more[-1], Whole) and more[-1].value == 1:
        match left, right, more[0]:
            case ColumnStep(), Whole(), Whole():
                return left.plus(each(MUL, (right, more[0])))
            case Whole(), ColumnStep(), Whole():
                return right.scaled(more[0]).plus(left)
            case Whole(), Whole(), ColumnStep():
                return more[0].scaled(right).plus(left)
    raise Differing("what it carries is not multiplied and added to alone")


def _rest(weight: Whole) -> Whole:
    """What of one such a weight leaves."""
    if isinstance(weight.value, int | float):
        return Whole(1.0 - weight.value)
    return replace(weight, value=call("aten.rsub.Scalar", weight.value, 1))

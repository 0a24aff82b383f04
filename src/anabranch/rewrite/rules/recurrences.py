r"""Steps that follow each other as one recurrence of whole tensors. A rule that might help.

    c1 = f[0] * c0 + u[0]
    c2 = f[1] * c1 + u[1]        ->    c = recurrence(u, f, c0)
    ...                                h = r * tanh(c)
    h = stack([r[0] * tanh(c1), r[1] * tanh(c2), ...])

Each step waits for the one before it, however a kernel is written. But what a step does to its
state is a factor and a term, and two steps one after the other are a factor and a term again: so
steps may be put together by pairs, and pairs of pairs (Blelloch, CMU-CS-90-190, section 1.4). That
is more arithmetic in fewer steps, and whether it pays is for the device to say: sixteen steps of
512 channels are four levels of pairs, which run where the products end of which they are made.

What all steps compute is compared side by side, as a column. A column of one operator is that
operator of the columns of its arguments; one of cuts that follow each other is what they were cut
out of; one that is another column, a step later, is the state. What becomes of the state on its way
to the next step must be a factor and a term.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir import ops, own
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.rule import Call, Known, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.tables import STACK, joined
from anabranch.rewrite.rules.terms import values
from anabranch.rewrite.words import call, cat

Drawn = Mapping[str, object]
Column = tuple[Arg, ...]

parts, axis = wild("parts axis")

LEAST = 4
"""Steps that are worth a recurrence."""
MOST_COLUMNS = 64
"""Values that each step computes, at most."""
MOST_PEELED = 4
"""Values whose first step is tried apart from the others, at most."""
ADD, SUB, MUL, NEG = "aten.add.Tensor", "aten.sub.Tensor", "aten.mul.Tensor", "aten.neg.default"
FILLED = frozenset(f"aten.{name}" for name in ("full", "full_like", "zeros", "zeros_like"))
EXPAND, SELECT, UNSQUEEZE = "aten.expand.default", "aten.select.int", "aten.unsqueeze.default"


class Differing(Exception):
    """Why steps are no recurrence, as a sentence."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A column as one value, of which each step has this shape; `still`: it is there once, for all
    steps."""

    value: Operand
    shape: tuple[int, ...] = ()
    still: bool = False

    def with_(self, op: str, other: Whole) -> Whole:
        sizes = itertools.zip_longest(self.shape[::-1], other.shape[::-1], fillvalue=1)
        either = tuple(max(pair) for pair in sizes)[::-1]
        return Whole(call(op, self.value, other.value), either, self.still and other.still)


LESS = Whole(-1.0, still=True)


@dataclass(frozen=True, slots=True)
class Step:
    """What a column is of its state, which is `of` one step before and `first` before the first:
    `by` times that, plus `term`; None for a factor of one, and for no term."""

    of: Column
    first: Arg
    by: Whole | None = None
    term: Whole | None = None

    def scaled(self, by: Whole) -> Step:
        factor, term = (one and one.with_(MUL, by) for one in (self.by, self.term))
        return replace(self, by=factor or by, term=term)

    def plus(self, term: Whole, op: str = ADD) -> Step:
        alone = term if op == ADD else replace(term, value=call(NEG, term.value))
        return replace(self, term=self.term.with_(op, term) if self.term else alone)


@dataclass(slots=True)
class Columns:
    """What columns are as whole tensors; steps lie `right` axes from the last one. `found`: how
    many recurrences they hold; `peeled`: how often first steps were tried apart."""

    known: Known
    right: int
    open: list[Column] = field(default_factory=list)
    done: dict[Column, Whole | Step] = field(default_factory=dict)
    found: int = 0
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
            return self._still(first)
        if len(refs) < len(column):
            raise Differing("its steps are given different numbers")
        for state in self.open:
            if column[1:] == state[:-1]:
                return Step(state, first)
            if column == state[:-1]:
                raise Differing("its first step computes something else")
        shape = self.known.types[refs[0].name].shape
        at = len(shape) - self.right
        if at < 0:
            raise Differing("its steps read values of fewer axes")
        cut = joined(self.known, refs, at, new=True)
        if not (isinstance(cut, Call) and cut.op == STACK):
            return Whole(cut, shape)
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
        return Whole(cat((call(UNSQUEEZE, refs[0], at), rest.value), at), shape)

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
            still = all(one.still for one in free)
            return Whole(call(node.op, *(one.value for one in free)), node.type.shape, still)
        found = _step(node.op, given)
        return self._recurrence(found, node) if found.of == column else found

    def _recurrence(self, found: Step, node: Node) -> Whole:
        shape, at = node.type.shape, len(node.type.shape) - self.right
        whole = (*shape[:at], len(found.of), *shape[at:])

        def all_of(one: Whole | None, otherwise: float) -> Operand:
            value = one.value if one else otherwise
            if isinstance(value, int | float):
                return call("aten.full.default", whole, float(value), node.type.dtype)
            assert one is not None
            return value if one.shape == shape and not one.still else call(EXPAND, value, whole)

        before = found.first
        if not isinstance(before, Ref) or self.known.types[before.name].shape != shape:
            raise Differing("it begins with something of another shape")
        self.found += 1
        term, by = all_of(found.term, 0.0), all_of(found.by, 1.0)
        first = None if self._is_zero(before) else before
        return Whole(call(own.RECURRENCE, term, by, first, at), shape)

    def _is_zero(self, value: Ref) -> bool:
        """Whether it is filled with zeros."""
        node = self.known.producers.get(value.name)
        if node is None or ops.packet_name(node.op) not in FILLED:
            return False
        return ops.arguments(node).get("fill_value", 0) == 0

    def _still(self, arg: Arg) -> Whole:
        """What is the same at all steps, so that it broadcasts to all of them."""
        if not isinstance(arg, Ref):
            return Whole(arg, still=True)
        shape = self.known.types[arg.name].shape
        at = len(shape) - self.right
        return Whole(call(UNSQUEEZE, arg, at) if at > 0 else arg, shape, still=True)


def _alike(nodes: Sequence[Node]) -> bool:
    """Whether they compute the same, element by element, of values of the same types."""
    first = nodes[0]
    pointwise = ops.info(first.op).kind == "pointwise" and not ops.info(first.op).random
    return pointwise and all((n.op, n.types) == (first.op, first.types) for n in nodes)


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
    raise Differing("what it carries is not multiplied and added to alone")


def rolled(match: Match) -> Operand | str:
    """The steps that are stacked as whole tensors, or why they are no recurrence."""
    steps, rank = values(match, "parts"), len(match.root.type.shape)
    given = match.axis.arg
    assert isinstance(given, int)
    if len(steps) < LEAST or not match.root.type.dtype.is_floating_point:
        return ""
    columns = Columns(match.known, rank - 1 - given % rank)
    try:
        whole = columns.whole(steps)
    except Differing as differing:
        return str(differing)
    return whole.value if columns.found else ""


def _is_recurrence(match: Match) -> bool | str:
    found = rolled(match)
    return found or False if isinstance(found, str) else True


def _put(match: Match) -> Pattern:
    found = rolled(match)
    assert isinstance(found, Pattern)
    return found


def draw(dice: random.Random) -> Drawn:
    """Steps of a state of some axes, as models spell them, and what is read of it."""
    steps, rank = LEAST + dice.randint(0, 2), dice.randint(1, 3)
    sizes = [draws.size(dice) for _ in range(rank)]
    at = dice.randint(0, rank)
    x, f, r, c, w = wild("x f r c w")
    whole = draws.tensor(*sizes[:at], steps, *sizes[at:])
    kind, read = dice.randint(0, 5), dice.randint(0, 2)
    stacked: list[Pattern] = []
    state: Pattern = c
    for number in range(steps):
        u, by, out = (call(SELECT, one, at, number) for one in (x, f, r))
        state = (
            by * state + u,
            u + state * by,
            u - by * state,
            state * by - u,
            w * state + call("aten.tanh.default", by) * u,
            -(state * by) + u if number else u,
        )[kind]
        stacked.append((state, out * call("aten.tanh.default", state) + u, state + w)[read])
    return {
        **dict.fromkeys("xfr", whole),
        "c": draws.tensor(*sizes),
        "w": draws.tensor(*sizes[dice.randint(0, rank - 1) :]),
        "parts": tuple(stacked),
        "axis": dice.choice((at, at - rank - 1)),
    }


RULES: tuple[Rule, ...] = (
    Rule(
        "stack([f[0] * c + u[0], ...]) -> recurrence(u, f, c)",
        find=call(STACK, parts, axis),
        replace=_put,
        when=_is_recurrence,
        draw=draw,
        throughout="first",
    ),
)

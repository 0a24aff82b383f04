"""Recurrences: a graph whose results are steps of one kind -> the loop that it was unrolled from.

    s[0, c] = t0 = f[0, c] * c0[c] + z[0, c]          state = c0[c]
    s[1, c] = t1 = f[1, c] * t0 + z[1, c]       ->    for step < 512:
    ...                                                 state = f[step, c] * state + z[step, c]
    s[511, c] = f[511, c] * t510 + z[511, c]            s[step, c] = state

Expressions computed at all steps are compared side by side, as a column. A column of the same
operation is that operation of the columns of its arguments; one of loads whose places go on by
equal strides is a load at a place that depends on the step; one that is another column, one step
later, is a state that is carried from step to step. First steps may differ, as they do where a
state begins with zero: they stay in front of the loop. Where the last state alone is wanted, its
own steps are found by what their surroundings look like.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.expr import (
    Arith,
    BufferLoad,
    BufferStore,
    Cast,
    Const,
    Dfg,
    Expr,
    Inside,
    KernelVariable,
    Position,
    Within,
    all_parts,
    parts,
)
from anabranch.kernels.dfg.index_expr import Axis, Index, axis
from anabranch.kernels.dfg.lowering_api import NotLowered
from anabranch.kernels.dfg.simplify import bounded
from anabranch.kernels.dfg.traversal import replace_parts

LEAST_STEPS = 32
"""Fewer are as well unrolled: all that they read is then under way before the first of them."""
MOST_PEELED = 2
"""Steps in front of the loop, at most, that are computed otherwise."""
MOST_AFTER = 200
"""Expressions that are computed once, in front of the loop or behind it, at most."""
MOST_LAG = 4
"""Steps after which a value is used at last."""
DEPTH = 6
"""How far around an expression is looked for others of its kind."""
MOST_KINDS = 8
"""Kinds of expressions that are taken for steps before it is given up."""

NO_STEPS = Refused("it has no steps")
DIFFERENT = "its steps compute different things"

Column = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class CarriedState:
    """What is carried from step to step: `held` stands for it as the step before left it."""

    held: KernelVariable
    first: Expr
    next: Expr


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The loop over an axis of steps: what is stored before it, at each step of it, and after it,
    where the states are those of the last step."""

    dfg: Dfg
    step: Axis
    states: tuple[CarriedState, ...]
    before: tuple[BufferStore, ...]
    each: tuple[BufferStore, ...]
    after: tuple[BufferStore, ...]


def recurrence_of(dfg: Dfg | Refused) -> Recurrence | Refused:
    """The loop that a graph was unrolled from, or why there is none."""
    if isinstance(dfg, Refused):
        return dfg
    by_value: dict[str, list[BufferStore]] = {}
    for store in dfg.stores:
        by_value.setdefault(store.value, []).append(store)
    joined = [stores for stores in by_value.values() if len(stores) >= LEAST_STEPS]
    single = [store for stores in by_value.values() if stores not in joined for store in stores]
    why = NO_STEPS
    for tried in _tries(joined, single):
        try:
            return tried.rolled(dfg)
        except NotLowered as failed:
            # That they differ is what every wrong way to look at them says.
            if why.sentence in (NO_STEPS.sentence, DIFFERENT):
                why = Refused(str(failed))
        except RecursionError:
            why = Refused("each of its steps is too long")
    return why


def _tries(
    joined: Sequence[Sequence[BufferStore]], single: Sequence[BufferStore]
) -> Iterator[_Try]:
    """What may be steps of a loop: results that are joined of parts, from the first to the last or
    from the last to the first; else what the last result is made of."""
    if not joined:
        for chain in _chains([store.expr for store in single]):
            for peeled in range(min(MOST_PEELED + 1, len(chain) - LEAST_STEPS)):
                yield _Try((), (), tuple(single), chain[peeled:])
        return
    for peeled in range(MOST_PEELED + 1):
        count = min(map(len, joined)) - peeled
        for way in (1, -1):
            orders = [stores[::way] for stores in joined]
            before = [store for order in orders for store in order[:-count]]
            each = tuple(tuple(order[-count:]) for order in orders)
            yield _Try(tuple(before), each, tuple(single))


@dataclass(slots=True)
class _Try:
    """One way to see steps in a graph: stores in front of the loop, columns of stores, those behind
    it, and, where there are no columns of stores, the expression that each step computes."""

    before: tuple[BufferStore, ...]
    each: tuple[tuple[BufferStore, ...], ...]
    after: tuple[BufferStore, ...]
    chain: Column = ()
    step: Index = field(init=False)
    expr_of: dict[Column, Expr] = field(default_factory=dict)
    begun: dict[Expr, list[Column]] = field(default_factory=dict)
    carried: dict[tuple[Column, Expr], KernelVariable] = field(default_factory=dict)

    def rolled(self, dfg: Dfg) -> Recurrence:
        steps = len(self.each[0]) if self.each else len(self.chain) - 1
        self.step = axis("step", steps)
        each = tuple(map(self._stores, self.each))
        if self.chain:
            self._roll(self.chain[1:])
        after = self._ended(steps)
        if not self.carried:
            raise NotLowered("nothing is carried from one of its steps to the next")
        states = tuple(
            CarriedState(held, first, self.expr_of[column])
            for (column, first), held in self.carried.items()
        )
        if _many(*_exprs(self.before), *_exprs(after), *(state.first for state in states)):
            raise NotLowered("a result is of a step that is neither the first nor the last")
        return Recurrence(dfg, Axis("step", steps), states, self.before, each, after)

    def _ended(self, steps: int) -> tuple[BufferStore, ...]:
        """The results stored behind the loop, in terms of the states as the last step leaves them:
        those that are found so far, and, while that is too much, others."""
        after = self._left()
        for chain in _chains(_exprs(self.after)) if _many(*_exprs(after)) else ():
            if len(chain) >= steps:
                self._roll(chain[-steps:])
                after = self._left()
            if not _many(*_exprs(after)):
                break
        return after

    def _left(self) -> tuple[BufferStore, ...]:
        last: dict[Expr, Expr] = {c[-1]: held for (c, _), held in self.carried.items()}
        return tuple(replace(store, expr=replace_parts(store.expr, last)) for store in self.after)

    def _stores(self, column: tuple[BufferStore, ...]) -> BufferStore:
        index = tuple(map(self._index, zip(*(store.index for store in column), strict=True)))
        return replace(column[0], index=index, expr=self._roll(tuple(s.expr for s in column)))

    def _roll(self, column: Column) -> Expr:
        """The column as one expression of the step and of what is carried to it."""
        first = column[0]
        if all(_same(expr, first) for expr in column):
            return first
        if column in self.expr_of:
            return self.expr_of[column]
        if (later := self._later(column)) is not None:
            held = KernelVariable(f"state {len(self.carried)}", first.dtype)
            return self.carried.setdefault((later, first), held)
        self.begun.setdefault(first, []).append(column)
        if len({_kind(expr) for expr in column}) > 1:
            raise NotLowered(DIFFERENT)
        self.expr_of[column] = self._rebuilt(first, column)
        return self.expr_of[column]

    def _later(self, column: Column) -> Column | None:
        """The column that this one is one step later, None where there is none so far. Of one that
        is some steps ahead, those between are carried as well."""
        for lag in range(1, MOST_LAG + 1):
            for later in self.begun.get(column[lag], ()):
                if not all(map(_same, column[lag:], later)) or column[0].dtype != later[0].dtype:
                    continue
                if lag == 1:
                    return later
                between = (*column[1:], later[-lag])
                self.expr_of[between] = self._roll(between)
                self.begun.setdefault(between[0], []).append(between)
                return between
        return None

    def _rebuilt(self, first: Expr, column: Column) -> Expr:
        match first:
            case BufferLoad():
                loads = [expr for expr in column if isinstance(expr, BufferLoad)]
                index = tuple(map(self._index, zip(*(load.index for load in loads), strict=True)))
                within = self._within([load.within for load in loads])
                return BufferLoad(first.value, first.type, index, within, first.fill)
            case Position():
                at = self._index([expr.index for expr in column if isinstance(expr, Position)])
                return Position(at, first.dtype)
            case Inside():
                return Inside(self._within([o.within for o in column if isinstance(o, Inside)]))
            case Cast():
                arg = self._roll(tuple(expr.arg for expr in column if isinstance(expr, Cast)))
                return Cast(arg, first.dtype)
            case Arith():
                args = zip(*(expr.args for expr in column if isinstance(expr, Arith)), strict=True)
                return Arith(first.op, tuple(map(self._roll, args)), first.dtype, first.value_name)
            case _:
                raise NotLowered("its steps fold rows")

    def _index(self, places: Sequence[Index]) -> Index:
        """The place at each step, where it goes on by equal strides."""
        first, stride = places[0], places[1].constant - places[0].constant
        for k, place in enumerate(places):
            if place.terms != first.terms or place.constant != first.constant + k * stride:
                raise NotLowered("its steps read or write at places of no equal strides")
        return first + stride * self.step

    def _within(self, bounds: Sequence[Within]) -> Within:
        """The bounds at each step: where these go on by equal strides, so does what they are of."""
        if len({len(within) for within in bounds}) > 1:
            raise NotLowered("its steps read within different bounds")
        rolled: Within = ()
        for column in zip(*bounds, strict=True):
            first = column[0]
            if any(bound.high - bound.low != first.high - first.low for bound in column):
                raise NotLowered("its steps read within different bounds")
            at = self._index([bound.index - bound.low for bound in column])
            rolled += bounded(at, 0, first.high - first.low)
        return rolled


def _chains(exprs: Sequence[Expr]) -> Iterator[Column]:
    """Expressions of one kind, each the next one before the other in what that is made of: the
    kinds that come last go first."""
    every = all_parts(*exprs)
    kinds: dict[Expr, int] = {part: hash(_kind(part)) for part in every}
    for _ in range(DEPTH):
        kinds = {p: hash((kinds[p], *(kinds[inner] for inner in parts(p)))) for p in every}
    count: dict[int, int] = {}
    for part in every:
        count[kinds[part]] = count.get(kinds[part], 0) + 1
    tried = set[int]()
    for last in reversed(every):
        kind = kinds[last]
        if not isinstance(last, Arith) or count[kind] <= LEAST_STEPS or kind in tried:
            continue
        tried.add(kind)
        chain: list[Expr] = [last]
        path = _path(last, kinds)
        while path and (before := _followed(chain[-1], path)) is not None:
            chain.append(before)
        if len(chain) > LEAST_STEPS:
            yield tuple(reversed(chain))
        if len(tried) == MOST_KINDS:
            return


ArgumentPath = tuple[tuple[int, object], ...]
"""Which argument of what kind, one level down after the other."""


def _path(last: Expr, kinds: dict[Expr, int]) -> ArgumentPath:
    """The way to the one expression of this kind that it is made of, () where there are several,
    or none near by."""
    seen: dict[Expr, None] = {}
    paths: dict[Expr, ArgumentPath] = {}
    stack: list[tuple[Expr, ArgumentPath]] = [(last, ())]
    while stack:
        part, path = stack.pop()
        for k, inner in enumerate(parts(part)):
            there = (*path, (k, _kind(inner)))
            if kinds[inner] == kinds[last]:
                paths.setdefault(inner, there)
            elif inner not in seen:
                seen[inner] = None
                stack.append((inner, there))
        if len(seen) > MOST_AFTER:
            return ()
    return next(iter(paths.values())) if len(paths) == 1 else ()


def _followed(expr: Expr, path: ArgumentPath) -> Expr | None:
    """The expression at the end of the way from there, if it is the same way."""
    for k, kind in path:
        inner = parts(expr)
        if k >= len(inner) or _kind(inner[k]) != kind:
            return None
        expr = inner[k]
    return expr


def _exprs(stores: Sequence[BufferStore]) -> list[Expr]:
    return [store.expr for store in stores]


def _many(*exprs: Expr) -> bool:
    """Whether that is more than is well computed outside of the loop."""
    return len(all_parts(*exprs)) > MOST_AFTER


def _same(expr: Expr, other: Expr) -> bool:
    """Whether they are equal: those that are not would be compared down to their first step."""
    return expr is other or (hash(expr) == hash(other) and expr == other)


def _kind(expr: Expr) -> tuple[object, ...]:
    """The features that two expressions share which may be the same at two steps."""
    match expr:
        case BufferLoad():
            return ("load", expr.value, expr.type, expr.exact)
        case Const():
            return ("const", expr.exact, expr.dtype)
        case Arith():
            return ("arith", expr.op, expr.dtype)
        case _:
            return (type(expr).__name__, expr.dtype)

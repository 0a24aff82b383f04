"""Is an equation implied by others? Both sides are rewritten with what is known until they meet.

    known    relu(relu(x)) = relu(x)     x + y = y + x     (x + y) + z = x + (y + z)
    asked    relu(relu(x + y)) + z  =  z + relu(x + y)

    left     relu(relu(x + y)) + z  ->  relu(x + y) + z   \
    right    z + relu(x + y)        ->  ...               /  met: implied

A few steps from either side, one call bigger than the sides at most: a search, not a decision, so
some implied equations are kept; none is dropped that is not implied. Shapes are asked at each step,
and each step has to give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from anabranch.ir.rule import COMMUTATIVE, Call, Operand, Wild, text_pattern, wildcards
from anabranch.rewrite.discovery.settings import SIZES
from anabranch.rewrite.discovery.terms import Evaluator, fingerprint
from anabranch.rewrite.rules.found import MORE, Shapes, fill, letters, unify

STEPS = 3
"""From either side: an equation is looked for up to twice as far."""

MOST = 150
"""Terms looked at on each side."""

Side = Call | Wild
Bindings = Mapping[str, Operand]


@dataclass(frozen=True, slots=True)
class Directed:
    """find -> replace, for tensors of these shapes."""

    find: Call
    replace: Side
    shapes: Shapes


@dataclass(slots=True)
class Theory:
    """What is known: equations by the operator of their left side, and what associates."""

    rules: dict[str, list[Directed]] = field(default_factory=dict)
    associative: set[str] = field(default_factory=set)

    def add(self, one: Side, two: Side, shapes: Shapes) -> None:
        """The equation, in each direction in which nothing new appears out of nowhere."""
        for find, replace in directions(one, two, shapes):
            self.rules.setdefault(find.op, []).append(Directed(find, replace, shapes))
        if isinstance(one, Call) and _regroups(one, two):
            self.associative.add(one.op)


def directions(one: Side, two: Side, shapes: Shapes) -> Iterator[tuple[Call, Side]]:
    """Those whose left side is a call that binds all that the right side has; letters are sizes
    that shapes tell."""
    for find, replace in ((one, two), (two, one)):
        bound = set(wildcards(find))
        told = {each for name in bound if name in shapes for each in shapes[name]}
        known = bound | told
        sized = bound & letters(shapes) <= told
        if isinstance(find, Call) and sized and set(wildcards(replace)) <= known:
            yield find, replace


def implied(one: Side, two: Side, theory: Theory, run: Evaluator) -> bool:
    """Whether a few steps lead from one side to the other."""
    most = max(size(one), size(two)) + 1
    sides = [_Frontier(one), _Frontier(two)]
    for _ in range(STEPS):
        for mine, other in (sides, sides[::-1]):
            if mine.met(other, theory.associative):
                return True
            mine.step(theory, run, most)
    return sides[0].met(sides[1], theory.associative)


class _Frontier:
    """The terms reached from one side, by their text."""

    def __init__(self, start: Side) -> None:
        self.seen = {spelled(start): start}
        self.fresh = [start]

    def met(self, other: _Frontier, associative: set[str]) -> bool:
        mine, theirs = (
            {text_pattern(ordered(term, associative)) for term in side.seen.values()}
            for side in (self, other)
        )
        return not mine.isdisjoint(theirs)

    def step(self, theory: Theory, run: Evaluator, most: int) -> None:
        before, self.fresh = self.fresh, []
        for term in before:
            for found in rewritten(term, theory, run):
                text = spelled(found)
                if text not in self.seen and size(found) <= most and len(self.seen) < MOST:
                    self.seen[text] = found
                    self.fresh.append(found)


def rewritten(term: Side, theory: Theory, run: Evaluator) -> Iterator[Side]:
    """The term with one call in it replaced, in every way that keeps its numbers."""
    wanted = run(term)
    assert wanted is not None
    for found in _anywhere(term, theory, run):
        values = run(found)
        if values is not None and fingerprint(values) == fingerprint(wanted):
            yield found


def _anywhere(term: Operand, theory: Theory, run: Evaluator) -> Iterator[Side]:
    if not isinstance(term, Call):
        return
    for known in theory.rules.get(term.op, ()):
        for bound in _matches(known.find, term, {}, known.shapes, run):
            put = _put(known, bound, run)
            if put is not None:
                yield put
    for i, arg in enumerate(term.args):
        items = arg if isinstance(arg, tuple) else (arg,)
        for k, item in enumerate(items):
            for found in _anywhere(item, theory, run):
                new: Operand = found
                if isinstance(arg, tuple):
                    new = (*arg[:k], found, *arg[k + 1 :])
                yield Call(term.op, (*term.args[:i], new, *term.args[i + 1 :]), term.rest)


def _put(known: Directed, bound: Bindings, run: Evaluator) -> Side | None:
    """The replacement, if the operands have shapes for which the equation holds."""
    shapes = {}
    for name in known.shapes:
        if name in bound:
            operand = bound[name]
            values = run(operand) if isinstance(operand, Call | Wild) else None
            if values is None:
                return None
            shapes[name] = tuple(values[0].shape)
    told = unify(known.shapes, shapes)
    if isinstance(told, str):
        return None
    given = dict(bound)
    for letter in letters(known.shapes) - {MORE}:
        if letter in bound and _size(bound[letter]) != told.get(letter):
            return None
        if letter in told and letter not in bound:
            given[letter] = _lettered(told[letter], run)
    put = fill(known.replace, given)
    return put if isinstance(put, Call | Wild) else None


def _matches(
    pattern: Operand, term: Operand, bound: Bindings, shapes: Shapes, run: Evaluator
) -> Iterator[Bindings]:
    """What the wildcards may stand for; a tensor for tensors only, a number for numbers."""
    if isinstance(pattern, Wild):
        tensor = isinstance(term, Call) or (isinstance(term, Wild) and term.name in run.inputs)
        if tensor == (pattern.name in shapes) and bound.get(pattern.name, term) == term:
            yield {**bound, pattern.name: term}
    elif isinstance(pattern, Call):
        if isinstance(term, Call) and (term.op, term.rest) == (pattern.op, pattern.rest):
            yield from _all(pattern.args, term.args, bound, shapes, run)
            if pattern.op in COMMUTATIVE:
                yield from _all(pattern.args, term.args[::-1], bound, shapes, run)
    elif isinstance(pattern, tuple):
        if isinstance(term, tuple) and len(term) == len(pattern):
            yield from _all(pattern, term, bound, shapes, run)
    elif pattern == term:
        yield bound


def _all(
    patterns: tuple[Operand, ...],
    terms: tuple[Operand, ...],
    bound: Bindings,
    shapes: Shapes,
    run: Evaluator,
) -> Iterator[Bindings]:
    if len(patterns) != len(terms):
        return
    if not patterns:
        yield bound
        return
    for more in _matches(patterns[0], terms[0], bound, shapes, run):
        yield from _all(patterns[1:], terms[1:], more, shapes, run)


def _size(operand: Operand) -> object:
    return SIZES.get(operand.name) if isinstance(operand, Wild) else operand


def _lettered(size: object, run: Evaluator) -> Operand:
    """The setting's letter for a size; the size itself if it has none."""
    for letter in sorted(letters(run.setting.inputs) - {MORE}):
        if SIZES[letter] == size:
            return Wild(letter)
    assert isinstance(size, int | tuple)
    return size


def size(term: Operand) -> int:
    """How many different calls it has."""
    return len(calls(term))


def weight(term: Operand) -> int:
    """How many calls it has, each as often as it is written: of f(x, x) and f(x, y) the second is
    the more general, though it may be the larger graph."""
    if isinstance(term, Call):
        return 1 + sum(map(weight, term.args))
    return sum(map(weight, term)) if isinstance(term, tuple) else 0


def calls(term: Operand) -> set[Call]:
    if isinstance(term, Call):
        return {term}.union(*map(calls, term.args))
    return set[Call]().union(*map(calls, term)) if isinstance(term, tuple) else set()


def spelled(term: Operand) -> str:
    """Its text with operands in order where order does not matter."""
    return text_pattern(ordered(term, set()))


def ordered(term: Operand, associative: set[str]) -> Operand:
    """With operands that commute in order, and long sums flat where they associate."""
    if isinstance(term, tuple):
        return tuple(ordered(item, associative) for item in term)
    if not isinstance(term, Call):
        return term
    args = [ordered(arg, associative) for arg in term.args]
    if term.op not in COMMUTATIVE:
        return Call(term.op, tuple(args), term.rest)
    flat: list[Operand] = []
    for arg in args:
        inner = isinstance(arg, Call) and arg.op == term.op and term.op in associative
        # (x * s) * y is no product of three tensors: that s may change its place has to be found.
        plain = inner and isinstance(arg, Call) and not any(map(_number, (*args, *arg.args)))
        flat += arg.args if plain and isinstance(arg, Call) else (arg,)
    return Call(term.op, tuple(sorted(flat, key=text_pattern)), term.rest)


def _number(operand: Operand) -> bool:
    return isinstance(operand, int | float) or operand == Wild("s")


def _regroups(one: Call, two: Side) -> bool:
    """Whether it says (x + y) + z = x + (y + z), for some operator that commutes."""

    def leaves(side: Side) -> list[str]:
        inner = (
            [arg.op for arg in side.args if isinstance(arg, Call)] if isinstance(side, Call) else []
        )
        found = sorted(wildcards(side)) if inner == [one.op] else []
        return found if size(side) == 2 and len(set(found)) == 3 else []

    alike = isinstance(two, Call) and two.op == one.op in COMMUTATIVE
    return alike and leaves(one) == leaves(two) != []

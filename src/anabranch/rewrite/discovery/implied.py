"""Is an equation implied by others? Both sides are saturated with what is known until they meet.

    known    relu(relu(x)) = relu(x)     x + y = y + x     (x + y) + z = x + (y + z)
    asked    relu(relu(x + y)) + z  =  z + relu(x + y)

    left     {relu(relu(x + y)), relu(x + y)} + z
    right    z + {relu(x + y), ...}                  one class: implied

A few steps, with terms a little bigger than the sides: a search, not a decision, so some
implied equations are kept; none is dropped that is not implied. Shapes are asked at each step, and
each step has to give the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anabranch.ir.rule import Call, wildcards
from anabranch.rewrite.discovery.egraph import Directed, EGraph
from anabranch.rewrite.discovery.terms import EquationSide, TermEvaluator, size
from anabranch.rewrite.rules.found import Shapes, letters


@dataclass(frozen=True, slots=True)
class Room:
    """How far is looked: terms of so many calls more than the sides, so many nodes of both sides
    and all that is made of them, so many times in a row that what is put is matched again."""

    calls: int
    nodes: int
    steps: int


QUICK = Room(calls=1, nodes=250, steps=5)
"""For all candidates, of which there are thousands."""

THOROUGH = Room(calls=2, nodes=1000, steps=8)
"""For what is kept."""

KnownEquation = tuple[EquationSide, EquationSide, Shapes]
"""An equation between tensors of these shapes."""


@dataclass(slots=True)
class Theory:
    """What is known: equations, and as rules by the operator of their left side."""

    equations: list[KnownEquation] = field(default_factory=list)
    rules: dict[str, list[Directed]] = field(default_factory=dict)

    def add(self, left: EquationSide, right: EquationSide, shapes: Shapes) -> None:
        """The equation, in each direction in which nothing new appears out of nowhere."""
        self.equations.append((left, right, shapes))
        for find, replace in directions(left, right, shapes):
            self.rules.setdefault(find.op, []).append(Directed(find, replace, shapes))


def directions(
    left: EquationSide, right: EquationSide, shapes: Shapes
) -> Iterator[tuple[Call, EquationSide]]:
    """Those whose left side is a call that binds all that the right side has; letters are sizes
    that shapes tell."""
    for find, replace in ((left, right), (right, left)):
        bound = set(wildcards(find))
        told = {each for name in bound if name in shapes for each in shapes[name]}
        available = bound | told
        sized = bound & letters(shapes) <= told
        if isinstance(find, Call) and sized and set(wildcards(replace)) <= available:
            yield find, replace


def implied(
    first: EquationSide,
    second: EquationSide,
    theory: Theory,
    run: TermEvaluator,
    room: Room = QUICK,
) -> bool:
    """Whether a few steps make one class of both sides."""
    graph = EGraph(run, max(size(first), size(second)) + room.calls, room.nodes)
    left, right = graph.add(first), graph.add(second)
    for _ in range(room.steps):
        if graph.find(left) == graph.find(right):
            return True
        if not graph.step(theory.rules):
            return False
    return graph.find(left) == graph.find(right)


def prune(theory: Theory, first: int, run: TermEvaluator) -> None:
    """Takes out equations from this place on that all others imply, the last one first: a law that
    is found after its special cases makes them go. Few are left to look far for."""
    for room in (QUICK, THOROUGH):
        for equation in reversed(theory.equations[first:]):
            rest = Theory()
            for each in theory.equations:
                if each != equation:
                    rest.add(*each)
            if implied(*equation[:2], rest, run, room):
                theory.equations, theory.rules = rest.equations, rest.rules

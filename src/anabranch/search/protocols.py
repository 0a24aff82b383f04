"""Evaluators: what graphs take, for whoever searches among them.

simplify -> appraise, foresee: predictions -> build -> race: side by side, as they are run
            locals: the same of parts of a graph
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.search.engine.pricing import Pricer

PartTimer = Callable[[Sequence[Graph]], Sequence[Cost | None]]
"""What graphs take as parts of another, side by side; None where one cannot run."""


class Informed(Pricer, Protocol):
    """A pricer that says what it does not know."""

    def fresh(self, graph: Graph) -> frozenset[str]:
        """The tasks of the graph that nobody has run, by name."""


class BuiltGraph(Protocol):
    """A graph with all that it takes to run it."""

    @property
    def graph(self) -> Graph:
        """The graph as it was built."""

    @property
    def cost(self) -> Cost:
        """What its plan takes, measured or predicted."""


T = TypeVar("T", bound=BuiltGraph)


@dataclass(frozen=True, slots=True)
class PartEvaluators(Generic[T]):
    """What parts of a graph take. `prices`: under which forms of them are looked for, the first of
    them about what a part takes. `first`: parts are searched, and run, before the whole; else they
    are run to tell what each step of a whole gained."""

    prices: Callable[[Sequence[T]], Sequence[Informed]]
    time_parts: PartTimer
    first: bool = True


@dataclass(frozen=True, slots=True)
class Evaluators(Generic[T]):
    """What graphs take. `simplify`: the graph as it would be built; `appraise`:
    predictions, by what is known of graphs that were built; `build`: a simplified graph with all
    that it takes to run it, ValueError if it cannot be run; `race`: several of these side by
    side; `again`: the same with more care, for those of which one is a little faster, None if there
    is no way. `locals`: what parts take, None if nobody says it. `foresee`: the times of the few
    candidates that a search ends with, of which prices tell less."""

    simplify: Callable[[Graph], Graph]
    appraise: Callable[[Sequence[T]], Pricer]
    build: Callable[[Graph], T]
    race: Callable[[Sequence[T]], list[Cost]]
    locals: PartEvaluators[T] | None = None
    foresee: Callable[[Sequence[T]], Callable[[Graph], Cost]] | None = None
    again: Callable[[Sequence[T]], list[Cost]] | None = None

"""Path: an equal graph that was found, the steps to it, and what they gained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anabranch.deadline import CutShort
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost
from anabranch.search.engine.backtracking import RewriteStep


@dataclass(frozen=True, slots=True)
class Round:
    """One search that paid: its steps, each with what it was predicted to gain, what the graph took
    before all of them and after, side by side, and the graph after them; the one before is that of
    the round before, or where the path begins."""

    steps: tuple[RewriteStep, ...]
    before: Cost
    after: Cost
    graph: Graph


@dataclass(frozen=True, slots=True)
class Allowed:
    """Seconds that somebody gave: for all of a compilation, and for its search. None: as long as it
    takes, and the usual time of a search."""

    budget: float | None = None
    search: float | None = None


NOTHING = Allowed(0.0, 0.0)
"""What was stopped had no time that counts: whoever compiles again has more."""


@dataclass(frozen=True, slots=True)
class Path:
    """From one graph to another. `graph` has the constants of `begin`: what depends on constants
    alone is not computed yet. No rounds: nothing faster was found, and both are the same.
    `cut_short`: why the search ended before its work was done, "" if it did not; `undone`: the part
    of the work that was left then; `ran`: how many graphs it built and raced, which nobody
    remembers. `unfinished`: it left something out for want of time or of work, so that one that has
    more than `allowed` goes on where it ended. `beside`: sizes of the same model, as products of
    their dimensions, whose searches ended so: this graph was not searched itself, and the costs of
    the round are those of the first of them."""

    begin: Graph
    graph: Graph
    rounds: tuple[Round, ...]
    cut_short: CutShort = ""
    undone: float = 0.0
    ran: int = field(default=0, compare=False)
    unfinished: bool = False
    allowed: Allowed = NOTHING
    beside: tuple[int, ...] = ()

    @property
    def steps(self) -> tuple[RewriteStep, ...]:
        """The steps of all rounds, in order."""
        return tuple(step for round in self.rounds for step in round.steps)


def rules_of(steps: Sequence[RewriteStep]) -> str:
    """The rules of a path, each once, with how often."""
    names = [step.rule for step in steps]
    return "; ".join(
        name + (f" x{names.count(name)}" if names.count(name) > 1 else "")
        for name in dict.fromkeys(names)
    )

"""A graph -> graphs that rules lead to, one after the other, each drawn at random: no price, no
clock, no budget.

    captured --rule, match--> graph --rule, match--> graph --simplify--> graph -- ... --simplify-->

A search tries what may pay and stops when its time is over; here every rule has its turn. A rule is
drawn among those that match, then one of its matches, so that a rule that matches once in a graph
comes as often as one that matches everywhere. A step is applied as a search applies it: the match
replaced, repeated nodes joined, results in the layout that was promised. Every other graph is
simplified before the first step, as a search finds it; the others keep what rules that always help
would have taken away. Equal seeds give equal steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from anabranch.ir.graph import Graph
from anabranch.ir.rule import Match, Rule
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches_in
from anabranch.rewrite.match_index import MatchIndex, RuleSignature
from anabranch.rewrite.output_layout import as_promised
from anabranch.rewrite.passes.canonical import canonical
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.rules import ALL, always
from anabranch.search.engine.backtracking import GROWTH, ROOM
from anabranch.search.engine.value_numbers import Expressions
from anabranch.trace import Trace

RULES: tuple[Rule, ...] = (*ALL, *always.RULES)
"""Those that might help, and those that always do."""
SIMPLIFY = "simplify"
"""The name that stands in place of a rule's where the graph was simplified."""
OFTEN = 0.25
"""After how many of the steps; what a rule leaves is what the next one finds after the others."""
MATCHES = 200
"""Of one rule at most so many are listed: those of three roots grow with the cube of the nodes."""

Simplify = Callable[[Graph], Graph]


@dataclass(frozen=True, slots=True)
class Substitution:
    """A rule, and the names of the nodes that it matched, the roots first."""

    rule: str
    nodes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The equation and where it was applied: "x + 0 -> x at %add"."""
        where = ", ".join(f"%{name}" for name in self.nodes)
        return f"{self.rule} at {where}" if where else self.rule


@dataclass(frozen=True, slots=True)
class Applied:
    """A substitution, and the graph that it made."""

    done: Substitution
    graph: Graph = field(repr=False)


class Crash(Exception):
    """A rule, or simplification, raised what it should not."""

    def __init__(self, done: Substitution) -> None:
        super().__init__(f"{done.text} crashed")
        self.done = done


def substituted(graph: Graph, steps: int, seed: int, simplify: Simplify) -> Iterator[Applied]:
    """So many substitutions, or fewer if no rule leads to a graph that was not there before; the
    graph is simplified on the way, and at the end. Raises Crash."""
    return _RandomWalk(graph, seed, simplify).run(steps)


class _RandomWalk:
    """Where it stands, and what was there before."""

    def __init__(self, graph: Graph, seed: int, simplify: Simplify) -> None:
        self._dice = random.Random(f"steps {seed}")
        self._graph = self._promised = graph
        self._simplify = simplify
        self._most = GROWTH * len(graph.nodes) + ROOM
        self._expressions = Expressions()
        self._seen = {self._expressions.of(graph)}
        self._signatures = [RuleSignature.of(rule) for rule in RULES]

    def run(self, steps: int) -> Iterator[Applied]:
        first = self._simplify if self._dice.random() < 0.5 else _canonical
        yield self._simplified(first)
        for _ in range(steps):
            applied = self._step()
            if applied is None:
                break
            self._graph = applied.graph
            yield applied
            if self._dice.random() < OFTEN:
                yield self._simplified(self._simplify)
        yield self._simplified(self._simplify)

    def _step(self) -> Applied | None:
        """The first of the rules, in an order drawn anew, that leads to another graph."""
        around = MatchIndex(self._graph)
        able = [signature for signature in self._signatures if signature.ops <= around.ops]
        for signature in self._dice.sample(able, len(able)):
            with _named(Substitution(signature.rule.name)):
                matches = list(islice(matches_in(around, signature, _unheard), MATCHES))
            for match in self._dice.sample(matches, len(matches)):
                applied = self._applied(signature.rule, match)
                if applied is not None:
                    return applied
        return None

    def _applied(self, rule: Rule, match: Match) -> Applied | None:
        """None for what a search would turn down too."""
        done = Substitution(rule.name, tuple(node.name for node in match.nodes))
        with _named(done):
            try:
                after = cse(apply(self._graph, rule, match), Trace())
                as_promised(after, self._promised)
            except ValueError:
                return None
            verify_graph(after)
        if len(after.nodes) >= self._most or not self._is_new(after):
            return None
        return Applied(done, after)

    def _simplified(self, simplify: Simplify) -> Applied:
        done = Substitution(SIMPLIFY)
        with _named(done):
            self._graph = simplify(as_promised(self._graph, self._promised))
        self._promised = self._graph
        self._is_new(self._graph)
        return Applied(done, self._graph)

    def _is_new(self, graph: Graph) -> bool:
        key = self._expressions.of(graph)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


class _named:
    """What is raised inside says by which substitution."""

    def __init__(self, done: Substitution) -> None:
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            raise Crash(self._done) from error


def _canonical(graph: Graph) -> Graph:
    """What rules can be told by, and no more."""
    return cse(canonical(graph, Trace()), Trace())


def _unheard(where: str, why: str) -> None:
    """Refusals: there are many, and none is a mistake."""


def rules_of(done: Sequence[Substitution]) -> list[str]:
    """The rules, each as often as it was applied."""
    return [each.rule for each in done if each.rule != SIMPLIFY]

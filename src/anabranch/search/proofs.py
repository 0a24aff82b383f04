"""Proofs: is each substitution that a search would take equal, at the very place where it is done?

    RewriteStep("x*s + x*t -> x*(s+t)", of these nodes)   -->  ""          or why not

Rules are trusted because they were drawn for many shapes. A graph that is about to be built is
proved once more, as it stands: the nodes that matched, and what came in their place, with the
network's shapes, run on random numbers in double precision. Each kind of place is proved once. A
rule that is wrong somewhere is not used any more, and no step of it is taken.

Places of which a processor takes long, and those whose numbers say nothing (a root of what is
negative by chance), are left to the comparison of the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Input, types
from anabranch.ir.key import structure_text
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Rule
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.prove import different
from anabranch.search.engine.backtracking import Place, RewriteStep
from anabranch.search.engine.stitch import extract
from anabranch.trace import Trace

MOST_FLOPS = 4_000_000_000
"""Of a place before and after together: a second or less on two cores, in double precision."""
LEFT = "left to the comparison of the whole"
Proof = Refused | Literal["proved", "left"]
"""Of a place: why it is not equal, that it is, or that nobody can say it of the place alone."""


class Proofs:
    """What was proved in one search, by kind of place. `rules`: those that were not wrong yet."""

    def __init__(self, rules: Sequence[Rule], trace: Trace) -> None:
        self.rules = tuple(rules)
        self._trace = trace
        self._proof_of: dict[str, Proof] = {}
        self._places: dict[tuple[int, str, tuple[str, ...]], tuple[Place, Proof]] = {}

    def wrong(self, steps: Iterable[RewriteStep]) -> Refused | None:
        """Why one of the steps is not equal, naming it; None if all are, as far as they are proved.
        All are looked at, so that all rules that are wrong are known then."""
        asked = [(step, self._asked(step)) for step in steps]
        wrong = ((step, why) for step, why in asked if isinstance(why, Refused))
        named = (f"{step.rule} at %{', %'.join(step.nodes)}: {why}" for step, why in wrong)
        return next(map(Refused, named), None)

    def tell(self, name: str) -> None:
        """Says in the trace how many kinds of places were proved."""
        verdicts = list(self._proof_of.values())
        left, proved = verdicts.count("left"), verdicts.count("proved")
        if proved + left:
            told = f"{proved} kinds of substitutions proved equal in double precision"
            told += f", {left} {LEFT}" if left else ""
            self._trace.add("applied", "search", name, told)

    def _asked(self, step: RewriteStep) -> Proof:
        place = step.place
        if place is None:  # remembered from an earlier search, which proved it
            return "proved"
        key = id(place.graph), step.rule, place.nodes
        if key not in self._places:
            # The place is kept with its entry, so the id of its graph cannot pass to another one.
            self._places[key] = place, self._proved(step, place)
        return self._places[key][1]

    def _proved(self, step: RewriteStep, place: Place) -> Proof:
        rule = next((candidate for candidate in self.rules if candidate.name == step.rule), None)
        if rule is None:
            return Refused("the rule was wrong elsewhere")
        kind = f"{step.rule}\n{_like(place)}"
        if kind not in self._proof_of:
            both = instance(rule, place)
            small = both is not None and sum(map(_flops, both)) <= MOST_FLOPS
            self._proof_of[kind] = why = _difference(*both) if both and small else "left"
            if isinstance(why, Refused):
                self.rules = tuple(other for other in self.rules if other is not rule)
                told = f"not equal: {why}; the rule is not used from here on"
                self._trace.add("warning", "search", f"{step.rule} at %{place.nodes[0]}", told)
        return self._proof_of[kind]


def _like(place: Place) -> str:
    """The features that the nodes that matched share with those of places alike."""
    table, wanted = types(place.graph), set(place.nodes)
    nodes = tuple(node for node in place.graph.nodes if node.name in wanted)
    produced = {name for node in nodes for name in node.results}
    outer = dict.fromkeys(name for node in nodes for name in node.uses if name not in produced)
    inputs = tuple(Input(name, table[name]) for name in outer)
    return structure_text(Graph("", inputs, (), nodes, ()))


def instance(rule: Rule, place: Place) -> tuple[Graph, Graph] | None:
    """The nodes that the rule matches there as a graph, and what comes in their place; where that
    reads what lies above them, all that was searched. None where the rule does not match."""
    match = next((m for m in matches(place.graph, rule) if _names(m) == place.nodes), None)
    if match is None:
        return None
    for before in (extract(place.graph, place.nodes), place.graph):
        with suppress(KeyError, ValueError):
            return before, apply(before, rule, match)
    return None


def _names(match: Match) -> tuple[str, ...]:
    return tuple(node.name for node in match.nodes)


def _flops(graph: Graph) -> int:
    table = types(graph)
    return sum(ops.flops(node, table) for node in graph.nodes)


def _difference(before: Graph, after: Graph) -> Proof:
    if any(ops.draws(node) for node in (*before.nodes, *after.nodes)):
        return "left"
    try:
        why = different(before, after, trials=1)
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return "left"
    if any(word in str(why) for word in ("nan", "inf")):
        return "left"
    return why or "proved"

"""Identities: one sweep of the rules that always help (`rewrite.rules.always`).

drop = dropout(x, 0.5, False)
relu = relu(drop)                ->    relu = relu(x)
"""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.rule import Match, ValueFacts
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.match import shared
from anabranch.rewrite.rules.always import RULES
from anabranch.rewrite.rules.special import flagged
from anabranch.trace import Trace

ALWAYS = flagged(RULES)


def identities(graph: Graph, trace: Trace, exact: bool = False) -> Graph:
    """Without the nodes that give back what they are given; nothing is computed twice for that.
    `exact`: NaN, infinities and signs of zeros are given back as well."""
    returned = {ref.name for ref in graph.outputs}

    def accept(match: Match) -> bool:
        inner = match.nodes[match.width :]
        if any(ops.contracts(node) for node in inner) and shared(graph, match):
            return False
        handed_out, types = match.root.name in returned, match.value_facts.types
        if handed_out and ops.is_view(match.root, types):
            # A caller gets no input that is a copy where calls lie otherwise: flatten, then view.
            back = match.root.types == (types.get(getattr(match.bound["x"], "name", "")),)
            return not (back and _borrowed(Ref(match.root.name), match.value_facts))
        return not (handed_out and _borrowed(match.bound["x"], match.value_facts))

    rules = [rule for rule in ALWAYS if not (exact and rule.special)]
    return apply_all(graph, rules, accept=accept)


def _borrowed(value: object, facts: ValueFacts) -> bool:
    """Whether the value is an input or a constant, or a view of one."""
    while isinstance(value, Ref) and value.name in facts.producers:
        node = facts.producers[value.name]
        if not ops.is_view(node, facts.types):
            return False
        value = node.args[0]
    return True

"""Left sides of rules in drawings: lines that torch runs, in which the rule has its place."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.planted import planted, sheets

from anabranch.fuzz.patterns import pattern
from anabranch.fuzz.program_builder import Rejected, Sheet
from anabranch.fuzz.substitute import RULES
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.canonical import canonical
from anabranch.rewrite.rules import CANDIDATES
from anabranch.trace import Trace

NAMED = {rule.name: rule for rule in RULES}
RARE = (
    "linear(rms_norm(x), w, b) -> linear(x, w g) r + b",
    "cat([x, sum(embedding(w, i)), ...], rows) -> cat([x, sum(lookup(all w, cat(i)))])",
    "max_pool(pad(x, -inf)) -> max_pool(x) with padding of its own",
    "avg_pool(x) of one place -> x[::s, ::s]",
)
"""Of rules that no other kind had drawn in 4,253 graphs."""


@pytest.mark.parametrize("name", RARE)
def test_a_rule_has_its_place(name: str) -> None:
    rule = NAMED[name]
    graphs = (canonical(graph, Trace()) for graph in planted([rule], range(12)))
    assert any([*matches(graph, rule)] for graph in graphs)


def test_rules_of_every_family_can_be_written() -> None:
    """But for those that are worth it on what is larger than anything drawn."""
    for family in CANDIDATES.keys() - {"norm_by_parts"}:
        assert next(sheets(CANDIDATES[family][-1:], range(12)), None) is not None, family


def test_values_that_are_alike_are_read() -> None:
    """So that what is drawn is no island."""
    sheet, joined = Sheet(1), 0
    for _ in range(40):
        before, lines = set(sheet.values), len(sheet.steps)
        with suppress(Rejected):
            pattern(sheet)
        joined += any(before.intersection(step.uses) for step in sheet.steps[lines:])
    assert joined > 20

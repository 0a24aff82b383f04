"""Left sides of rules in drawings: lines that torch runs, in which the rule has its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest
import torch

from anabranch.frontend.from_torch import capture
from anabranch.fuzz import patterns
from anabranch.fuzz.drawing import Drawing, made
from anabranch.fuzz.sheet import Rejected, Sheet
from anabranch.ir.graph import Graph
from anabranch.rewrite.match import matches
from anabranch.rewrite.passes.canonical import canonical
from anabranch.rewrite.rules import CANDIDATES
from anabranch.trace import Trace

RULES = {rule.name: rule for rule in patterns.RULES}
RARE = (
    "linear(rms_norm(x), w, b) -> linear(x, w g) r + b",
    "attention(x * s, k, v) -> attention(x, k, v) of another scale",
    "cat([x, sum(embedding(w, i)), ...], rows) -> cat([x, sum(lookup(all w, cat(i)))])",
    "max_pool(pad(x, -inf)) -> max_pool(x) with padding of its own",
    "cat(gelu(conv(x, w, b)) of g groups, ...) -> "
    "channels of gelu(each group of conv(x, pad(w) and pad(v), b and c))",
    "avg_pool(x) of one place -> x[::s, ::s]",
)
"""Of rules that no other kind had drawn in 4,253 graphs."""


def graph_of(sheet: Sheet) -> Graph:
    """What was drawn so far, captured, with all of it returned."""
    outputs = tuple(name for step in sheet.steps for name in step.results)
    drawing = Drawing(0, tuple(sheet.inputs), tuple(sheet.layers), tuple(sheet.steps), outputs)
    build, inputs = made(drawing)
    return canonical(capture(build().eval(), inputs(0)).graph, Trace())


def drawn(seeds: Iterable[int]) -> Iterator[Sheet]:
    """Sheets with a pattern, but for seeds whose numbers torch, or a drawing, does not take."""
    for seed in seeds:
        sheet = Sheet(seed)
        sheet.given("normal((2, 3, 4, 4), 1{shift})")
        with suppress(Rejected):
            patterns.pattern(sheet)
            yield sheet


@pytest.mark.parametrize("name", RARE)
def test_a_rule_has_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "RULES", (RULES[name],))
    assert any([*matches(graph_of(sheet), RULES[name])] for sheet in drawn(range(12)))


def test_rules_of_every_family_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those that are worth it on what is larger than anything drawn."""
    for family in CANDIDATES.keys() - {"fewrows"}:
        monkeypatch.setattr(patterns, "RULES", CANDIDATES[family][-1:])
        assert next(drawn(range(12)), None) is not None, family


def test_values_that_are_alike_are_read() -> None:
    """So that what is drawn is no island."""
    sheet = Sheet(1)
    for _ in range(40):
        with suppress(Rejected):
            patterns.pattern(sheet)
    made_before = {name for step in sheet.steps for name in step.results}
    read = {name for step in sheet.steps for name in step.uses} & made_before
    assert len(read) > len(sheet.steps) / 3
    assert all(isinstance(value, torch.Tensor) for value in sheet.values.values())

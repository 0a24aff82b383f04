"""Models with what a rule looks for among their lines, captured (`fuzz.patterns`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from tests.rewrite.graphs import captured

from anabranch.fuzz import patterns
from anabranch.fuzz.drawing import DrawnModel, built_model
from anabranch.fuzz.program_builder import Rejected, Sheet
from anabranch.ir.graph import Graph
from anabranch.ir.rule import Rule


def planted(rules: Sequence[Rule], seeds: Iterable[int]) -> Iterator[Graph]:
    """For each seed one graph with the left sides of all these rules, as torch captures them, but
    for those whose numbers torch, or a drawing, does not take: a capture costs more than a line."""
    for seed in seeds:
        sheet = _sheet(seed)
        for rule in rules:
            with suppress(Rejected):
                patterns.pattern(sheet, (rule,))
        if sheet.steps:
            yield graph_of(sheet)


def sheets(rules: Iterable[Rule], seeds: Iterable[int]) -> Iterator[Sheet]:
    """Drawings of one input and one pattern."""
    for seed in seeds:
        sheet = _sheet(seed)
        with suppress(Rejected):
            patterns.pattern(sheet, tuple(rules))
            yield sheet


def _sheet(seed: int) -> Sheet:
    sheet = Sheet(seed)
    sheet.add_input("normal((2, 3, 4, 4), 1{shift})")
    return sheet


def graph_of(sheet: Sheet) -> Graph:
    """What was drawn so far, captured, with all of it returned."""
    outputs = tuple(name for step in sheet.steps for name in step.results)
    drawing = DrawnModel(0, tuple(sheet.inputs), tuple(sheet.layers), tuple(sheet.steps), outputs)
    build, inputs = built_model(drawing)
    return captured(build(), *inputs(0))

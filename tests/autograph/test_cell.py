"""The case that docs/search.md works through is what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.rewrite.graphs import read

from anabranch.autograph.appraise import Appraiser
from anabranch.autograph.cuts import Cuts
from anabranch.contest import contest
from anabranch.costs import beside, tied
from anabranch.costs.forecast import calibration_of
from anabranch.costs.paths import longest_path
from anabranch.ir.graph import Graph
from anabranch.line import Job
from anabranch.options import Options
from anabranch.report.sides import rows, running, side_by_side
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import ALL
from anabranch.rewrite.search import search
from anabranch.targets import resolve
from anabranch.trace import Trace

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = "<!-- worked case -->\n```text\n", "```\n<!-- end -->"
WIDE = 200
"""Nothing on the page is cut."""
SHAPE = "f16[1,168,42,42]{296352,1,7056,168}"


def convolution(name: str, x: str, taps: int, groups: int) -> str:
    pad = taps // 2
    return (
        f"  %{name}: {SHAPE} = aten.convolution.default(%{x}, %{name}_w, None, [1, 1], "
        f"[{pad}, {pad}], [1, 1], False, [0, 0], {groups})\n"
    )


def cell() -> Graph:
    """Of a cell of NASNet-A Large: one branch of two separable convolutions, one of one."""
    deep = {"five": 5, "three": 3, "last": 3}
    weights = "".join(
        f"  const %{name}_w: f16[168,1,{k},{k}] = {name}\n"
        f"  const %{name}_mix_w: f16[168,168,1,1] = {name}_mix\n"
        for name, k in deep.items()
    )
    return read(
        f"graph cell {{\n  input %h: {SHAPE}\n{weights}"
        f"  %r: {SHAPE} = aten.relu.default(%h)\n"
        + convolution("five", "r", 5, 168)
        + convolution("five_mix", "five", 1, 1)
        + convolution("three", "r", 3, 168)
        + convolution("three_mix", "three", 1, 1)
        + f"  %s: {SHAPE} = aten.relu.default(%three_mix)\n"
        + convolution("last", "s", 3, 168)
        + convolution("last_mix", "last", 1, 1)
        + f"  %sum: {SHAPE} = aten.add.Tensor(%five_mix, %last_mix)\n  return %sum\n}}"
    )


class Case(NamedTuple):
    """What was found, and what it takes of what the cell takes as it is: by its price, as foreseen,
    and with its own kernels."""

    graph: Graph
    price: float
    foreseen: float
    raced: float


def worked() -> tuple[str, dict[float, Case]]:
    """The text of the page, and what was found for each alpha."""
    graph, target = cell(), resolve("sim:h200")
    chosen = Options.read({"cache_dir": None}, environment=False)
    job = Job(None, (), {}, target, chosen, None, Trace())
    taken = contest(job, [graph]).taken
    cuts, machine = Cuts(target.spec, True), calibration_of(target.spec)
    lines, best = list[str](), dict[float, Case]()
    for alpha in (0.0, 8.0):
        price = Appraiser(taken, cuts, alpha, machine)
        found = search(graph, ALL, price)[0]
        lines.append(f"alpha {alpha:g}")
        for what, one in (("before", graph), ("after", found.graph)):
            cut = cuts.of(one)
            us = list(map(price.us, cut.pieces))
            path = longest_path(us, cut.preds, machine)
            lines.append(
                f"  {what:6} price {price(one):6.2f}: path {path:5.2f}, "
                f"sum {sum(us):5.2f} us, {len(us)} tasks; foreseen {price.outlook(one):5.2f} us"
            )
        for step in found.steps:
            lines.append(f"  step   {step.rule}")
            lines.append(
                f"         at %{', %'.join(step.nodes)}: "
                f"{step.before_us:.2f} -> {step.after_us:.2f}"
            )
        if not found.steps:
            lines.append("  no step")
        was, now = contest(job, [graph, found.graph]).costs
        assert was is not None and now is not None
        parts = price(found.graph) / price(graph), price.outlook(found.graph) / price.outlook(graph)
        best[alpha] = Case(found.graph, *parts, now.us / was.us)
        verdict = "taken" if now.us < was.us and not tied(now, was) else "not taken"
        lines.append(f"  raced  as parts: {beside(now, was, verdict)}")
    for alpha, case in best.items():
        columns = rows(running(graph), running(case.graph))
        lines += [f"before, and after with alpha {alpha:g}", *side_by_side(columns, WIDE)]
    return "\n".join(lines) + "\n", best


def test_the_page_shows_what_the_code_does(pytestconfig: pytest.Config) -> None:
    text, best = worked()
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(head + BEGIN + text + END + tail)
        return
    assert shown == text, "docs/search.md is out of date; make golden writes it"
    merged, wider = best[0.0], best[8.0]
    assert different(cell(), merged.graph) == "" == different(cell(), wider.graph)
    assert merged.price < 0.8 and merged.foreseen > 0.95, "little of it is left side by side"
    assert merged.raced > 1, "and what the sum likes is not taken"
    assert wider.foreseen > 1 > wider.raced, "an estimate refuses nothing that a race would take"
    assert merged.graph.nodes != wider.graph.nodes

"""The case that docs/search.md works through is what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rewrite.graphs import read

from anabranch.autograph.appraise import Appraiser
from anabranch.autograph.cuts import Cuts
from anabranch.contest import contest
from anabranch.costs.mixed import longest_path
from anabranch.ir.graph import Graph
from anabranch.ir.text import text_graph
from anabranch.line import Job
from anabranch.options import Options
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import ALL
from anabranch.rewrite.search import search
from anabranch.targets import resolve
from anabranch.trace import Trace

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = "<!-- worked case -->\n```text\n", "```\n<!-- end -->"
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


def worked() -> tuple[str, dict[float, tuple[Graph, float, float]]]:
    """The text of the page; what was found for each alpha, and what it takes of what the cell takes
    as it is, by its price and as foreseen."""
    graph, target = cell(), resolve("sim:h200")
    chosen = Options.read({"cache_dir": None}, environment=False)
    taken = contest(Job(None, (), {}, target, chosen, None, Trace()), [graph]).taken
    cuts = Cuts(target.spec, True)
    lines, best = list[str](), dict[float, tuple[Graph, float, float]]()
    for alpha in (0.0, 8.0):
        price = Appraiser(taken, cuts, alpha)
        found = search(graph, ALL, price)[0]
        outlook = price.outlook(found.graph) / price.outlook(graph)
        best[alpha] = found.graph, price(found.graph) / price(graph), outlook
        lines.append(f"alpha {alpha:g}")
        for what, one in (("before", graph), ("after", found.graph)):
            cut = cuts.of(one)
            us = list(map(price.us, cut.pieces))
            lines.append(
                f"  {what:6} price {price(one):6.2f}: path {longest_path(us, cut.preds):5.2f}, "
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
    kept = [
        line for line in text_graph(best[0.0][0], origins=False).split("\n") if " = aten" in line
    ]
    lines += ["graph after, alpha 0", *kept]
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
    merged, price, foreseen = best[0.0]
    assert different(cell(), merged) == ""
    assert price < 0.8 and foreseen > 0.95, "of what the sum likes little is left side by side"
    assert merged.nodes != best[8.0][0].nodes

"""The case that docs/search.md works through is what the code does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.rewrite.graphs import read

from anabranch.costs import beside, tied
from anabranch.costs.critical_path import longest_path
from anabranch.costs.forecast import calibration_of
from anabranch.ir.graph import Graph
from anabranch.options import Options
from anabranch.report.graph_diff import rows, running, side_by_side
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import ALL
from anabranch.search.cost.estimator import Appraiser
from anabranch.search.cost.task_cuts import TaskCutter
from anabranch.search.engine.dynamic_programme import search
from anabranch.search.part_timing import time_parts
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

PAGE = Path(__file__).parents[2] / "docs" / "search.md"
BEGIN, END = "<!-- worked case -->\n```text\n", "```\n<!-- end -->"
WIDE = 200
"""Nothing on the page is cut."""
SHAPE = "f16[1,168,42,42]{296352,1,7056,168}"
WHOLE = "f16[1,672,42,42]{1185408,1,28224,672}"
MOVED = "relu(cat(parts)) -> cat(relu(part))"


def convolution(name: str, x: str, taps: int, groups: int) -> str:
    pad = taps // 2
    return (
        f"  %{name}: {SHAPE} = aten.convolution.default(%{x}, %{name}_w, None, [1, 1], "
        f"[{pad}, {pad}], [1, 1], False, [0, 0], {groups})\n"
    )


def cell() -> Graph:
    """A cell of NASNet-A Large with three of its five sums, and the relu and the 1x1 convolution of
    the cell after it. The one after that reads what the cell gives as it is."""
    deep = {"five": 5, "three": 3, "last": 3, "deep": 3}
    weights = "".join(
        f"  const %{name}_w: f16[168,1,{k},{k}] = {name}\n"
        f"  const %{name}_mix_w: f16[168,168,1,1] = {name}_mix\n"
        for name, k in deep.items()
    )
    return read(
        f"graph cell {{\n  input %h: {SHAPE}\n  input %l: {SHAPE}\n{weights}"
        f"  const %next_w: f16[168,672,1,1] = next\n"
        f"  %r: {SHAPE} = aten.relu.default(%h)\n"
        f"  %q: {SHAPE} = aten.relu.default(%l)\n"
        + convolution("five", "r", 5, 168)
        + convolution("five_mix", "five", 1, 1)
        + convolution("three", "q", 3, 168)
        + convolution("three_mix", "three", 1, 1)
        + f"  %s: {SHAPE} = aten.relu.default(%three_mix)\n"
        + convolution("last", "s", 3, 168)
        + convolution("last_mix", "last", 1, 1)
        + f"  %sum: {SHAPE} = aten.add.Tensor(%five_mix, %last_mix)\n"
        + f"  %near: {SHAPE} = aten.avg_pool2d.default(%h, [3, 3], [1, 1], [1, 1], False, False)\n"
        + f"  %mean: {SHAPE} = aten.add.Tensor(%near, %l)\n"
        + convolution("deep", "r", 3, 168)
        + convolution("deep_mix", "deep", 1, 1)
        + f"  %other: {SHAPE} = aten.add.Tensor(%deep_mix, %h)\n"
        + f"  %cell: {WHOLE} = aten.cat.default([%h, %sum, %mean, %other], 1)\n"
        + f"  %active: {WHOLE} = aten.relu.default(%cell)\n"
        + convolution("next", "active", 1, 1)
        + "  return %next, %cell\n}"
    )


class Case(NamedTuple):
    """What was found, and what it takes of what the cell takes as it is: by its price, as foreseen,
    and with its own kernels."""

    graph: Graph
    rules: tuple[str, ...]
    price: float
    foreseen: float
    raced: float


def worked() -> tuple[str, dict[float, Case], Case]:
    """The text of the page, what was found for each alpha, and what one rule does by itself."""
    graph, target = cell(), resolve("sim:h200")
    chosen = Options.read({"cache_dir": None, "effort": "max"}, environment=False)
    job = Job(None, (), {}, target, chosen, None, Trace())
    taken = time_parts(job, [graph]).taken
    cuts, machine = TaskCutter(target.spec, True), calibration_of(target.spec)
    lines, best = list[str](), dict[float, Case]()

    def told(what: str, one: Graph, price: Appraiser) -> str:
        cut = cuts.of(one)
        us = list(map(price.us, cut.pieces))
        path = longest_path(us, cut.preds, machine)
        return (
            f"  {what:6} price {price(one).us:6.2f}: path {path:5.2f}, "
            f"sum {sum(us):5.2f} us, {len(us)} tasks; foreseen {price.outlook(one).us:5.2f} us"
        )

    def raced(found: Graph, rules: Sequence[str], price: Appraiser) -> tuple[str, Case]:
        was, now = time_parts(job, [graph, found]).costs
        assert was is not None and now is not None
        parts = (
            price(found).us / price(graph).us,
            price.outlook(found).us / price.outlook(graph).us,
        )
        verdict = "taken" if now.us < was.us and not tied(now, was) else "not taken"
        case = Case(found, tuple(rules), *parts, now.us / was.us)
        return f"  raced  as parts: {beside(now, was, verdict)}", case

    for alpha in (0.0, 32.0):
        price = Appraiser(taken, cuts, alpha, machine)
        found = search(graph, ALL, price)[0]
        lines += [
            f"alpha {alpha:g}",
            told("before", graph, price),
            told("after", found.graph, price),
        ]
        for step in found.steps:
            lines.append(f"  step   {step.rule}")
            lines.append(
                f"         at %{', %'.join(step.nodes)}: "
                f"{step.before.us:.2f} -> {step.after.us:.2f}"
            )
        said, best[alpha] = raced(found.graph, [step.rule for step in found.steps], price)
        lines.append(said)
    (rule,) = (rule for rule in ALL if rule.name == MOVED)
    (place,) = matches(graph, rule)
    moved, price = apply(graph, rule, place), Appraiser(taken, cuts, 0.0, machine)
    said, alone = raced(moved, [MOVED], price)
    lines += [f"alone  {MOVED}", told("after", moved, price), said]
    for alpha, case in best.items():
        columns = rows(running(graph), running(case.graph))
        lines += [f"before, and after with alpha {alpha:g}", *side_by_side(columns, WIDE)]
    return "\n".join(lines) + "\n", best, alone


def test_the_page_shows_what_the_code_does(pytestconfig: pytest.Config) -> None:
    text, best, alone = worked()
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    shown, _, tail = rest.partition(END)
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(head + BEGIN + text + END + tail)
        return
    assert shown == text, "docs/search.md is out of date; make golden writes it"
    merged, wider = best[0.0], best[32.0]
    assert all(different(cell(), one.graph) is None for one in (merged, wider, alone))
    assert merged.price < 0.85 and merged.foreseen < 1, "the sum promises much, and the outlook too"
    assert merged.raced > 1.1, "and what the sum likes is not taken"
    assert wider.raced < 1 and MOVED in wider.rules, "what shortens the path is"
    assert MOVED not in merged.rules and alone.price > 1.1, "the sum has nothing for that"
    assert alone.raced < 0.95 and alone.raced < wider.raced, "by itself it pays the most"

"""A graph before and after, node beside node: aligned by name, folded, and cut to a width."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.rewrite.graphs import read

from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.report.graph_diff import (
    UnchangedRows,
    folded,
    rounds_told,
    rows,
    running,
    side_by_side,
)
from anabranch.report.lines import WIDTH
from anabranch.report.search_summary import searched_lines
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.result import Path, Round

HEAD = "graph g {\n  input %x: f32[4]\n  const %w: f32[4] = w\n"


def chain(nodes: str) -> Graph:
    """Of nodes "name op argument..." each of one type."""
    lines = []
    for node in nodes.split("; "):
        name, op, *args = node.split()
        lines.append(f"  %{name}: f32[4] = aten.{op}({', '.join(f'%{arg}' for arg in args)})\n")
    return read(f"{HEAD}{''.join(lines)}  return %{name}\n}}")


PRE = "p0 neg.default x; p1 neg.default p0; p2 neg.default p1; p3 neg.default p2; "
POST = "; out add.Tensor last a; q0 neg.default out; q1 neg.default q0; q2 neg.default q1"
POST += "; q3 neg.default q2"
BEFORE = chain(PRE + "a relu.default p3; b relu.default a; last mul.Tensor b w" + POST)
AFTER = chain(
    PRE
    + "v add.Tensor w w; a relu.default p3; c mul.Tensor a v; d neg.default c; last mul.Tensor c w"
    + POST
)
LAST = chain(PRE + "a relu.default p3; last mul.Tensor a w" + POST)


def path(*graphs: Graph) -> Path:
    begin, *rest = graphs
    steps = tuple(
        RewriteStep("relu(relu(x)) -> relu(x)", (name, "a"), Price(9.0), Price(8.0))
        for name in "bbb"
    )
    rounds = (Round(steps, Cost(9.0, "measured"), Cost(8.0, "measured"), one) for one in rest)
    return Path(begin, graphs[-1], tuple(rounds))


def test_golden(golden: Callable[[str, str], None]) -> None:
    two = path(BEFORE, AFTER, LAST)
    short, full = searched_lines(two, 2), searched_lines(two, None)
    golden("report/searched.txt", "\n".join([*short, "", *full]) + "\n")
    assert max(map(len, [*short, *full])) <= WIDTH


def test_nodes_of_one_name_share_a_row() -> None:
    found = rows(running(BEFORE), running(AFTER))
    signs = {row.before or row.after: row.sign for row in found if row.sign}
    assert signs == {
        "b = relu(a)": "-+",
        "d = neg(c)": "+",
        "last = mul(b, w[4])": "|",
    }, "and arithmetic of weights alone is left out"
    assert [row.before for row in found if row.before] == [*running(BEFORE).values()]
    assert [row.after for row in found if row.after] == [*running(AFTER).values()]


def test_what_does_not_change_is_folded_but_for_what_is_near() -> None:
    found = rows(running(BEFORE), running(AFTER))
    told = folded(found)
    assert told[0] == UnchangedRows(3) and told[-1] == UnchangedRows(3)
    assert sum(one.rows if isinstance(one, UnchangedRows) else 1 for one in told) == len(found)
    assert folded(found[2:], around=2)[0] == found[2], "a line for one node is the node's"
    assert folded(rows({"a": "a"}, {"a": "a"})) == [rows({"a": "a"}, {"a": "a"})[0]]
    assert folded([]) == []


@pytest.mark.parametrize("width", [40, 60, 100])
def test_columns_fit_the_width(width: int) -> None:
    text = "convolution = convolution(" + ", ".join(f"node_{i}" for i in range(20)) + ")"
    found = rows({"a": text, "b": "b"}, {"a": text + "!", "b": "b"})
    cut = side_by_side(found, width)
    assert len(cut) == 2 and "…" in cut[0] and " | " in cut[0]
    full = side_by_side(found, width, whole=True)
    assert max(map(len, [*cut, *full])) <= width
    assert not any("…" in line for line in full)
    assert " ".join(full).count("node_19") == 2, "both are there to their ends"


def test_json_has_all_nodes_of_each_round() -> None:
    first, second = rounds_told(path(BEFORE, AFTER, LAST))
    assert [None, "%v: f32[4] = aten.add.Tensor(%w, %w)"] in first["rows"]
    assert ["%v: f32[4] = aten.add.Tensor(%w, %w)", None] in second["rows"]
    lines = [after for _, after in first["rows"] if after]
    assert lines == [before for before, _ in second["rows"] if before]
    assert len(lines) == len(AFTER.nodes)

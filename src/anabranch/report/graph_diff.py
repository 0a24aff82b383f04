"""Sides: a graph before a round of the search and after it, node beside node: two graphs -> rows.

  r = relu(h)                             r = relu(h)
                                        + both = convolution(r, cat[336,1,5,5])
  five = convolution(r, w[168,1,5,5])   | five = slice(both)
  ... 12 nodes the same

"-" stands at what is gone, "+" at what is new, "|" at what is made of something else now, "-+"
where one node is gone and another is new in its row.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import groupby, zip_longest
from typing import Any, NamedTuple

from anabranch.ir.graph import Graph
from anabranch.ir.ops import packet_name
from anabranch.ir.text import text_node
from anabranch.report.lines import cut, printable
from anabranch.report.units import count
from anabranch.search.cost.task_cuts import without_constants
from anabranch.search.result import Path

AROUND = 2
"""Unchanged nodes that are shown on either side of what changed."""
LEAST_COLUMNS = 40
"""A narrower window breaks the lines itself."""


class DiffRow(NamedTuple):
    """A node before and after, each "" where there is none, and the sign between them."""

    before: str
    sign: str
    after: str


class UnchangedRows(NamedTuple):
    """So many rows left out, in which nothing changes."""

    rows: int


def rows(before: Mapping[str, str], after: Mapping[str, str]) -> list[DiffRow]:
    """Both graphs' lines by the names of their nodes, those of one name in one row where the order
    allows it.

    >>> for row in rows({"a": "a = f(x)", "b": "b = g(a)"}, {"b": "b = g(x)"}):
    ...     print(row)
    DiffRow(before='a = f(x)', sign='-', after='')
    DiffRow(before='b = g(a)', sign='|', after='b = g(x)')
    """
    diff = []
    left, right = list(before), list(after)
    for _, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for old, new in zip_longest(left[a:b], right[c:d]):
            was, now = before.get(old, ""), after.get(new, "")
            sign = "-" * bool(was) + "+" * bool(now) if old != new else "|" * (was != now)
            diff.append(DiffRow(was, sign, now))
    return diff


def folded(diff: Sequence[DiffRow], around: int = AROUND) -> list[DiffRow | UnchangedRows]:
    """The rows without those that are the same on both sides and further than `around` from what
    changes; one alone is not left out."""
    changed = [i for i, row in enumerate(diff) if row.sign]
    near = {j for i in changed for j in range(i - around, i + around + 1)}
    told: list[DiffRow | UnchangedRows] = []
    for shown, group in groupby(enumerate(diff), key=lambda pair: pair[0] in near):
        some = [row for _, row in group]
        told += some if shown or len(some) == 1 else [UnchangedRows(len(some))]
    return told


def running(graph: Graph) -> dict[str, str]:
    """By name, a short line of each node that is no arithmetic of weights alone, with the shapes of
    weights."""
    left = without_constants(graph)
    weights = {c.name: f"{c.name}[{','.join(map(str, c.type.shape))}]" for c in left.constants}
    return {
        node.name: f"{node.name} = {packet_name(node.op).removeprefix('aten.')}"
        f"({', '.join(weights.get(x, x) for x in node.uses)})"
        for node in left.nodes
    }


def in_full(graph: Graph) -> dict[str, str]:
    """By name, the whole line of each node, of those of weights alone, too."""
    return {node.name: text_node(node, origin=False) for node in graph.nodes}


def graphs(path: Path) -> list[tuple[Graph, Graph]]:
    """For each round the graph before it and after it."""
    after = [done.graph for done in path.rounds]
    return list(zip([path.begin, *after], after, strict=False))


def rounds_told(path: Path) -> list[dict[str, Any]]:
    """For JSON: of each round all nodes in full, as rows of [before, after], None where there is
    none."""
    return [
        {"rows": [[row.before or None, row.after or None] for row in rows(*map(in_full, pair))]}
        for pair in graphs(path)
    ]


def side_by_side(
    diff: Sequence[DiffRow | UnchangedRows], width: int, whole: bool = False
) -> list[str]:
    """The rows as lines of two columns, `width` characters wide at most: what is longer than its
    column is cut, or if `whole`, goes on in the next line."""
    shown = [row for row in diff if isinstance(row, DiffRow)]
    width = max(width, LEAST_COLUMNS)
    room = (width - 6) // 2
    wide = min(max((len(row.before) for row in shown), default=0), room)
    other = width - 6 - wide
    lines = []
    for row in diff:
        if isinstance(row, UnchangedRows):
            lines.append(f"  ... {count(row.rows, 'node')} the same")
            continue
        for was, sign, now in _pieces(row, wide, other, whole):
            lines.append(f"  {was:{wide}} {sign:>2} {now}".rstrip())
    return lines


def _pieces(row: DiffRow, left: int, right: int, whole: bool) -> Iterator[tuple[str, str, str]]:
    if not whole:
        yield cut(row.before, left), row.sign, cut(row.after, right)
        return
    sides = [
        textwrap.wrap(printable(text), max(most, 8), subsequent_indent=" " * 4)
        for text, most in ((row.before, left), (row.after, right))
    ]
    for i, (was, now) in enumerate(zip_longest(*sides, fillvalue="")):
        yield was, "" if i else row.sign, now

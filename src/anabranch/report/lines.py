"""Lines of plain text, of at most WIDTH characters: texts wrapped, tables, and what must be cut.

>>> columns([("rule", "us", "nodes"), ("x * 1 -> x", "-1.00", "mul, mul_1")], "<>", (20, 6))
['  rule           us  nodes', '  x * 1 -> x  -1.00  mul, mul_1']
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 100


def wrapped(text: str, first: str = "  ", more: str = "      ") -> list[str]:
    """The text in as many lines as it takes. `first` and `more`: what the first and all others
    begin with."""
    return textwrap.wrap(printable(text), WIDTH, initial_indent=first, subsequent_indent=more)


def columns(table: Sequence[Sequence[str]], align: str, most: Sequence[int]) -> list[str]:
    """Columns as wide as their widest cell, up to `most` characters each, the last up to what is
    left of the line; longer cells are cut."""
    cells = [[cut(cell, limit) for cell, limit in zip(row, most, strict=False)] for row in table]
    widths = [max(map(len, column), default=0) for column in zip(*cells, strict=True)]
    rest = WIDTH - 2 - sum(width + 2 for width in widths)
    lines = []
    for row, short in zip(table, cells, strict=True):
        line = "  ".join([*_aligned(short, widths, align), cut(row[-1], rest)])
        lines.append(f"  {line}".rstrip())
    return lines


def _aligned(row: Sequence[str], widths: Sequence[int], align: str) -> Iterable[str]:
    for cell, width, side in zip(row, widths, align, strict=False):
        yield f"{cell:{side}{width}}"


def cut(text: str, most: int) -> str:
    """At most so many characters; the middle goes, for names differ at both ends."""
    text = printable(text)
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def printable(text: str) -> str:
    """Names are foreign: none may break a line or steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)

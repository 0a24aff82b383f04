"""Kernels as statements: how each kind is printed, and what launch modes ask of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kernels.triton.samples import SAMPLES
from tests.kernels.triton.test_horizontal import BRANCHES, PARTS

from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.statements import (
    Assign,
    Effect,
    EndUnless,
    Fetch,
    For,
    GridPlace,
    If,
    Statement,
    Write,
    in_a_row,
    printed,
    stores,
    walked,
)

SUM = Assign(("total",), "x", "+=")
WRITE = Write("y_ptr + col", "total", "col_in")
LOOP = For("step", "18", (SUM, If("step == 2", (WRITE,))))


def test_each_kind_is_printed() -> None:
    statements: list[Statement] = [
        Assign(("tile",), (GridPlace(0), " * 64")),
        Assign(("by", "running"), "scan(x, y)"),
        Fetch("w_ptr + tile"),
        LOOP,
        For("other", "4", (SUM,), over="tl.static_range"),
        For("step", "0, 18", (SUM,), stages=3),
        EndUnless("arrived", 3),
        Effect("tl.debug_barrier()"),
        Write("counter", "0"),
    ]
    assert list(printed(statements)) == [
        "tile = tl.program_id(0) * 64",
        "by, running = scan(x, y)",
        "fetch_ahead(w_ptr + tile)",
        "for step in range(18):",
        "    total += x",
        "    if step == 2:",
        "        tl.store(y_ptr + col, total, mask=col_in)",
        "for other in tl.static_range(4):",
        "    total += x",
        "for step in tl.range(0, 18, num_stages=3):",
        "    total += x",
        "if arrived != 3:",
        "    return",
        "tl.debug_barrier()",
        "tl.store(counter, 0)",
    ]


def test_what_stores_somewhere_inside_stores() -> None:
    assert list(walked([LOOP])) == [LOOP, SUM, LOOP.body[1], WRITE]
    assert stores(LOOP) and not stores(For("step", "18", (SUM,)))


def test_a_place_follows_from_the_number_of_the_cta() -> None:
    """Of three rows of five columns, CTA 13 is in the last column but one of the last row."""
    value = (GridPlace(0), ", ", GridPlace(1), ", ", GridPlace(2), ", ", GridPlace(1, count=True))
    (line,) = printed([Assign(("place",), value)], in_a_row((5, 3, 2), "cta"))
    assert eval(line.removeprefix("place = "), {"cta": 13}) == (3, 2, 0, 3)


MODES = ("contraction.pf", "contraction_of_one_step.pe", "rows_that_are_shared.pl", "recurrence.pl")


@pytest.mark.parametrize("name", MODES)
def test_text_of_launch_modes(name: str, golden: Callable[[str, str], None]) -> None:
    sample, _, mode = name.partition(".")
    variant, text = SAMPLES[sample]
    golden(f"kernels/{name}.py.txt", program(parse_graph(text), f"{variant}.{mode}").text)


def test_text_of_a_horizontal_fusion(golden: Callable[[str, str], None]) -> None:
    golden("kernels/horizontal.pa.py.txt", program(BRANCHES, f"horizontal:{PARTS}.pa").text)

"""The way of a search in lines: steps in full, what they gained, and why it ended."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rewrite.graphs import read

from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.report.lines import WIDTH
from anabranch.report.search_summary import ended, in_parts, searched_lines
from anabranch.search.engine.backtracking import Ran, RewriteStep
from anabranch.search.result import Path, Round

NET = read("graph g {\n  input %x: f32[4]\n  %y: f32[4] = aten.relu.default(%x)\n  return %y\n}")
RULE = "conv(x, w, b), conv(y, v, c) -> slices of conv(cat(x, y), cat(w, v), cat(b, c)) in groups"
NODES = tuple(f"convolution_{i}" for i in range(100, 108))


def path(before: float, after: float) -> Path:
    ran = Ran(Cost(12.5, "estimated"), Cost(11.25, "estimated"), 3)
    first = RewriteStep(RULE, NODES, Price(90.0), Price(80.5), ran)
    steps = (first, RewriteStep("x * 1 -> x", ("mul",), Price(80.5, 4.0), Price(81.0, 4.0), ran))
    return Path(NET, NET, (Round(steps, Cost(before, "estimated"), Cost(after, "estimated"), NET),))


def test_steps_are_told_in_full_with_what_they_change_in_the_price() -> None:
    lines = searched_lines(path(131.0, 129.0), 12)
    assert lines[0] == "Searched: 2 steps, 131 us -> 129 us estimated, 1.53% less"
    text = " ".join(" ".join(lines).split())
    assert (
        f"-9.50 0 -1.25 of 12.50, 3 steps {RULE} {', '.join(NODES)}" in text
        and '+0.50 4 " x * 1 -> x mul' in text
    )
    assert "price alpha part us -9.50" in text, "each step says under which price it was found"
    assert "Price: change in the sum of the tasks' times, each alone, plus alpha" in text
    assert max(map(len, lines)) <= WIDTH
    assert "  and 1 step more: explain --all shows them" in searched_lines(path(131.0, 129.0), 1)
    assert not any("more: " in line for line in searched_lines(path(131.0, 129.0), None))


def test_no_step_is_without_what_was_gained_in_fact() -> None:
    """Steps everywhere at once have no part that was run: what the whole took is said of them."""
    (done,) = path(131.0, 129.0).rounds
    apart = tuple(replace(step, ran=None) for step in done.steps)
    assert in_parts(replace(done, steps=apart)) == ["-2.00 of 131.00, 2 steps", '"']
    one = replace(apart[0], ran=Ran(Cost(12.5, "estimated"), Cost(11.25, "estimated"), 1))
    assert in_parts(replace(done, steps=(one, apart[1]))) == ["-1.25 of 12.50", "in the round"]
    assert in_parts(replace(done, steps=())) == []


def test_a_gain_that_the_digits_do_not_show_is_told_in_percent() -> None:
    first, *_ = searched_lines(path(18.34, 18.31), 12)
    assert first == "Searched: 2 steps, 18.3 us estimated, 0.164% less than before"


@pytest.mark.parametrize(
    ("cut_short", "said"),
    [
        ("budget", "stopped by the clock, with 40% of its work undone: a longer budget or"),
        ("stop", "stopped as asked, with 40% of its work undone: compile again"),
    ],
)
def test_what_ended_a_search_stands_beside_its_way(cut_short: str, said: str) -> None:
    short = {"cut_short": cut_short, "undone": 0.4}
    assert searched_lines(replace(path(9.0, 8.0), **short), 12)[1].strip().startswith(said)  # type: ignore[arg-type]
    none = Path(NET, NET, (), **short)  # type: ignore[arg-type]
    first, second = searched_lines(none, 12)
    assert first == "Searched: no faster graph was found" and said in second
    assert searched_lines(Path(NET, NET, ()), 12) == ["Searched: no equal graph is faster"]
    assert ended(path(9.0, 8.0)) == "" and searched_lines(None, 12) == []

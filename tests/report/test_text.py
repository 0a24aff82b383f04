"""The plain text: a golden, and the limits that hold for every network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.report.parts import ReportParts
from anabranch.report.text import explain
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.result import Path, Round
from anabranch.trace import Event

Build = Mapping[str, Callable[..., ReportParts]]


def test_golden(parts: Build, golden: Callable[[str, str], None]) -> None:
    golden("report/explain_small.txt", explain(**parts["small"]()))


@pytest.mark.parametrize(("network", "size"), [("small", None), ("modules", 7), ("cells", 50)])
def test_a_hundred_lines_of_a_hundred_columns(parts: Build, network: str, size: int | None) -> None:
    text = explain(**parts[network](*([] if size is None else [size])))
    assert 30 < text.count("\n") <= 100
    assert max(map(len, text.splitlines())) <= 100


def test_little_is_enough(parts: Build) -> None:
    given = parts["small"]()
    bare: ReportParts = {
        **given,
        "candidates": {},
        "schedules": [],
        "timelines": [],
        "events": [],
        "facts": {},
    }
    text = explain(**bare)
    assert text.startswith("small on NVIDIA H200, f16[1,32,56,56]\n  6 tasks (6 kernels) on ")
    assert "Fused: " in text
    assert "Schedules" not in text


def test_each_time_says_what_it_is_of(parts: Build) -> None:
    given = parts["small"]()
    text = explain(**given)
    assert "us measured over whole runs, schedule" in text and "us each run alone (" in text
    assert "us, forecast from recorded times of tasks;" in text
    assert "us, one run, watched task by task;" in text and "not for speed" not in text
    given["plan"] = replace(given["plan"], spec=replace(given["plan"].spec, kind="cpu"))
    assert "the CPU target is for checking, not for speed" in explain(**given)


def test_of_times_of_two_sources_each_says_which_it_is(parts: Build) -> None:
    given = parts["small"]()
    candidates = dict(given["candidates"])
    told = [
        replace(c, verdict=replace(c.verdict, cost=replace(c.verdict.cost, source="estimated")))
        if c.verdict.cost
        else c
        for c in candidates["b"]
    ]
    candidates["b"] = tuple(told)
    (name, timeline), *more = given["timelines"]
    guessed = (name, replace(timeline, source="estimated"))
    mixed: ReportParts = {**given, "candidates": candidates, "timelines": [guessed, *more]}
    text = explain(**mixed)
    assert "1 estimated); --task NAME tells more; ~: estimated" in " ".join(text.split())
    rows = text[text.index("  task ") : text.index("Schedules")].splitlines()
    assert [row.split()[0] for row in rows if "~" in row] == ["b"]
    assert "forecast from recorded and estimated times of tasks" in " ".join(text.split())
    assert "~" not in explain(**given)


def test_a_forecast_has_its_interval(parts: Build) -> None:
    given = parts["small"]()
    forecast = {"low_ms": 0.0493, "high_ms": 0.0604, "recorded": 0.0, "dominant": []}
    told: ReportParts = {**given, "facts": {**given["facts"], "forecast": forecast}}
    assert "  a forecast: 49.3 us to 60.4 us in eight of ten; none of its tasks'" in explain(**told)
    assert "a forecast:" not in explain(**given)


def test_launch_modes_are_told(parts: Build) -> None:
    given = parts["small"]()
    said = Event("applied", "pdl", "net", "2 kernels launched otherwise: 9.1 us, 9.9 alike", 0)
    facts = {**given["facts"], "modes": {"a": 4, "w": 1, "none": 1}}
    pdl: ReportParts = {**given, "facts": facts, "events": [*given["events"], said]}
    text = explain(**pdl)
    assert "PDL: 5 of 6 generated kernels may start before" in text
    assert "by mode: a 4, w 1" in text and "9.1 us, 9.9 alike" in text
    still: ReportParts = {**given, "facts": {**given["facts"], "modes": {"none": 6}}}
    assert "PDL" not in explain(**still)


@pytest.mark.parametrize(
    ("modes", "carveout", "told"),
    [({"none": 6}, 50, True), ({"none": 6}, 100, False), ({}, 25, False), ({}, None, False)],
)
def test_a_carve_out_is_told_where_it_is_not_the_usual(
    parts: Build, modes: dict[str, int], carveout: int | None, told: bool
) -> None:
    given = parts["small"]()
    said = Event("applied", "l1_carveout", "net", "50%; us by carve-out: 100% 9.9", 0)
    facts = {**given["facts"], "modes": modes, "carveout": carveout}
    changed: ReportParts = {**given, "facts": facts, "events": [*given["events"], said]}
    text = explain(**changed)
    assert ("Carve-out: kernels ask for 50% of L1" in text) == told
    assert ("us by carve-out: 100% 9.9" in text) == told


def test_all_steps_and_nodes_of_a_search_on_demand(parts: Build) -> None:
    given = parts["small"]()
    net = given["captured"]
    steps = tuple(
        RewriteStep("x * 1 -> x", (f"mul_{i}",), Price(9.0), Price(8.0)) for i in range(30)
    )
    done = Round(steps, Cost(9.0, "measured"), Cost(8.0, "measured"), net)
    searched: ReportParts = {**given, "searched": Path(net, net, (done,))}
    short, full = explain(**searched), explain(whole=True, width=160, **searched)
    assert "and 18 steps more: explain --all shows them" in short and "mul_29" not in short
    assert "mul_29" in full and "--all" not in full
    assert max(map(len, short.splitlines())) <= 100


def test_names_with_line_breaks_stay_in_their_line(parts: Build) -> None:
    names = ("a\nb", "c\x1b[31m", "d" * 300)
    text = explain(**parts["chain"](names))
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text

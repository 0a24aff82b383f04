"""Costs and timelines: texts that read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource, Span, Timeline
from anabranch.ir.time_text import parse_cost, parse_timeline, text_cost, text_timeline

US = st.floats(0.0)
SOURCES = st.sampled_from(("measured", "recorded", "estimated"))
SPANS = st.builds(Span, st.from_regex(r"\A[a-z_0-9.]+\Z"), st.integers(0, 99), US, US)


@given(US, SOURCES, US)
def test_a_cost_reads_back(us: float, source: CostSource, spread: float) -> None:
    cost = Cost(us, source, spread)
    assert parse_cost(text_cost(cost)) == cost


@given(st.lists(SPANS, max_size=4), US, SOURCES)
def test_a_timeline_reads_back(spans: list[Span], latency: float, source: CostSource) -> None:
    timeline = Timeline(tuple(spans), latency, source)
    assert parse_timeline(text_timeline(timeline)) == timeline


@pytest.mark.parametrize("text", ["", "9.4 us", "9.4 us guessed", "x us measured", "9.4 measured"])
def test_what_is_no_cost_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cost(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "timeline measured 3.0 us {",
        "timeline measured 3.0 us {\n  a @0 0.0 to 2.0",
        "timeline measured 3.0 us {\n  a @0 0.0\n}",
        "timeline measured 3.0 us {\n}\n}",
    ],
)
def test_what_is_no_timeline_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_timeline(text)

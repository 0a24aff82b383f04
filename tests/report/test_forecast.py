from __future__ import annotations

from typing import Any

import pytest

from anabranch.report.forecast import forecast_text, interval_text

DOMINANT = [
    {"task": "conv_8", "alike": 0, "us": 3.83, "source": "estimated", "part": 0.244},
    {"task": "conv_15", "alike": 1, "us": 7.0, "source": "recorded", "part": 0.03},
    {"task": "conv_1", "alike": 0, "us": 1.0, "source": "recorded", "part": 0.004},
]


def facts(recorded: object, dominant: object = DOMINANT) -> dict[str, Any]:
    told = {"low_ms": 0.04931, "high_ms": 0.06042, "recorded": recorded, "dominant": dominant}
    return {"forecast": told}


def test_a_forecast_says_how_far_it_may_be_off_and_by_what() -> None:
    assert interval_text(facts(0.89)) == "49.3 us to 60.4 us"
    assert forecast_text(facts(0.89)) == (
        "a forecast: 49.3 us to 60.4 us in eight of ten; 89% of its tasks' time is recorded, "
        "11% estimated; uncertain most by conv_8 (estimated, 24% of its kernels' variance), "
        "conv_15 and 1 alike (recorded, 3%)"
    )


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        (0.0, "none of its tasks' time is recorded, all is estimated"),
        (0.001, "1% of its tasks' time is recorded, 99% estimated"),
        (0.999, "99% of its tasks' time is recorded, 1% estimated"),
        (1.0, "all of its tasks' time is recorded"),
    ],
)
def test_all_and_nothing_are_said_of_all_and_nothing_alone(recorded: float, said: str) -> None:
    text = forecast_text(facts(recorded, []))
    assert text == f"a forecast: 49.3 us to 60.4 us in eight of ten; {said}"


def test_what_an_older_version_wrote_is_said_without_what_it_lacks() -> None:
    old = [{"task": "conv\n8", "us": 3.83, "part": 0.244}, "conv"]
    text = forecast_text(facts(None, old))
    assert "conv\n8" not in text and text.endswith("8 (24% of its kernels' variance)")
    for nothing in ({}, {"forecast": None}, {"forecast": {"low_ms": 1.0, "high_ms": "2"}}):
        assert forecast_text(nothing) == interval_text(nothing) == ""

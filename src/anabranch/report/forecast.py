"""What is said of how far a forecast may be off: facts of a compilation -> text.

    a forecast: 49.3 us to 60.4 us in eight of ten; 89% of its tasks' time is recorded, 11%
    estimated; uncertain most by convolution_8 (estimated, 24% of its kernels' variance), linear
    (estimated, 14%), convolution_15 and 1 alike (recorded, 3%)

Facts may be of a file of an older version, or from a hand: what is absent is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.report.lines import printable
from anabranch.report.units import duration, number


def interval_text(facts: Mapping[str, Any]) -> str:
    """The two times between which eight of ten such forecasts should lie, "" of what was measured.

    >>> interval_text({"forecast": {"low_ms": 0.0493, "high_ms": 0.0604}})
    '49.3 us to 60.4 us'
    """
    forecast = facts.get("forecast")
    if not isinstance(forecast, Mapping):
        return ""
    low, high = number(forecast.get("low_ms")), number(forecast.get("high_ms"))
    return "" if low is None or high is None else f"{duration(1e3 * low)} to {duration(1e3 * high)}"


def forecast_text(facts: Mapping[str, Any]) -> str:
    """The interval, how much of it is recorded, and the tasks that it is most uncertain by; "" of
    what was measured."""
    between, forecast = interval_text(facts), facts.get("forecast")
    if not between or not isinstance(forecast, Mapping):
        return ""
    said = [f"a forecast: {between} in eight of ten"]
    recorded = number(forecast.get("recorded"))
    if recorded is not None:
        said.append(_known(recorded))
    dominant = [kernel for kernel in forecast.get("dominant") or () if isinstance(kernel, Mapping)]
    parts = [(kernel, round(100 * (number(kernel.get("part")) or 0.0))) for kernel in dominant]
    of = [" of its kernels' variance", *[""] * len(parts)]
    named = [(kernel, f"{percent}%") for kernel, percent in parts if percent]
    if named:
        each = [_uncertain(kernel, part + of[i]) for i, (kernel, part) in enumerate(named)]
        said.append(f"uncertain most by {', '.join(each)}")
    return printable("; ".join(said))


def _known(recorded: float) -> str:
    """How much of the tasks' time is recorded, of 0 to 1."""
    if recorded >= 1:
        return "all of its tasks' time is recorded"
    if recorded <= 0:
        return "none of its tasks' time is recorded, all is estimated"
    percent = min(99, max(1, round(100 * recorded)))
    return f"{percent}% of its tasks' time is recorded, {100 - percent}% estimated"


def _uncertain(kernel: Mapping[str, Any], part: str) -> str:
    """A kernel by its first task, whether its time is recorded, and how uncertain it is."""
    alike = number(kernel.get("alike"))
    others = f" and {alike:.0f} alike" if alike else ""
    source = f"{kernel['source']}, " if kernel.get("source") else ""
    return f"{kernel.get('task')}{others} ({source}{part})"

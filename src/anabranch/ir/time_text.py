"""Times as text: Cost and Timeline <-> what people read of them, and what reads back.

    9.4 us measured +-0.1

    timeline estimated 12.5 us {
      conv1 @0 0.0 to 7.5
      conv2 @1 1.25 to 6.0
    }

>>> text_cost(Cost(9.4, "measured", 0.1)), parse_cost("3.0 us estimated")
('9.4 us measured +-0.1', Cost(us=3.0, source='estimated', spread=0.0))
"""

from __future__ import annotations

import re
from typing import cast, get_args

from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import CostSource, Span, Timeline

_US = r"([-+.e\w]+)"
_SOURCE = f"({'|'.join(get_args(CostSource))})"
_COST = re.compile(rf"{_US} us {_SOURCE}(?: \+-{_US})?")
_HEAD = re.compile(rf"timeline {_SOURCE} {_US} us \{{")
_END = re.compile("}")
_SPAN = re.compile(rf"(\S+) @(\d+) {_US} to {_US}")


def text_cost(cost: Cost) -> str:
    """The time, where it comes from, and its spread if it has one; all digits of both."""
    spread = f" +-{cost.spread!r}" if cost.spread else ""
    return f"{cost.us!r} us {cost.source}{spread}"


def parse_cost(text: str) -> Cost:
    """The cost that `text_cost` printed; ValueError for other texts."""
    us, source, spread = _matched(_COST, text, "US us SOURCE [+-SPREAD]")
    return Cost(float(us), cast(CostSource, source), float(spread or 0.0))


def text_timeline(timeline: Timeline) -> str:
    """A span a line, in microseconds from the start; `parse_timeline` gives an equal one back."""
    spans = (f"  {s.task} @{s.stream} {s.start!r} to {s.end!r}" for s in timeline.spans)
    head = f"timeline {timeline.source} {timeline.latency!r} us {{"
    return "\n".join([head, *spans, "}"]) + "\n"


def parse_timeline(text: str) -> Timeline:
    """The timeline that `text_timeline` printed; ValueError for other texts."""
    head, *lines, end = text.strip().splitlines() if "\n" in text else (text, "")
    source, latency = _matched(_HEAD, head, "timeline SOURCE LATENCY us {")
    _matched(_END, end, "}")
    spans = []
    for line in lines:
        task, stream, start, stop = _matched(_SPAN, line, "TASK @STREAM START to END")
        spans.append(Span(task, int(stream), float(start), float(stop)))
    return Timeline(tuple(spans), float(latency), cast(CostSource, source))


def _matched(pattern: re.Pattern[str], text: str, wanted: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {wanted!r} in: {text}")
    return match.groups()

"""What was tried in parts, in lines: what paid first, and what is left out is counted."""

from __future__ import annotations

from anabranch.report.part_timings import tried_in_parts
from anabranch.search.part_selection import WHERE
from anabranch.trace import Trace


def test_what_paid_stands_first_with_both_times() -> None:
    trace = Trace()
    trace.add("applied", WHERE, "Net", "parts with other forms: 3, run: 3")
    trace.add("refused", WHERE, "split at %a to %b", "9.50 us measured, 9.00 without, as a part")
    trace.add("applied", WHERE, "merge at %c to %d", "8.00 us measured, 9.00 without, as a part")
    trace.add("refused", "search", "merge", "90.00 us measured, 80.00 without, side by side")
    assert tried_in_parts(trace.events, 5) == [
        "Tried in parts: 2 forms, 1 of them faster",
        "  + 8.00 us measured, 9.00 without, as a part",
        "      merge at %c to %d",
        "  - 9.50 us measured, 9.00 without, as a part",
        "      split at %a to %b",
    ]
    assert tried_in_parts(trace.events, 1)[-1] == "  and 1 form more"


def test_what_was_tried_is_told_in_full() -> None:
    rule = "conv(x, w, b), conv(y, v, c) -> slices of conv(cat(x, y), cat(w, v), cat(b, c))"
    trace, what = Trace(), f"{rule} x2 at %convolution_155 to %convolution_171"
    trace.add("applied", WHERE, what, "8.00 us measured, 9.00 without, as a part")
    _, _, *lines = tried_in_parts(trace.events, 5)
    assert len(lines) == 2 and " ".join(line.strip() for line in lines) == what


def test_without_part_timing_there_is_nothing_to_say() -> None:
    assert tried_in_parts(Trace().events, 5) == []

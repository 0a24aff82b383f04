"""What a simulated GPU leaves to the real one: events -> lines.

Left to the GPU: 9 GEMM chains, only estimated here; there both ways are timed: its plan may differ
  tasks                   one launch  apart
  convolution_1, 2 parts     3.90 us  4.20 us

A group of which there is only an estimate does not replace tasks whose times are known, and no
estimate knows what a chain computes again: where nothing can run, a plan has no chains, and says
so.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.fusion.merge_cuts import ESTIMATED
from anabranch.ir.target import TargetSpec
from anabranch.report.lines import columns, wrapped
from anabranch.report.units import count, duration
from anabranch.trace import Event


def deferred_decisions(events: Sequence[Event], spec: TargetSpec, most: int) -> list[str]:
    """How many groups only a measurement decides, and what both ways are expected to take, those
    that may gain most first; at most so many of them. Nothing where the machine is there."""
    if not spec.simulated:
        return []
    left = {event.what: event for event in events if _left(event)}
    if not left:
        return []
    rows = sorted((_times(event) for event in left.values()), key=lambda row: row[1] - row[2])
    chains = sum(bool(dict(event.data).get("gemm_chain")) for event in left.values())
    groups = [count(chains, "GEMM chain")] * bool(chains)
    groups += [count(len(left) - chains, "other group")] * (len(left) > chains)
    said = f"Left to the GPU: {' and '.join(groups)}, only estimated here; "
    said += "there both ways are timed: its plan may differ"
    table = [("tasks", "one launch", "apart")]
    table += [(what, _shown(us), _shown(apart)) for what, us, apart in rows[:most]]
    rest = len(rows) - most
    lines = [*wrapped(said, ""), *columns(table, "<>", (60, 10))]
    return [*lines, f"  and {rest} more"] if rest > 0 else lines


def _left(event: Event) -> bool:
    refused = event.kind == "refused" and event.where in ("fusion", "horizontal_fusion")
    return refused and event.why.startswith(ESTIMATED)


def _times(event: Event) -> tuple[str, float, float]:
    """Its subject, and microseconds in one launch and apart, 0 where the event does not tell."""
    data = dict(event.data)
    return event.what, float(data.get("us", 0.0)), float(data.get("apart_us", 0.0))


def _shown(us: float) -> str:
    return duration(us) if us else "?"

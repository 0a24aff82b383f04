"""What is left to the GPU: counted, with the times that are expected, on simulated ones alone."""

from __future__ import annotations

from dataclasses import replace

from anabranch.fusion.merge_cuts import ESTIMATED
from anabranch.ir.protocols import A_LARGE_GPU
from anabranch.report.deferred_decisions import deferred_decisions
from anabranch.trace import Event, EventKind

SIM = replace(A_LARGE_GPU, simulated=True)


def said(
    what: str,
    why: str = ESTIMATED,
    where: str = "fusion",
    kind: EventKind = "refused",
    **data: float,
) -> Event:
    return Event(kind, where, what, why, 0.0, tuple(data.items()))


EVENTS = [
    said("a, 2 parts", us=3.0, apart_us=3.5, gemm_chain=1),
    said("b, 2 parts", us=2.0, apart_us=4.0, gemm_chain=1),
    said("b, 2 parts", us=2.0, apart_us=4.0, gemm_chain=1),
    said("cat", f"{ESTIMATED}, the concatenation is known", us=9.0, apart_us=9.5),
    said("x and y", f"{ESTIMATED}, where the times of its parts are known", "horizontal_fusion"),
    said("c, 2 parts", "4.00 us > 3.00 us apart", us=4.0),
    said("d by triton.rows", f"{ESTIMATED}, where others are known", "tuning"),
    said("e, 2 parts", "2.00 us in one launch, 3.00 in 2", kind="applied", us=1.0),
]


def test_each_is_told_once_and_what_may_gain_most_first() -> None:
    first, *lines = deferred_decisions(EVENTS[:3], SIM, 12)
    assert first.endswith(
        "2 GEMM chains, only estimated here; there both ways are timed: its plan may differ"
    )
    first, second, *lines = deferred_decisions(EVENTS, SIM, 12)
    assert first.startswith(
        "Left to the GPU: 2 GEMM chains and 2 other groups, only estimated here"
    )
    assert second.endswith("may differ")
    assert lines[0].split() == ["tasks", "one", "launch", "apart"]
    names = [line.strip() for line in lines[1:]]
    assert [name.split("  ")[0] for name in names] == ["b, 2 parts", "a, 2 parts", "cat", "x and y"]
    assert "2.00 us  4.00 us" in names[0] and names[-1].endswith("?")


def test_what_is_left_out_is_counted() -> None:
    assert deferred_decisions(EVENTS, SIM, 1)[-1] == "  and 3 more"


def test_nothing_is_left_where_the_gpu_is_or_nothing_was_estimated() -> None:
    assert deferred_decisions(EVENTS, A_LARGE_GPU, 12) == []
    assert deferred_decisions(EVENTS[5:], SIM, 12) == []

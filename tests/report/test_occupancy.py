"""Occupancy: who holds which bytes, from the writer to the last reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anabranch.report.occupancy import fullest, occupancy
from anabranch.report.parts import ReportParts

Build = Mapping[str, Callable[..., ReportParts]]


def test_values_live_from_writer_to_last_reader(parts: Build) -> None:
    plan = parts["small"]()["plan"]
    position = {launch.task: i for i, launch in enumerate(plan.schedule.launches)}
    held = {item.value: item for item in occupancy(plan) if not item.workspace}
    assert (held["stem"].first, held["stem"].last) == (0, max(position["a"], position["b"]))
    assert held["join"].last == position["pool"]
    assert held["pool"].last == len(position) - 1
    assert held["stem"].nbytes == 64 * 28 * 28 * 2


def test_none_overlap_in_order_and_place(parts: Build) -> None:
    held = occupancy(parts["modules"](3)["plan"])
    values = [item for item in held if not item.workspace]
    for i, a in enumerate(values):
        for b in values[:i]:
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert apart or a.last < b.first or b.last < a.first


def test_fullest_counts_what_is_held(parts: Build) -> None:
    plan = parts["modules"](3)["plan"]
    held, launches = occupancy(plan), len(plan.schedule.launches)
    at, most = fullest(held, launches)
    sums = [
        sum(item.nbytes for item in held if item.first <= i <= item.last) for i in range(launches)
    ]
    assert (sums.index(max(sums)), max(sums)) == (at, most)
    assert most <= plan.arena_bytes

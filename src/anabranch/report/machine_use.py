"""The plan's use of the GPU over time, as the page draws it: Plan, timelines -> curves.

100% |     __                      a curve is a row of points of an SVG polyline, in per cent
| ___|  |____                 of its height from above: "0.0,80.0 1.6,80.0 1.6,20.0 ..."
0% +--------------- time
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.costs.utilisation import STEPS, kernels_in, utilisation
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Timeline


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Of one timeline, by its name: active warps and busy multiprocessors, in the mean of all that
    there are and over time, and the part of the time in which kernels bound by arithmetic and by
    memory both run. `unknown`: tasks of which it is not known what they take;
    `estimated`: those of which it is estimated."""

    name: str
    us: float
    warps: float
    busy: float
    overlap: float
    unknown: int
    estimated: int
    warps_curve: str
    busy_curve: str


def machine_uses(plan: Plan, timelines: Sequence[tuple[str, Timeline]]) -> list[MachineUse]:
    """Of each timeline of a plan for a GPU; none where it is known of no kernel what it takes."""
    return list(_uses(plan, timelines)) if plan.spec.kind == "cuda" else []


def _uses(plan: Plan, timelines: Sequence[tuple[str, Timeline]]) -> Iterator[MachineUse]:
    for name, timeline in timelines:
        used = utilisation(kernels_in(plan.tasks, timeline), plan.spec, timeline.source)
        if used is not None:
            most = used.warps / used.warps_share if used.warps_share else 1.0
            shares = [warps / most for warps in used.warps_over_time]
            yield MachineUse(
                name,
                used.us,
                used.warps_share,
                used.sm_efficiency,
                used.overlap,
                used.unknown,
                used.estimated,
                _curve(shares),
                _curve(used.sm_efficiency_over_time),
            )


def _curve(parts: Sequence[float]) -> str:
    """Steps, from the left edge to the right one."""
    width = 100 / STEPS
    points = (
        f"{x:.2f},{100 * (1 - part):.1f}"
        for i, part in enumerate(parts)
        for x in (i * width, (i + 1) * width)
    )
    return " ".join(points)

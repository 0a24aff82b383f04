"""Choosing between cuts: the same nodes, cut otherwise -> the faster, stretch by stretch.

Wherever two cuts differ, the kernels of one of them take less; a stretch is where they differ
together (`fusion/merge_cuts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.costs.forecast import CostOf
from anabranch.fusion.gemm_chain import is_gemm_chain
from anabranch.fusion.merge_cuts import choose
from anabranch.trace import Trace
from anabranch.tuning.select import Selection


@dataclass(frozen=True, slots=True)
class SelectionVariant:
    """Tasks with kernels, and what was said on the way to them."""

    selection: Selection
    trace: Trace


def fastest_cut(ways: Sequence[Selection], cost: CostOf, trace: Trace) -> Selection:
    """The fastest of all cuts, wherever they differ."""
    fastest, *others = ways
    for whole in others:
        fastest = faster_of_two(whole, fastest, cost, trace)
    return fastest


def faster_of_two(whole: Selection, parts: Selection, cost: CostOf, trace: Trace) -> Selection:
    """Where the two are cut otherwise, the faster of their kernels."""
    # An estimate knows the launch that a chain saves, and not what is computed again for that.
    tasks = choose(whole.tasks, parts.tasks, cost, trace, sure=is_gemm_chain)
    kept = set(map(id, whole.tasks.tasks))
    tried = {
        task.name: (whole if id(task) in kept else parts).candidates[task.name]
        for task in tasks.tasks
    }
    return Selection(tasks, tried)


def sum_us(selection: Selection, cost: CostOf) -> float:
    """What its kernels take one after another."""
    return sum(cost(task).us for task in selection.tasks.tasks)

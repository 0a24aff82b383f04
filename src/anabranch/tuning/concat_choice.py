"""Choosing concatenations to elide: all cuts with kernels -> the fastest, those that pay elided.

fastest cut, elision tried in it                is taken, unless
cuts chosen as if concatenations were free      take less in all, with these elided
all of them elided                              a second selection, for who can run both wholes
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Protocol

from anabranch.costs.forecast import CostOf
from anabranch.fusion.concat_elision import CAT, fitting
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace
from anabranch.tuning.cut_choice import SelectionVariant, fastest_cut, sum_us
from anabranch.tuning.select import Selection


class ConcatElision(Protocol):
    """A selection with elided concats where they are faster; `hopeful`: or may be, in a whole in
    which parts run side by side."""

    def __call__(self, selection: Selection, trace: Trace, hopeful: bool = False) -> Selection:
        """The selection with those elided concats that are faster; their refusals go to the
        trace."""


def selections_with_elided_concats(
    ways: Sequence[Selection], cost: CostOf, elide: ConcatElision, trace: Trace, wholes: bool
) -> list[SelectionVariant]:
    """The fastest of all cuts, with elided concats, and for wholes the same with as many of them as
    can be."""
    free = {name for way in ways for name in fitting(way.tasks, Trace(quiet=True))}
    told = trace.child()
    variants = [_fastest_with_elision(ways, cost, elide, free, told)]
    apart = _all_elided(ways, cost, elide, free, trace) if wholes else None
    if apart is not None and apart.selection.tasks != variants[0].selection.tasks:
        variants.append(apart)
    return variants


def _fastest_with_elision(
    ways: Sequence[Selection], cost: CostOf, elide: ConcatElision, free: Set[str], trace: Trace
) -> SelectionVariant:
    """The fastest of all cuts, with elided concats. A concatenation that becomes one costs nothing,
    but to do so it must be a task alone: so cuts are also chosen as if all of those were free, then
    as if just those were that became elided, and that is taken if it takes less in all."""
    first = fastest_cut(_as_they_are(ways), cost, trace)
    plain = elide(first, trace)
    while free:
        told = trace.child()
        hoped = fastest_cut(ways, partial(_hoped, cost, free), told)
        if hoped.tasks == first.tasks:
            break
        hoped = elide(hoped, told)
        elided = {node.name for node in hoped.tasks.elided_concats}
        if free <= elided:
            if sum_us(hoped, cost) < sum_us(plain, cost):
                return SelectionVariant(hoped, told)
            break
        free = free & elided
    return SelectionVariant(plain, trace)


def _all_elided(
    ways: Sequence[Selection], cost: CostOf, elide: ConcatElision, free: Set[str], trace: Trace
) -> SelectionVariant | None:
    """With every concatenation elided that can be, whatever that takes in all; None if none can."""
    while free:
        told = trace.child()
        apart = elide(fastest_cut(ways, partial(_apart, cost, free), told), told, hopeful=True)
        elided = {node.name for node in apart.tasks.elided_concats}
        if free <= elided:
            return SelectionVariant(apart, told)
        free = free & elided
    return None


def _as_they_are(ways: Sequence[Selection]) -> Sequence[Selection]:
    """All cuts but one that is there for its elided concats alone: with concatenations apart that
    the one before it fuses."""
    *_, before, last = (None, *ways)
    if before is None or _alone(last.tasks) <= _alone(before.tasks):
        return ways
    return ways[:-1]


def _alone(tasks: TaskGraph) -> set[str]:
    """The concatenations that are tasks."""
    return {task.name for task in tasks.tasks if [node.op for node in task.body.nodes] == [CAT]}


def _hoped(cost: CostOf, free: Container[str], task: Task) -> Cost:
    """Its cost, nothing for a concatenation that is free."""
    alone = [node.op for node in task.body.nodes] == [CAT] and task.name in free
    return replace(cost(task), us=0.0) if alone else cost(task)


def _apart(cost: CostOf, free: Container[str], task: Task) -> Cost:
    """As `_hoped`, and no task is to hold one of these with anything else."""
    held = len(task.body.nodes) > 1 and any(node.name in free for node in task.body.nodes)
    return replace(cost(task), us=math.inf) if held else _hoped(cost, free, task)

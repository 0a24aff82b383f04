"""A call with fewer rows than the plan that answers it has: what of the plan's buffers is its own,
what the rest is filled with, and which rows of the results it gets.

    input  f[8,3], call f[5,3]    rows 0 to 4 are copied, rows 5 to 7 are copies of row 4
    result f[8,10]                rows 0 to 4
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Filling:
    """Along one axis of an input the call has the first `own` of `full` indices. The others are
    `number`, or copies of the last `group` of its own where that is None."""

    axis: int
    own: int
    full: int
    group: int = 1
    number: int | None = None


@dataclass(frozen=True, slots=True)
class RowsOfResult:
    """Of the indices `[outer, full, inner]` of one axis of a result the call gets the first `own`
    of `full`. Of outer and inner one may be 0: the axis says it."""

    axis: int
    outer: int
    inner: int
    own: int
    full: int


@dataclass(frozen=True, slots=True)
class CallPadding:
    """Calls of one size on a plan for a larger one: for each input of the plan, in its order, and
    for each of its outputs, the axes that have rows, one after the other. An input's later axes
    have their own indices alone when an earlier one is filled."""

    inputs: tuple[tuple[Filling, ...], ...]
    outputs: tuple[tuple[RowsOfResult, ...], ...]

"""Corrected estimates: known tasks say how far estimates are off, unknown ones are estimated so.

    known     conv 3x3  5.2 us, estimated 4.0     conv 1x1  2.6 us, estimated 2.1     off by 1.27
    unknown   conv 3x3  estimated 3.0  -->  3.8

A plan with one unknown task and one without can then be compared: both are in numbers of one scale.
How far such estimates are off is said by the known ones, each estimated by the others: a difference
between plans that this would turn is none. Tasks are alike by their main operator and what it
reads; then by the operator, then all are, if a few are known: a network of which one task is known,
a linear that takes half as long as it was estimated to, is not twice as fast.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property
from statistics import median

from anabranch.costs.work import main_node
from anabranch.ir import ops
from anabranch.ir.graph import Node, types
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task

FEWEST_TASKS = 3
"""Known tasks that say something of those that are like them in little."""

TimedAndEstimated = tuple[float, float]
"""Microseconds that a task takes, and that it was estimated to take."""


class Corrected:
    """`timings`: tasks, what each takes, and what it was estimated to take."""

    def __init__(self, timings: Sequence[tuple[Task, Cost, Cost]]) -> None:
        self._timings_of: dict[Hashable, list[TimedAndEstimated]] = {}
        each: dict[tuple[TimedAndEstimated, tuple[Hashable, ...]], None] = {}
        for task, cost, guess in timings:
            if guess.us and cost.us:
                timed, likenesses = (cost.us, guess.us), tuple(_likenesses(task))
                each.setdefault((timed, likenesses))
                for likeness in likenesses:
                    self._timings_of.setdefault(likeness, []).append(timed)
        self._ratio = {
            likeness: _off(pairs)
            for likeness, pairs in self._timings_of.items()
            if _tell(likeness, len(pairs))
        }
        self._each = tuple(each)

    def of(self, task: Task, guess: Cost) -> Cost:
        """The estimate as those of tasks like it came out."""
        ratio = next((self._ratio[x] for x in _likenesses(task) if x in self._ratio), 1.0)
        return Cost(guess.us * ratio, "estimated", guess.spread * ratio)

    @cached_property
    def error(self) -> float:
        """By what part of it such an estimate may be off: three of four of the known tasks are by
        less, each estimated by those that are not the same. 0 if that tells of too
        few tasks."""
        errors = []
        for own, likenesses in self._each:
            ratio = self._by_others(own, likenesses)
            if ratio is not None:
                errors.append(abs(own[0] / (own[1] * ratio) - 1))
        return sorted(errors)[len(errors) * 3 // 4] if len(errors) >= FEWEST_TASKS else 0.0

    def _by_others(self, own: TimedAndEstimated, likenesses: Sequence[Hashable]) -> float | None:
        """By how much the estimate of a task would be changed if it were not known, None if none
        of the others tells. Those that take just as long are the same task somewhere else."""
        for likeness in likenesses:
            others = [timed for timed in self._timings_of[likeness] if timed != own]
            if others and _tell(likeness, len(others)):
                return _off(others)
        return None


def _off(pairs: Sequence[TimedAndEstimated]) -> float:
    return median(us / guess for us, guess in pairs)


def _likenesses(task: Task) -> Iterator[Hashable]:
    """The nearest first."""
    node = main_node(task)
    if node is not None:
        table = types(task.body)
        yield node.op, tuple(table[name].shape for name in node.uses[:1]), _taps(task, node)
        yield node.op, tuple(table[name].shape for name in node.uses[:1])
        yield node.op
        yield (ops.kind_of(node),)
    yield ()


def _tell(likeness: Hashable, count: int) -> bool:
    """Whether so many known tasks say something of those that are alike so: one does where it says
    what is read, and not the operator alone."""
    return count >= FEWEST_TASKS or (isinstance(likeness, tuple) and len(likeness) > 1)


def _taps(task: Task, node: Node) -> tuple[int, ...]:
    """The window of a convolution's weight, which says more than how many weights there are."""
    if node.op not in ops.CONVOLUTIONS or len(node.uses) < 2:
        return ()
    return types(task.body)[node.uses[1]].shape[2:]

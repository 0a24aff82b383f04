"""Corrected estimates: known tasks say how far estimates are off, unknown ones are estimated so.

    known     conv 3x3  5.2 us, estimated 4.0     conv 1x1  2.6 us, estimated 2.1     off by 1.27
    unknown   conv 3x3  estimated 3.0  -->  3.8

A plan with one unknown task and one without can then be compared: both are in numbers of one scale.
What tasks are alike is said by their main operator and what it reads; then by the operator, then
all are, if a few are known: a network of which one task is known, a linear that takes half as long
as it was estimated to, is not twice as fast.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from statistics import median

from anabranch.ir import ops
from anabranch.ir.graph import Node, types
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task

FEW = 3
"""Known tasks that say something of those that are like them in little."""


class Corrected:
    """`known`: tasks, what each takes, and what it was estimated to take."""

    def __init__(self, known: Sequence[tuple[Task, Cost, Cost]]) -> None:
        found: dict[Hashable, list[float]] = {}
        for task, cost, guess in known:
            if guess.us:
                for likeness in _likenesses(task):
                    found.setdefault(likeness, []).append(cost.us / guess.us)
        self._ratio = {
            likeness: median(ratios)
            for likeness, ratios in found.items()
            if len(ratios) >= FEW or _near(likeness)
        }

    def of(self, task: Task, guess: Cost) -> Cost:
        """The estimate as those of tasks like it came out."""
        ratio = next((self._ratio[x] for x in _likenesses(task) if x in self._ratio), 1.0)
        return Cost(guess.us * ratio, "estimated", guess.spread * ratio)


def _likenesses(task: Task) -> Iterator[Hashable]:
    """The nearest first."""
    node = _main(task)
    if node is not None:
        table = types(task.body)
        yield node.op, tuple(table[name].shape for name in node.uses[:1]), _taps(task, node)
        yield node.op, tuple(table[name].shape for name in node.uses[:1])
        yield node.op
        yield (ops.info(node.op).kind,)
    yield ()


def _near(likeness: Hashable) -> bool:
    """Whether it says what is read, and not the operator alone."""
    return isinstance(likeness, tuple) and len(likeness) > 1


def _main(task: Task) -> Node | None:
    nodes = task.body.nodes
    contract = (node for node in nodes if ops.info(node.op).kind == "contract")
    return next(contract, nodes[0] if nodes else None)


def _taps(task: Task, node: Node) -> tuple[int, ...]:
    """Of a convolution the window of its weight, which says more than how many there are."""
    if node.op not in ops.CONVOLUTIONS or len(node.uses) < 2:
        return ()
    return types(task.body)[node.uses[1]].shape[2:]

"""When a difference is none: costs -> tied or not, and the one to take.

Two numbers that differ by no more than the sum of their spreads are a tie. A tie is broken by the
order in which the candidates stand, never by the numbers, so that the same model gives the same
plan twice:

    sequential 100 +- 2, greedy 97 +- 2, ios 80 +- 1   ->  ios
    sequential 100 +- 2, greedy 97 +- 2                ->  sequential
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task


def tied(a: Cost, b: Cost) -> bool:
    """Whether the difference is smaller than the noise: at most the sum of the spreads.

    >>> tied(Cost(100, "measured", 2), Cost(97, "measured", 2))
    True
    """
    return a.us == b.us or abs(a.us - b.us) <= a.spread + b.spread


def fastest(costs: Sequence[Cost]) -> int:
    """The first of those that are tied with the lowest number.

    >>> fastest([Cost(100, "measured", 2), Cost(80, "measured", 1), Cost(79, "measured", 1)])
    1
    """
    best = min(costs, key=lambda cost: cost.us)
    return next(i for i, cost in enumerate(costs) if tied(cost, best))


def comparable(tasks: Sequence[Task], costs: Sequence[Cost | None]) -> list[Cost | None]:
    """The costs without estimates that compete with known numbers. Among ways to run the same
    body an estimate knows no difference, and is too low for most: it would win for ignorance."""
    bodies = [structure_text(task.body) for task in tasks]
    known = {
        body
        for body, cost in zip(bodies, costs, strict=True)
        if cost is not None and cost.source != "estimated"
    }
    return [
        None if cost is not None and cost.source == "estimated" and body in known else cost
        for body, cost in zip(bodies, costs, strict=True)
    ]

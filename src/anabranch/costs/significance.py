"""When a difference is none: costs -> tied or not, and the one to take.

Two numbers that differ by no more than the sum of their spreads are a tie. A tie is broken by the
order in which the candidates stand, never by the numbers, so that the same model gives the same
plan twice:

    sequential 100 +- 2, greedy 97 +- 2, ios 80 +- 1   ->  ios
    sequential 100 +- 2, greedy 97 +- 2                ->  sequential
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anabranch.ir import ops
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.task import GENERATED, Task

MOST_DIGITS = 6
"""After the point, of microseconds: what is less is arithmetic in another order."""


def tied(a: Cost, b: Cost) -> bool:
    """Whether the difference is smaller than the noise: at most the sum of the spreads, or what
    sums differ by that were added in another order.

    >>> tied(Cost(100, "measured", 2), Cost(97, "measured", 2))
    True
    """
    return math.isclose(a.us, b.us) or abs(a.us - b.us) <= a.spread + b.spread


def beside(now: Cost, was: Cost, how: str) -> str:
    """Both in words, with as many digits as tell them apart, and whether they are a tie.

    >>> beside(Cost(6.9301, "estimated"), Cost(6.9324, "estimated"), "as a part")
    '6.930 us estimated, 6.932 without, as a part'
    >>> beside(Cost(97, "measured", 2), Cost(100, "measured", 2), "side by side")
    '97.00 us measured, 100.00 without, side by side: a tie'
    """
    digits = 2
    while digits < MOST_DIGITS and not tied(now, was) and _equal(now.us, was.us, digits):
        digits += 1
    tie = ": a tie" if tied(now, was) else ""
    return f"{now.us:.{digits}f} us {now.source}, {was.us:.{digits}f} without, {how}{tie}"


def _equal(a: float, b: float, digits: int) -> bool:
    return f"{a:.{digits}f}" == f"{b:.{digits}f}"


def fastest(costs: Sequence[Cost]) -> int:
    """The first of those that are tied with the lowest number.

    >>> fastest([Cost(100, "measured", 2), Cost(80, "measured", 1), Cost(79, "measured", 1)])
    1
    """
    best = min(costs, key=lambda cost: cost.us)
    return next(i for i, cost in enumerate(costs) if tied(cost, best))


def comparable(
    tasks: Sequence[Task],
    costs: Sequence[Cost | None],
    most: Callable[[Task], float] | None = None,
) -> list[Cost | None]:
    """The costs without estimates that compete with known numbers. Among ways to run the same
    body an estimate knows no difference, and is too low for most: it would win for ignorance.
    `most`: microseconds that an estimated task takes at most; where calls of libraries alone are
    known of a body without products, and all take longer than that, its estimates compete with
    each other instead. (Kernels of products are recorded in many tiles wherever they are.)"""
    bodies = [structure_text(task.body) for task in tasks]
    known_us, least_us, written = dict[str, float](), dict[str, float](), set[str]()
    for body, task, cost in zip(bodies, tasks, costs, strict=True):
        if cost is not None and cost.source != "estimated":
            known_us[body] = min(cost.us, known_us.get(body, math.inf))
            if task.kernel is None or task.kernel.provider == GENERATED:
                written.add(body)
        elif cost is not None and most is not None and not any(map(ops.contracts, task.body.nodes)):
            least_us[body] = min(most(task), least_us.get(body, math.inf))
    estimated = {b for b, us in least_us.items() if b not in written and us < known_us.get(b, 0.0)}

    def competes(body: str, cost: Cost) -> bool:
        return (cost.source == "estimated") == (body in estimated or body not in known_us)

    return [
        cost if cost is not None and competes(body, cost) else None
        for body, cost in zip(bodies, costs, strict=True)
    ]

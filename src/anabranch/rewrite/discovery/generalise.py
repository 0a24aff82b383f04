"""An equation found for few inputs, for as many as it holds for.

    found    cat([matmul(x, a), matmul(x, a)], 1)   =  matmul(x, cat([a, a], 1))       two calls
    holds    cat([matmul(x, a), matmul(x, a1)], 1)  =  matmul(x, cat([a, a1], 1))      three

Graphs count equal calls once, so special cases are smaller than the law they are cases of, and are
found first. Each place of an input may become another input of its shape: all ways are tried on the
fixed draws, those with most inputs first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from anabranch.ir.rule import Call, Operand, Wild, wildcards
from anabranch.rewrite.discovery.settings import SPARE
from anabranch.rewrite.discovery.terms import EquationSide, TermEvaluator, fingerprint

MOST_PLACES = 6
"""Places of one input, on both sides together, that are looked at: their ways grow fast."""


def generalised(
    first: EquationSide, second: EquationSide, run: TermEvaluator
) -> tuple[EquationSide, EquationSide]:
    """The equation with as many different inputs as it bears."""
    for name in run.setting.inputs:
        left, right = (list(wildcards(side)).count(name) for side in (first, second))
        if left + right > MOST_PLACES or max(left, right) < 2:
            continue
        for places in _ways(left, right):
            sides = (_spread(first, name, places[:left]), _spread(second, name, places[left:]))
            if len(set(places)) > 1 and _equal(*sides, run):
                first, second = sides
                break
    return first, second


def _ways(left: int, right: int) -> list[tuple[int, ...]]:
    """Which input, by number, stands in which place, first those of the left side; inputs that
    stand on both sides only, most inputs first."""
    ways = []
    for first in _growing(left):
        for second in itertools.product(range(max(first) + 1), repeat=right):
            if set(second) == set(first):
                ways.append((*first, *second))
    return sorted(ways, key=lambda way: -len(set(way)))


def _growing(places: int) -> Iterator[tuple[int, ...]]:
    """All partitions of the places: each number is at most one more than those before it."""
    if places == 0:
        return
    stack: list[tuple[int, ...]] = [(0,)]
    while stack:
        way = stack.pop()
        if len(way) == places:
            yield way
        else:
            stack += [(*way, each) for each in range(min(max(way) + 1, SPARE) + 1)]


def _spread(side: EquationSide, name: str, numbers: tuple[int, ...]) -> EquationSide:
    """The side with the places of the input numbered: 0 is the input itself."""
    left = iter(numbers)

    def renamed(operand: Operand) -> Operand:
        if isinstance(operand, Wild) and operand.name == name:
            number = next(left)
            return Wild(f"{name}{number}") if number else operand
        if isinstance(operand, Call):
            return Call(operand.op, tuple(map(renamed, operand.args)), operand.rest)
        return tuple(map(renamed, operand)) if isinstance(operand, tuple) else operand

    spread = renamed(side)
    assert isinstance(spread, Call | Wild)
    return spread


def _equal(left: EquationSide, right: EquationSide, run: TermEvaluator) -> bool:
    values = [run(side) for side in (left, right)]
    prints = [fingerprint(each) for each in values if each is not None]
    return len(prints) == 2 and prints[0] == prints[1]

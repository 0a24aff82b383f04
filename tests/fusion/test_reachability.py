"""Reach against the graph of what is left after each merge, walked anew."""

from __future__ import annotations

from random import Random

import pytest

from anabranch.fusion.reachability import Reach
from anabranch.ir.dag import bits


def closure(above: dict[int, set[int]]) -> dict[int, set[int]]:
    """All that comes before each group."""
    whole: dict[int, set[int]] = {}

    def walk(group: int) -> set[int]:
        if group not in whole:
            whole[group] = set(above[group]).union(*map(walk, above[group]))
        return whole[group]

    for group in above:
        walk(group)
    return whole


def merged(above: dict[int, set[int]], a: int, b: int) -> dict[int, set[int]]:
    """What each group reads once b is a."""
    left = {g: {a if x == b else x for x in own} for g, own in above.items() if g != b}
    left[a] = (left[a] | {a if x == b else x for x in above[b]}) - {a}
    return left


@pytest.mark.parametrize("seed", range(20))
def test_merges_leave_what_a_walk_finds(seed: int) -> None:
    dice = Random(seed)
    count = dice.choice((6, 20, 160))
    direct = [{j for j in range(i) if dice.random() < 2 / count} for i in range(count)]
    reach, above = Reach.of(direct), dict(enumerate(direct))
    for _ in range(count):
        before = closure(above)
        for group, own in before.items():
            assert set(bits(reach.above[group] & reach.live)) == own
            after = {other for other in before if group in before[other]}
            assert set(bits(reach.below[group] & reach.live)) == after
        a, b = dice.sample(sorted(above), 2)
        between = (before[a] & {x for x in before if b in before[x]}) | (
            before[b] & {x for x in before if a in before[x]}
        )
        assert reach.may_merge(a, b) == (not between)
        assert reach.same_start(a, b) == (before[b] <= before[a] | {a})
        if not between:
            reach.merge(a, b)
            above = merged(above, a, b)
        if len(above) < 3:
            break

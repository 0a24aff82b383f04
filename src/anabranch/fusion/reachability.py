"""Reach: which groups must come before which, while groups are merged.

a -> b -> c      a and c may not merge: b would have to run in between
a -> c           merged with b first, they may
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from anabranch.ir.dag import bits


@dataclass(slots=True)
class Reach:
    """For each group the masks of all that come before it and of all that come after it."""

    above: list[int]
    below: list[int]

    @staticmethod
    def of(before: Sequence[Collection[int]]) -> Reach:
        """From what each group reads directly, all of it earlier in the sequence."""
        above, below = [0] * len(before), [0] * len(before)
        for i, direct in enumerate(before):
            for j in direct:
                assert j < i, "groups come in an order in which they can run"
                above[i] |= above[j] | 1 << j
            for j in bits(above[i]):
                below[j] |= 1 << i
        return Reach(above, below)

    def may_merge(self, a: int, b: int) -> bool:
        """Whether no path leads from one to the other through a third."""
        return not (self.below[a] & self.above[b] or self.below[b] & self.above[a])

    def same_start(self, first: int, second: int) -> bool:
        """Whether the second waits for the first, and else for nothing that the first does not."""
        return not self.above[second] & ~(self.above[first] | 1 << first)

    def merge(self, a: int, b: int) -> None:
        """What was b is a from now on."""
        both = 1 << a | 1 << b
        above = (self.above[a] | self.above[b]) & ~both
        below = (self.below[a] | self.below[b]) & ~both
        self.above[a], self.below[a], self.above[b], self.below[b] = above, below, 0, 0
        for i in bits(above):
            self.below[i] = (self.below[i] | below | 1 << a) & ~(1 << b)
        for i in bits(below):
            self.above[i] = (self.above[i] | above | 1 << a) & ~(1 << b)

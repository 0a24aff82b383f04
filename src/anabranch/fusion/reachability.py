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
    """For each group the masks of all that come before it, of all that come after it, and of
    itself: of what was merged into it all bits, which stand together everywhere. `live`: the groups
    that are left, each by the number that it has now."""

    above: list[int]
    below: list[int]
    own: list[int]
    live: int

    @staticmethod
    def of(before: Sequence[Collection[int]]) -> Reach:
        """From what each group reads directly, all of it earlier in the sequence."""
        count = len(before)
        above, below = [0] * count, [0] * count
        for i, direct in enumerate(before):
            for j in direct:
                assert j < i, "groups come in an order in which they can run"
                above[i] |= above[j] | 1 << j
        for i in reversed(range(count)):
            for j in before[i]:
                below[j] |= below[i] | 1 << i
        return Reach(above, below, [1 << i for i in range(count)], (1 << count) - 1)

    def may_merge(self, a: int, b: int) -> bool:
        """Whether no path leads from one to the other through a third."""
        return not (self.below[a] & self.above[b] or self.below[b] & self.above[a])

    def same_start(self, first: int, second: int) -> bool:
        """Whether the second waits for the first, and else for nothing that the first does not."""
        return not self.above[second] & ~(self.above[first] | self.own[first])

    def merge(self, a: int, b: int) -> None:
        """What was b is a from now on."""
        both = self.own[a] | self.own[b]
        above = (self.above[a] | self.above[b]) & ~both
        below = (self.below[a] | self.below[b]) & ~both
        # What comes before both has all that comes after them already.
        before = (self.above[a] ^ self.above[b]) & above & self.live
        after = (self.below[a] ^ self.below[b]) & below & self.live
        for i in bits(before):
            self.below[i] |= below | both
        for i in bits(after):
            self.above[i] |= above | both
        self.above[a], self.below[a], self.above[b], self.below[b] = above, below, 0, 0
        self.own[a], self.own[b] = both, 0
        self.live &= ~(1 << b)

"""The cost of a stage without running it: task times and shares -> microseconds.

A group runs its nodes in order, groups run side by side. No faster than the longest group, nor
than the machine can do all the work (time times share, summed), and each group after the first
costs a fork:

    max(longest group, sum of us * share) + fork_us * (groups - 1)

On an H200 a fork to w streams and back costs 0.3 to 0.6 us for each stream after the first, and a
chain costs nothing beyond its kernels; tasks are timed with their launch.

    us a 4, b 3, c 3; share .5 each; fork .5      {a | b}     max(4, 3.5) + .5 = 4.5
                                                  {a | b | c} max(4, 5.0) + 1  = 6.0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.ir.dag import bits

Groups = tuple[int, ...]
"""The groups of a stage, as masks."""

StageCost = Callable[[Groups], float]


def stage_estimate(us: Sequence[float], shares: Sequence[float], fork_us: float) -> StageCost:
    """The model for nodes of these times and shares of the machine."""
    work = [time * share for time, share in zip(us, shares, strict=True)]
    weighed: dict[int, tuple[float, float]] = {}

    def weigh(group: int) -> tuple[float, float]:
        """The length and the work, which a search asks for with one node less first."""
        less = group ^ 1 << group.bit_length() - 1
        inside = bits(group ^ less) if less in weighed else bits(group)
        length, part = weighed.get(less, (0.0, 0.0))
        for v in inside:
            length += us[v]
            part += work[v]
        weighed[group] = length, part
        return length, part

    def cost(groups: Groups) -> float:
        longest = area = 0.0
        for group in groups:
            length, part = weighed.get(group) or weigh(group)
            area += part
            if length > longest:
                longest = length
        return max(longest, area) + fork_us * (len(groups) - 1)

    return cost

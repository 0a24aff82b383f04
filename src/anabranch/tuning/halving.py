"""Successive halving: a rough time for every candidate, a precise one for the few that may win.

    rough      a 3.1   b 3.0   c 4.9   d 3.3   e 6.0      of one body, each by itself
    precise    a 3.2   b 3.3           d 3.4              side by side, the fastest few
    answer     a 3.2   b 3.3   c 4.9   d 3.4   e 6.0      c and e: no less than the slowest of those

Timing side by side is what tells 2% apart, and dear; what loses by a quarter need not be told apart
from what loses by a third. Candidates without a rough time are all timed precisely.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Task

FINALISTS = 4
"""Of one body. A rough time is off by a few percent, and few candidates are that close."""
FAR = 1.3
"""A candidate this many times as slow as the fastest of its body, both roughly, is none of them."""

TrialTimer = Callable[[Sequence[Task]], Sequence[Cost | None]]


def successive_halving(
    tasks: Sequence[Task], rough: Mapping[int, Cost], trial: TrialTimer
) -> list[Cost | None]:
    """The costs of the tasks, with kernels; `rough`: of some, by position."""
    bodies: defaultdict[str, list[int]] = defaultdict(list)
    for i in rough:
        bodies[structure_text(tasks[i].body)].append(i)
    ranked = [sorted(group, key=lambda i: rough[i].us) for group in bodies.values()]
    finalists = [_finalists(group, rough) for group in ranked]
    out = {i for group, few in zip(ranked, finalists, strict=True) for i in group[len(few) :]}
    final = [i for i in range(len(tasks)) if i not in out]
    precise = trial([tasks[i] for i in final])
    costs = dict(zip(final, precise, strict=True))
    for i in rough.keys() & costs.keys():
        cost = costs[i]
        if cost is not None and cost.source == "estimated":
            costs[i] = rough[i]  # there was no time: a rough number is better than none
    for group, few in zip(ranked, finalists, strict=True):
        times = [cost.us for i in few if (cost := costs[i]) is not None]
        least = max(times, default=0.0)
        for i in group[len(few) :]:
            costs[i] = replace(rough[i], us=max(rough[i].us, least))
    return [costs[i] for i in range(len(tasks))]


def _finalists(group: Sequence[int], rough: Mapping[int, Cost]) -> Sequence[int]:
    """The first of the group, the fastest first; two at least."""
    near = sum(rough[i].us <= FAR * rough[group[0]].us for i in group)
    return group[: max(2, min(near, FINALISTS))]

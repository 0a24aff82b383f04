"""Subsets of a graph's nodes that gain -> those of which no two share a node, that gain most.

    nodes 0 1 2 3     {0,1} gains 0.8, {1,2} 0.9, {2,3} 0.8     ->  {0,1} and {2,3}: 1.6

Nodes are numbered in an order in which they can run, subsets are masks. A programme goes through
the nodes in order; its states are the later nodes that are taken already, few where subsets are
local. Subsets that wait for each other in a circle cannot be launches: where the best choice has
one, it is made again without each of the subsets of the circle, and the best of these is next.

     a --> d     {a, b} and {c, d}: the first waits for the second at b, and the second for the
     c --> b     first at d
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count

from anabranch.ir.dag import bits

MOST_STATES = 512
"""Of nodes that are taken already, between two nodes: those that gained most go on."""
MOST_CHOICES = 64
"""With other subsets left out of circles; of the last one, circles are taken apart."""

SubsetIndices = tuple[int, ...]


def best_disjoint(gains: Mapping[int, float], preds: Sequence[int]) -> SubsetIndices:
    """The masks that gain most together, in order of their first nodes. `preds`: for each node the
    mask of those that it reads. The best there are, up to `MOST_STATES` and `MOST_CHOICES`."""
    number = count()
    gain, choice = _packed(gains, len(preds))
    heap = [(-gain, next(number), frozenset[int](), choice)]
    seen = {frozenset[int]()}
    while True:
        _, _, without, choice = heapq.heappop(heap)
        circle = in_circle(choice, preds)
        if not circle:
            return choice
        if len(seen) > MOST_CHOICES:
            return _without_circles(choice, gains, preds)
        for mask in circle:
            fewer = without | {mask}
            if fewer not in seen:
                seen.add(fewer)
                left = {other: gain for other, gain in gains.items() if other not in fewer}
                gain, chosen = _packed(left, len(preds))
                heapq.heappush(heap, (-gain, next(number), fewer, chosen))


def in_circle(masks: Sequence[int], preds: Sequence[int]) -> SubsetIndices:
    """The masks of one circle in which launches of these nodes, and of all others alone, would wait
    for each other; empty if there is none."""
    home = {v: mask for mask in masks for v in bits(mask)}
    reads: dict[int, set[int]] = defaultdict(set)
    for v, direct in enumerate(preds):
        own = home.get(v, 1 << v)
        reads[own] |= {home.get(u, 1 << u) for u in bits(direct)} - {own}
    done: set[int] = set()
    for first in reads:
        path: dict[int, None] = {}
        stack: list[tuple[int, list[int]]] = [] if first in done else [(first, list(reads[first]))]
        path.update(dict.fromkeys(mask for mask, _ in stack))
        while stack:
            mask, left = stack[-1]
            if not left:
                stack.pop()
                path.pop(mask)
                done.add(mask)
                continue
            after = left.pop()
            if after in path:
                order = list(path)
                return tuple(m for m in order[order.index(after) :] if m & (m - 1))
            if after not in done:
                path[after] = None
                stack.append((after, list(reads[after])))
    return ()


def _packed(gains: Mapping[int, float], nodes: int) -> tuple[float, SubsetIndices]:
    """The masks that share no node and gain most, whether or not they wait for each other."""
    begins: dict[int, list[int]] = defaultdict(list)
    for mask in gains:
        begins[(mask & -mask).bit_length() - 1].append(mask)
    states: dict[int, tuple[float, tuple[int, object] | None]] = {0: (0.0, None)}
    for v in range(nodes):
        after: dict[int, tuple[float, tuple[int, object] | None]] = {}
        for taken, (gain, chosen) in states.items():
            ways = [(taken & ~(1 << v), gain, chosen)]
            if not taken >> v & 1:
                ways += [
                    ((taken | mask) & ~(1 << v), gain + gains[mask], (mask, chosen))
                    for mask in begins[v]
                    if not taken & mask
                ]
            for state, total, which in ways:
                if state not in after or total > after[state][0]:
                    after[state] = (total, which)
        if len(after) > MOST_STATES:
            best = sorted(after.items(), key=lambda item: -item[1][0])
            after = dict(best[:MOST_STATES])
        states = after
    gain, chosen = max(states.values(), key=lambda entry: entry[0])
    choice: list[int] = []
    at: object = chosen
    while isinstance(at, tuple):
        mask, at = at
        choice.append(mask)
    return gain, tuple(reversed(choice))


def _without_circles(
    choice: SubsetIndices, gains: Mapping[int, float], preds: Sequence[int]
) -> SubsetIndices:
    """The choice without the mask that gains least of each circle."""
    while circle := in_circle(choice, preds):
        least = min(circle, key=lambda mask: gains[mask])
        choice = tuple(mask for mask in choice if mask != least)
    return choice

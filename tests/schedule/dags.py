"""Random graphs, by a dice that goes on to draw what hangs on them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits


def random_dag(dice: random.Random, n: int, part: float) -> Dag:
    """Of n nodes, each edge from a node to a later one there with this probability."""
    edges = [(u, v) for v in range(n) for u in range(v) if dice.random() < part]
    return Dag.of(tuple(f"n{v}" for v in range(n)), edges)


def components(reach: Sequence[int], ending: int) -> tuple[int, ...]:
    """The groups of any ending: its connected components, by their first nodes."""
    found: list[int] = []
    for v in reversed(list(bits(ending))):
        group = reach[v] & ending
        for other in [g for g in found if g & group]:
            found.remove(other)
            group |= other
        found.append(group)
    return tuple(sorted(found, key=lambda group: group & -group))

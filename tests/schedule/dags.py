"""Random graphs, by a dice that goes on to draw what hangs on them."""

from __future__ import annotations

import random

from anabranch.ir.dag import Dag


def random_dag(dice: random.Random, n: int, part: float) -> Dag:
    """Of n nodes, each edge from a node to a later one there with this probability."""
    edges = [(u, v) for v in range(n) for u in range(v) if dice.random() < part]
    return Dag.of(tuple(f"n{v}" for v in range(n)), edges)

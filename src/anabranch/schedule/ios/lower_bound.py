"""What no stages can beat: task times and shares -> for each state a lower bound of its cost.

For stages that cost what `ios.stage_cost` says, with one source a group. Three things are known of
all ways to run a state in stages:

    the longest groups of the stages follow each other   at least the longest path
    a stage takes no less than its work                  at least us times share, summed
    what is not in a longest group stands beside it      a fork for each such group, and none is
                                                         longer than the largest group there can be

    bound = min over m forks of  max(path, work, total - m * largest) + m * fork_us

    us a 4, b 3, c 3, no edges; share .3; fork .5      path 4, work 3, total 10, largest 4
    m 0: 10     m 1: max(4, 6) + .5     m 2: 4 + 1 = 5     bound 5, and {a | b | c} takes 5

Groups of at most r nodes make `largest` small, so that the bound rises with the pruning. It is
consistent: an ending takes at least what the bounds of the state with it and without it differ by.
All of this to rounding, for sums are made in another order than stages are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.ir.dag import Dag, bits

Bound = Callable[[int], float]
"""A state -> microseconds."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Of each node its microseconds and its work (microseconds times share); what a fork costs."""

    us: tuple[float, ...]
    work: tuple[float, ...]
    fork_us: float

    @staticmethod
    def of(us: Sequence[float], shares: Sequence[float], fork_us: float) -> Loads:
        """Times in microseconds and shares of the machine (0 to 1), a number each for every
        node."""
        work = tuple(time * share for time, share in zip(us, shares, strict=True))
        return Loads(tuple(us), work, fork_us)

    def spread(self, units: Sequence[int]) -> Loads:
        """Of units of nodes, as masks, that run one after another."""
        us = tuple(sum(self.us[v] for v in bits(unit)) for unit in units)
        return Loads(
            us, tuple(sum(self.work[v] for v in bits(unit)) for unit in units), self.fork_us
        )


def stage_bound(dag: Dag, loads: Loads, max_group_size: int | None = None) -> Bound:
    """The bound for states of the dag, under the pruning."""
    us, work, fork_us = loads.us, loads.work, loads.fork_us
    until = _paths(dag, us)
    largest = _largest_group(dag, us, max_group_size)
    sums = {0: (0.0, 0.0, 0.0)}

    def parts(state: int) -> tuple[float, float, float]:
        """Path, work and total. A state without its last node is one too."""
        missing = []
        while state not in sums:
            missing.append(state)
            state ^= 1 << state.bit_length() - 1
        triple = sums[state]
        for state in reversed(missing):
            path, area, total = triple
            v = state.bit_length() - 1
            triple = sums[state] = max(path, until[v]), area + work[v], total + us[v]
        return triple

    def bound(state: int) -> float:
        path, area, total = parts(state)
        least = max(path, area)
        if least >= total:
            return total
        forks = int((total - least) / largest)
        few = max(least, total - forks * largest) + forks * fork_us
        return min(total, few, least + (forks + 1) * fork_us)

    return bound


def _paths(dag: Dag, us: Sequence[float]) -> list[float]:
    """For each node the longest path that ends with it. A state has all of it or not the node."""
    until: list[float] = []
    for v, preds in enumerate(dag.preds):
        until.append(us[v] + max((until[u] for u in bits(preds)), default=0.0))
    return until


def _largest_group(dag: Dag, us: Sequence[float], size: int | None) -> float:
    """No group of one source and at most so many nodes takes longer."""
    longest = 0.0
    for v, after in enumerate(dag.descendants()):
        others = sorted((us[w] for w in bits(after)), reverse=True)
        longest = max(longest, us[v] + sum(others if size is None else others[: size - 1]))
    return longest

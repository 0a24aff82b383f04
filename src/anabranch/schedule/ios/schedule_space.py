"""The size of IOS's schedule space: a dag -> the row of Table 1 (MLSys 2021), counted exactly.

transitions: pairs of a state and an ending of it, what the dynamic programme looks at. schedules:
ways to cut the whole into stages, that is paths from all nodes to none. bound: the paper's limit
on transitions, ((n/d + 2)(n/d + 1) / 2)^d for n nodes of width d. Counted as the paper did, with
concurrent stages only, no pruning, one source a group; the exit node (concat, add) is a node.

         +--> 1 --+
    0 -->|        +--> 3 --+        SqueezeNet's fire with a bypass convolution:
         +--> 2 --+        +--> 5   n 6, d 3, bound 216, 12 states, 51 transitions, 131 schedules
    4 ---------------------+

>>> edges = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 5), (4, 5)]
>>> space(Dag.of(tuple("abcdef"), edges))
Space(nodes=6, width=3, bound=216, states=12, transitions=51, schedules=131)
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from anabranch.ir.dag import Dag, width
from anabranch.schedule.blocks import blocks
from anabranch.schedule.ios.endings import TooMany, endings, reaches, states

MOST_STEPS = 10_000_000
MOST_STATES = 300_000


@dataclass(frozen=True, slots=True)
class Space:
    """One block. `states` leaves the empty one out. Counts are None where there were too many."""

    nodes: int
    width: int
    bound: int
    states: int | None
    transitions: int | None
    schedules: int | None


def spaces(dag: Dag, most: int = MOST_STEPS) -> tuple[tuple[int, Space], ...]:
    """Each block of the dag as a mask, and its space; blocks of one node are left out."""
    masks = [mask for mask in blocks(dag, max_nodes=None) if mask.bit_count() > 1]
    return tuple((mask, space(dag.restrict(mask), most=most)) for mask in masks)


def space(
    dag: Dag,
    max_group_size: int | None = None,
    max_groups: int | None = None,
    most: int | None = MOST_STEPS,
) -> Space:
    """Count states, transitions and schedules; gives up above `most` transitions, or
    above `MOST_STATES` states, which are all in memory at once."""
    n, d = len(dag.names), width(dag)
    bound = most_transitions(n, d)
    try:
        all_states = states(dag, MOST_STATES if most is None else min(most, MOST_STATES))
    except TooMany:
        return Space(n, d, bound, None, None, None)
    reach = reaches(dag)
    ways = {0: 1}
    transitions = 0
    try:
        for state in all_states[1:]:
            left = None if most is None else most - transitions
            last = endings(reach, state, max_group_size, max_groups, left)
            transitions += len(last)
            ways[state] = sum([ways[state ^ ending] for ending in last])
    except TooMany:
        return Space(n, d, bound, len(all_states) - 1, None, None)
    return Space(n, d, bound, len(all_states) - 1, transitions, ways[all_states[-1]])


def most_transitions(nodes: int, width: int) -> int:
    """The paper's bound on the transitions of so many nodes of this width."""
    ratio = Fraction(nodes, max(width, 1))
    return round(((ratio + 2) * (ratio + 1) / 2) ** width)

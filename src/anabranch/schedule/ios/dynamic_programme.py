"""IOS's dynamic programme on one block: dag and stage costs -> the cheapest stages. Algorithm 1.

    cost[{}] = 0;   cost[S] = min over endings E of S of  cost[S - E] + stage_cost(groups of E)

States are visited smallest first instead of by recursion, so deep graphs are no matter, and
`stage_cost` is asked once for each distinct ending. With one source a group, as IOS's code has it,
pruning removes transitions but no state, since every last node alone is an ending.

A stage may also be *merged*: a set of nodes, all of them last ones of their state, that run as one
in so many microseconds (`merges`; convolutions of one input, IOS's operator merge). Pruning does
not concern merged stages, as in IOS's code, and of equal costs the merged stage is taken.

IOS's Fig. 5: a -> b, c alone; costs a .4, b .2, c .3, ab .6, b|c .4, a|c .7, ab|c .9

    cost[a] .4   cost[c] .3   cost[ab] .6   cost[ac] .7   cost[abc] = cost[a] + b|c = .8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from anabranch.deadline import ENDLESS, Deadline
from anabranch.errors import ScheduleError
from anabranch.ir.dag import Dag, bits
from anabranch.schedule.ios.endings import TooMany, endings, groups_of, reaches, states
from anabranch.schedule.ios.stage_cost import Groups, StageCost

NO_MERGES: Mapping[int, float] = {}
_SAMPLES = 48
_FEW_STATES = 4096
_ENDINGS = 16  # a state has more endings than this in all blocks that are hard: see Table 1


class OutOfTime(ScheduleError):
    """The deadline passed before the search was done."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The stages in order, each its groups as masks; their cost; how much was looked at. `merged`:
    those of the stages, of one node a group, whose nodes run as one."""

    stages: tuple[Groups, ...]
    us: float
    states: int
    transitions: int
    merged: frozenset[Groups] = frozenset()


def solve(
    dag: Dag,
    stage_cost: StageCost,
    max_group_size: int | None = None,
    max_groups: int | None = None,
    most: int | None = None,
    until: Deadline = ENDLESS,
    merges: Mapping[int, float] = NO_MERGES,
) -> Solution:
    """The cheapest stages under the pruning, the same for the same arguments. TooMany, early, if it
    would look at more than `most` transitions. OutOfTime when `until` is over. `merges`: sets of
    nodes that may be a stage as one, and its microseconds."""
    reach = reaches(dag)

    def last(state: int, most: int | None) -> list[int]:
        return endings(reach, state, max_group_size, max_groups, most)

    all_states = states(dag) if most is None else refuse_if_above(dag, most, last)
    latency: dict[int, float] = {}
    after = {mask: _after(reach, mask) for mask in merges}
    cost, choice = {0: 0.0}, dict[int, tuple[int, bool]]()
    transitions = 0
    for state in all_states[1:]:
        check_clock(until)
        best = float("inf")
        candidates = last(state, None)
        transitions += len(candidates)
        for mask in _ready(after, state):
            transitions += 1
            one_us = merges[mask] + cost[state ^ mask]
            if one_us < best:
                best, chosen = one_us, (mask, True)
        for ending in candidates:
            us = latency.get(ending)
            if us is None:
                us = latency[ending] = stage_cost(groups_of(reach, ending))
            us += cost[state ^ ending]
            if us < best:
                best, chosen = us, (ending, False)
        if best == float("inf"):
            raise no_finite_cost()
        cost[state], choice[state] = best, chosen
    stages, merged = list[Groups](), set[Groups]()
    rest = all_states[-1]
    while rest:
        ending, as_one = choice[rest]
        groups = tuple(1 << v for v in bits(ending)) if as_one else groups_of(reach, ending)
        stages.append(groups)
        if as_one:
            merged.add(groups)
        rest ^= ending
    looked = len(all_states) - 1, transitions
    return Solution(tuple(reversed(stages)), cost[all_states[-1]], *looked, frozenset(merged))


def _after(reach: Sequence[int], mask: int) -> int:
    """All that comes after one of the nodes."""
    later = 0
    for v in bits(mask):
        later |= reach[v] & ~(1 << v)
    return later


def _ready(after: Mapping[int, int], state: int) -> Iterator[int]:
    """The sets of which all nodes are last ones of the state."""
    return (mask for mask, later in after.items() if not (mask & ~state or later & state))


def check_clock(until: Deadline) -> None:
    """OutOfTime once the deadline is over."""
    if until.over():
        raise OutOfTime(
            "the scheduler ran out of time",
            "its deadline passed before the search was done",
            "raise the budget, or choose smaller max_groups and max_group_size",
        )


def no_finite_cost() -> ScheduleError:
    """What a programme raises that reaches the end by no finite cost."""
    return ScheduleError(
        "no stage has a finite cost",
        "every way to end this block was given an infinite cost",
        "give single nodes a finite cost",
    )


def refuse_if_above(dag: Dag, most: int, last: Callable[[int, int | None], list[int]]) -> list[int]:
    """The states, or TooMany: if there are many, or many transitions, as estimated from states at
    equal distances, so that a refusal costs little. `last`: a state's endings, up to a number."""
    all_states = states(dag, max(_FEW_STATES, most // _ENDINGS))
    sample = all_states[-1 :: -max(1, len(all_states) // _SAMPLES)]
    seen = 0
    for state in sample:
        seen += len(last(state, most))
        if seen * len(all_states) / len(sample) > most:
            raise TooMany
    return all_states

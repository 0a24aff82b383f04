"""IOS's dynamic programme, only where it can matter: dag, stage costs, a bound -> the same cost.

From the whole backwards: a state is reached by the endings taken off so far, which cost what they
cost; what is left costs no less than its bound. The state with the least sum is next, so that the
empty one, once it is next, was reached the cheapest way. All whose sum is above the answer is never
looked at (A*, Hart et al. 1968). No bound is above what it bounds, and none falls by more than an
ending costs, so no state is looked at twice. Sums that differ by rounding alone count as equal,
and of equal ones the state with the fewest late nodes is next; else all ties would be looked at.

                 so far + bound                   abc  0 + 7
    abc --> ab      3   +   4                     taken next: ab (7), then a (7), then nothing left
        --> a       5   +   2                     bc, with 6 + 3 = 9, is never taken further
        --> bc      6   +   3

On RandWire's third stage with r 3 and s 8 that is 400 states of 5,420 and 40,000 transitions of
774,186. Where the unpruned programme counts transitions as the paper does, nothing is left out:
`dynamic_programme.solve`.
"""

from __future__ import annotations

from heapq import heappop, heappush

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.dag import Dag, width
from anabranch.schedule.ios.dynamic_programme import (
    Solution,
    check_clock,
    no_finite_cost,
    refuse_if_above,
)
from anabranch.schedule.ios.endings import endings, groups_of, reaches
from anabranch.schedule.ios.lower_bound import Bound
from anabranch.schedule.ios.stage_cost import Groups, StageCost

INFINITE = float("inf")
DIGITS = 9  # of a microsecond


def solve_bounded(
    dag: Dag,
    stage_cost: StageCost,
    bound: Bound,
    max_group_size: int | None = None,
    max_groups: int | None = None,
    most: int | None = None,
    until: Deadline = ENDLESS,
) -> Solution:
    """The cheapest stages under the pruning, of one source a group; of several it may be others
    than `solve` finds. TooMany as there, by all transitions. `states` and `transitions` are those
    that were looked at."""
    reach = reaches(dag)
    if max_groups is not None and max_groups >= width(dag):
        max_groups = None  # groups of a stage are an antichain
    if most is not None:
        refuse_if_above(
            dag, most, lambda state, m: endings(reach, state, max_group_size, max_groups, m)
        )
    whole = (1 << len(dag.names)) - 1
    so_far, after = {whole: 0.0}, dict[int, int]()
    latency: dict[int, float] = {}
    queue, done = [(bound(whole), whole)], set[int]()
    answer, looked = INFINITE, 0
    while queue:
        _, state = heappop(queue)
        if state in done:
            continue
        if not state:
            return Solution(_stages(reach, after), so_far[0], len(done), looked)
        check_clock(until)
        done.add(state)
        us = so_far[state]
        candidates = endings(reach, state, max_group_size, max_groups)
        looked += len(candidates)
        for ending in [
            e for e in candidates if us + latency.get(e, 0.0) < so_far.get(state ^ e, INFINITE)
        ]:
            one_us = latency.get(ending)
            if one_us is None:
                one_us = latency[ending] = stage_cost(groups_of(reach, ending))
            rest, now = state ^ ending, us + one_us
            if now < so_far.get(rest, INFINITE):
                so_far[rest], after[rest] = now, state
                least = now + bound(rest)
                if least < answer:
                    answer = answer if rest else now
                    heappush(queue, (round(least, DIGITS), rest))
    raise no_finite_cost()


def _stages(reach: tuple[int, ...], after: dict[int, int]) -> tuple[Groups, ...]:
    """From the empty state on, each stage is what the next state has more."""
    stages: list[Groups] = []
    state = 0
    while state in after:
        stages.append(groups_of(reach, after[state] ^ state))
        state = after[state]
    return tuple(stages)

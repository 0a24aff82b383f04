"""Offers are tried in the plan, alone and together; only what is faster is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.tuning.test_joint_tasks import woven

from anabranch.ir.dag import dag_of
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.schedule.best import Choice
from anabranch.trace import Trace
from anabranch.tuning.build import BuiltPlan
from anabranch.tuning.horizontal.propose import Offer
from anabranch.tuning.horizontal.trial import ALONE, best, selection_of
from anabranch.tuning.joint_tasks import joint
from anabranch.tuning.select import Selection

SIX = woven([(0, 2), (1, 3), (2, 4), (3, 5)], 6)
"""Two chains: t0, t2, t4 and t1, t3, t5."""
STREAMS = Schedule("two", tuple(Launch(f"t{i}", i % 2) for i in range(6)))


@dataclass
class Machine:
    """A plan takes what `us` says of the names of its tasks and the number of its streams."""

    us: Callable[[frozenset[str], int], float]
    raced: list[int] = field(default_factory=list)

    def race(self, plans: Sequence[tuple[TaskGraph, Schedule]]) -> list[Cost]:
        self.raced.append(len(plans))
        for tasks, schedule in plans:
            verify_tasks(tasks)
            verify_schedule(schedule, dag_of(tasks))
        return [
            Cost(self.us(frozenset(task.name for task in tasks.tasks), s.streams), "measured")
            for tasks, s in plans
        ]


def made(machine: Machine, tasks: TaskGraph = SIX) -> BuiltPlan:
    selection = Selection(tasks, {task.name: () for task in tasks.tasks})
    rest: Any = (None, None, selection, Choice(STREAMS, ()), None, None, machine, True, Trace())
    return BuiltPlan(*rest)


def offer(*groups: str) -> Offer:
    """Each group by the numbers of its tasks: "01" for t0 and t1."""
    named = {task.name: task for task in SIX.tasks}
    members = tuple(tuple(named[f"t{number}"] for number in group) for group in groups)
    return Offer(members, tuple(map(joint, members)), (), True)


def names(group: str) -> str:
    return "_and_".join(f"t{number}" for number in group)


def always() -> float:
    return math.inf


def test_offers_that_pay_alone_are_tried_together() -> None:
    gains = {names("01"): 2.0, names("23"): 1.0, names("45"): -3.0}
    machine = Machine(lambda found, _: 20.0 - sum(us for n, us in gains.items() if n in found))
    trace = Trace()
    found = best(made(machine), [offer("01"), offer("23"), offer("45")], always, trace)
    assert found is not None
    assert {task.name for task in found.tasks.tasks} == {names("01"), names("23"), "t4", "t5"}
    assert [event.what for event in trace.events if event.kind == "refused"] == [names("45")]
    assert machine.raced[:2] == [1 + 1, 1 + 3]
    chosen = selection_of(made(machine), found)
    assert chosen.tasks is found.tasks
    assert chosen.candidates.keys() == {task.name for task in found.tasks.tasks}


def test_what_shares_tasks_with_a_better_one_is_left_out() -> None:
    machine = Machine(lambda found, _: 20.0 - 3 * (names("03") in found) - (names("01") in found))
    found = best(made(machine), [offer("01"), offer("03")], always, Trace())
    assert found is not None and [one.names for one in found.offers] == [names("03")]


def test_what_would_wait_in_a_circle_is_left_out() -> None:
    """t0 beside t3 and t1 beside t2: each would need the other first."""
    machine = Machine(lambda found, _: 20.0 - 3 * (names("03") in found) - (names("12") in found))
    found = best(made(machine), [offer("12"), offer("03")], always, Trace())
    assert found is not None and [one.names for one in found.offers] == [names("03")]
    circle = best(made(machine), [offer("03", "12")], always, Trace())
    assert circle is None


def test_together_they_may_do_without_streams() -> None:
    machine = Machine(lambda found, streams: 10.0 + len(found) + streams)
    found = best(made(machine), [offer("01"), offer("23"), offer("45")], always, Trace())
    assert found is not None and found.schedule.streams == 1
    assert len(found.tasks.tasks) == 3


def test_what_loses_alone_may_win_in_a_row() -> None:
    machine = Machine(lambda found, streams: 9.0 if streams == 1 else 12.0 - (len(found) == 6))
    found = best(made(machine), [offer("01"), offer("23"), offer("45")], always, Trace())
    assert found is not None and len(found.offers) == 3 and found.schedule.streams == 1


def test_none_is_taken_where_none_is_faster() -> None:
    trace = Trace()
    assert best(made(Machine(lambda *_: 20.0)), [offer("01"), offer("23")], always, trace) is None
    assert len(trace.events) == 2
    assert best(made(Machine(lambda *_: 20.0)), [], always, Trace()) is None


def test_pairs_that_are_slower_together_are_not_taken_together() -> None:
    """Each alone is faster by one, both are slower than none: one of them stays."""
    pair = {names("01"), names("23")}
    machine = Machine(lambda found, _: 20.0 + (3.0 if pair <= found else -len(pair & found)))
    found = best(made(machine), [offer("01"), offer("23")], always, Trace())
    assert found is not None and len(found.offers) == 1


def test_without_time_only_all_of_them_are_tried() -> None:
    machine = Machine(lambda found, _: 20.0 - (names("01") in found) - (names("23") in found))
    found = best(made(machine), [offer("01"), offer("23")], lambda: 0.0, Trace())
    assert found is not None and len(found.offers) == 2 and len(machine.raced) == 1


def test_where_timing_a_plan_takes_long_few_are_tried_alone() -> None:
    """One plan took two of twelve seconds: of the rest, a part is for as many as fit."""
    left = iter([12.0, 10.0, 0.0])
    machine = Machine(lambda found, _: 20.0 - (names("01") in found))
    several = [offer("01"), offer("23"), offer("45"), offer("03"), offer("12")] * 4
    assert best(made(machine), several, lambda: next(left), Trace()) is not None
    assert machine.raced[1] == 1 + int(ALONE * 10.0 / 2)

"""Results over values that nobody reads afterwards: which places are taken, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from anabranch.errors import VerifyError
from anabranch.ir.plan import Plan, Slot, text_plan
from anabranch.ir.schedule import Launch, Schedule
from anabranch.memory import pack
from anabranch.memory.guard_bytes import fence
from anabranch.memory.race_check import check_plan

ROWS = [("a", ("x",), 512), ("b", ("v",), 512), ("c", ("a",), 512), ("d", ("b", "c"), 512)]
"""`v` is a view of `a`, which b and c read."""
IN_A_ROW = tuple(Launch(name, 0) for name in "abcd")
OVER = {"b": ("a",), "c": ("a",), "d": ("b", "c")}


def plan_of(
    networks: Any, launches: tuple[Launch, ...] = IN_A_ROW, over: Any = OVER, outputs: Any = ("d",)
) -> Plan:
    tasks = networks.tasks(ROWS, outputs, {"v": "a"})
    tasks = networks.with_kernels(tasks, lambda i: {})
    plan: Plan = pack(tasks, Schedule("t", launches), networks.spec, overwritable=over)
    return plan


def over_of(plan: Plan) -> dict[str, str]:
    return {slot.value: slot.over for slot in plan.slots if slot.over}


def test_the_last_reader_writes_over_what_it_reads(networks: Any) -> None:
    plan = plan_of(networks)
    assert over_of(plan) == {"c": "a", "d": "b"}, "b is not the last who reads a"
    places = {slot.value: slot.offset for slot in plan.slots if slot.space == "arena"}
    assert places["c"] == places["a"] and places["d"] == places["b"] != places["a"]
    assert plan.arena_bytes == 2 * 1024 < plan_of(networks, over={}).arena_bytes == 3 * 1024
    assert "over %a" in text_plan(plan)


def test_no_place_is_taken_that_another_may_still_read(networks: Any) -> None:
    side_by_side = (Launch("a", 0), Launch("b", 1, ("a",)), Launch("c", 0), Launch("d", 0, ("b",)))
    assert over_of(plan_of(networks, side_by_side)) == {"d": "b"}
    assert over_of(plan_of(networks, outputs=("d", "a"))) == {"d": "b"}, "a is returned"
    assert over_of(plan_of(networks, over={"d": ("b",), "c": ("x",)})) == {"d": "b"}


def change(value: str, **fields: Any) -> Callable[[Plan], Plan]:
    def changed(slot: Slot) -> Slot:
        return replace(slot, **fields) if slot.value == value else slot

    return lambda plan: replace(plan, slots=tuple(map(changed, plan.slots)))


def launched(*launches: Launch) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, schedule=Schedule("t", launches))


WRONG = {
    "it does not say so": (change("c", over=""), "may still use"),
    "other bytes": (change("c", offset=4096), "outside the arena"),
    "other bytes inside": (change("c", offset=1024), "other bytes"),
    "never read": (change("d", over="a"), "other bytes"),
    "no such value": (change("c", over="z"), "arena"),
    "an input": (change("c", over="x"), "arena"),
    "read afterwards": (launched(*(Launch(n, 0) for n in "acbd")), "reads %a"),
    "read at the same time": (
        launched(Launch("a", 0), Launch("b", 1, ("a",)), Launch("c", 0), Launch("d", 0, ("b",))),
        "where b may still use a",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(networks: Any, name: str) -> None:
    mutate, why = WRONG[name]
    with pytest.raises(VerifyError, match=why):
        check_plan(mutate(plan_of(networks)))


def test_two_results_cannot_take_one_place(networks: Any) -> None:
    plan = plan_of(networks, over={"c": ("a",)})
    there = next(slot.offset for slot in plan.slots if slot.value == "a")
    with pytest.raises(VerifyError, match="reads %a"):
        check_plan(change("b", over="a", offset=there)(plan))


def test_a_value_is_named_that_its_task_does_not_read(networks: Any) -> None:
    plan = plan_of(networks, over={"c": ("a",)})
    there = next(slot.offset for slot in plan.slots if slot.value == "a")
    with pytest.raises(VerifyError, match="does not read"):
        check_plan(change("d", over="a", offset=there)(plan))


def test_between_fences_nothing_lies_over_anything(networks: Any) -> None:
    plan = fence(plan_of(networks))
    check_plan(plan)
    assert not over_of(plan)

"""The checker must catch every way in which a plan can be wrong; each test breaks one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from anabranch.errors import VerifyError
from anabranch.ir.graph import Ref
from anabranch.ir.plan import Plan, Signature, Slot, Workspace
from anabranch.ir.schedule import Launch, Schedule
from anabranch.memory import pack
from anabranch.memory.lifetime import before_masks, lifetimes, may_share
from anabranch.memory.race_check import check_plan

STREAMS = (
    Launch("a", 0),
    Launch("b", 1, ("a",)),
    Launch("c", 0),
    Launch("d", 1),
    Launch("e", 0, ("d",)),
    Launch("f", 0),
)


@pytest.fixture(name="plan")
def _plan(networks: Any) -> Plan:
    """Two branches from a; b's value comes from the pool, d has a workspace; v is a view of a."""
    rows = [
        ("a", ("x",), 512),
        ("b", ("a",), 512),
        ("c", ("v",), 512),
        ("d", ("b",), 512),
        ("e", ("c", "d"), 512),
        ("f", ("e", "b"), 512),
    ]
    tasks = networks.tasks(rows, ["f"], {"v": "a"})
    tasks = networks.with_kernels(
        tasks, lambda i: {"writes_out": i != 1, "workspace": 512 * (i == 3)}
    )
    plan: Plan = pack(tasks, Schedule("test", STREAMS), networks.spec)
    return plan


def move(value: str, **change: Any) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        slots = tuple(replace(s, **change) if s.value == value else s for s in plan.slots)
        return replace(plan, slots=slots)

    return mutate


def launch(task: str, **change: Any) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        launches = tuple(
            replace(item, **change) if item.task == task else item
            for item in plan.schedule.launches
        )
        return replace(plan, schedule=replace(plan.schedule, launches=launches))

    return mutate


def onto(value: str, other: str) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        place = {slot.value: slot.offset for slot in plan.slots}
        return move(value, offset=place[other])(plan)

    return mutate


def workspace_onto(other: str) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        place = {slot.value: slot.offset for slot in plan.slots}
        return replace(plan, workspaces=(Workspace("d", place[other], 512),))

    return mutate


def _place(plan: Plan, value: str) -> int:
    return next(slot.offset for slot in plan.slots if slot.value == value)


def order(*names: str) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        by_name = {item.task: item for item in plan.schedule.launches}
        launches = tuple(by_name[name] for name in names)
        return replace(plan, schedule=replace(plan.schedule, launches=launches))

    return mutate


MUTATIONS: dict[str, Callable[[Plan], Plan]] = {
    "d writes over a, which c may still read": onto("d", "a"),
    "e writes over what it reads": onto("e", "c"),
    "c and d side by side in the same bytes": onto("c", "d"),
    "f overwrites what it reads": onto("f", "e"),
    "d and c overlap in part": lambda plan: move("d", offset=_place(plan, "c") + 512)(plan),
    "workspace over a, while c may read": workspace_onto("a"),
    "workspace over the result of its own task": workspace_onto("d"),
    "offset not aligned": move("f", offset=8),
    "offset below the arena": move("f", offset=-512),
    "offset beyond the arena": move("f", offset=1 << 20),
    "too few bytes": move("c", nbytes=1000),
    "wrong space": move("c", space="pool"),
    "arena for a kernel that allocates": move("b", space="arena"),
    "an input in the arena": move("x", space="arena"),
    "early release": move("b", release="d"),
    "release where a reader on the other stream may run": move("b", release="e"),
    "release at a task that is not there": move("b", release="ghost"),
    "wait dropped: b before a": launch("b", waits=()),
    "wait dropped: e before d": launch("e", waits=()),
    "wait on a later launch": launch("a", waits=("e",)),
    "wait on nobody": launch("a", waits=("ghost",)),
    "launched twice": order("a", "b", "c", "d", "e", "f", "f"),
    "not launched": order("a", "b", "c", "d", "e"),
    "launched before its input": order("c", "a", "b", "d", "e", "f"),
    "arena too small": lambda plan: replace(plan, arena_bytes=512),
    "no workspace": lambda plan: replace(plan, workspaces=()),
    "workspace too small": lambda plan: replace(plan, workspaces=(Workspace("d", 0, 8),)),
    "workspace for nobody": lambda plan: replace(
        plan, workspaces=(*plan.workspaces, Workspace("ghost", 0, 8))
    ),
    "slot missing": lambda plan: replace(plan, slots=plan.slots[:-1]),
    "slot for nobody": lambda plan: replace(plan, slots=(*plan.slots, Slot("ghost", "arena"))),
    "slot twice": lambda plan: replace(plan, slots=(*plan.slots, plan.slots[-1])),
    "an output that does not survive": lambda plan: replace(
        plan, signature=Signature("", (), "", (), (("x", Ref("a")),))
    ),
}


def test_the_plan_is_right(plan: Plan) -> None:
    check_plan(plan)
    places = {slot.value: (slot.offset, slot.release) for slot in plan.slots}
    assert places["e"][0] == places["a"][0] or places["f"][0] == places["a"][0]
    assert places["b"][1] is None


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_caught(plan: Plan, mutation: str) -> None:
    broken = MUTATIONS[mutation](plan)
    assert broken != plan
    with pytest.raises(VerifyError):
        check_plan(broken)


def test_the_message_names_both_tasks_and_the_bytes(plan: Plan) -> None:
    with pytest.raises(VerifyError, match=r"d writes d to bytes \d+ to \d+, where [ac] may still"):
        check_plan(onto("d", "a")(plan))
    with pytest.raises(VerifyError, match=r"b reads %a from bytes .*, perhaps before a has"):
        check_plan(launch("b", waits=())(plan))


@pytest.mark.parametrize(
    ("offset", "said"),
    [(8, "is not aligned"), (-512, "lies outside"), (1024, "lies outside"), (0, None)],
)
def test_a_workspace_in_bytes_of_nobody_is_where_a_plan_may_have_one(
    plan: Plan, offset: int, said: str | None
) -> None:
    """Behind all values, where nothing else is wrong with it."""
    longer = replace(plan, arena_bytes=plan.arena_bytes + 1024)
    start = 0 if offset < 0 else plan.arena_bytes
    moved = replace(longer, workspaces=(Workspace("d", start + offset, 512),))
    if said is None:
        check_plan(moved)
        return
    with pytest.raises(VerifyError, match=said):
        check_plan(moved)


def test_the_pool_takes_back_on_the_stream_that_it_gave_on(networks: Any) -> None:
    """However surely all is over on another one."""
    rows = [("a", ("x",), 512), ("b", ("a",), 512), ("c", ("b",), 512), ("d", ("c",), 512)]
    tasks = networks.with_kernels(
        networks.tasks([*rows, ("e", ("d",), 512)], ["e"]), lambda i: {"writes_out": i != 1}
    )
    launches = (Launch("a", 0), Launch("b", 1, ("a",)), Launch("c", 1), Launch("d", 0, ("c",)))
    plan = pack(tasks, Schedule("test", (*launches, Launch("e", 1, ("d",)))), networks.spec)
    check_plan(move("b", release="e")(plan))
    with pytest.raises(VerifyError, match="released at d on another stream"):
        check_plan(move("b", release="d")(plan))


def test_a_value_that_is_never_released_excuses_no_other(networks: Any) -> None:
    """Every value of the pool is looked at, whatever comes before it."""
    rows = [("a", ("x",), 512), ("b", ("a",), 512), ("c", ("b",), 512), ("d", ("c",), 512)]
    tasks = networks.with_kernels(
        networks.tasks([*rows, ("e", ("d",), 512)], ["e"]),
        lambda i: {"writes_out": i not in (1, 2)},
    )
    launches = tuple(Launch(name, 0) for name in "abcde")
    plan = pack(tasks, Schedule("test", launches), networks.spec)
    kept = move("b", release=None)(plan)
    check_plan(kept)
    assert [s.value for s in kept.slots if s.space == "pool"] == ["b", "c"]
    with pytest.raises(VerifyError, match="%c is released at no task: ghost"):
        check_plan(move("c", release="ghost")(kept))


def test_the_checker_agrees_with_the_rule_of_the_packer(networks: Any) -> None:
    """The checker and the packer's own rule are written apart: they must agree on plans in which
    a value has been moved onto another one."""
    caught = 0
    for seed in range(60):
        tasks = networks.chance(seed, 12)
        plan = pack(tasks, networks.shuffled(tasks, seed, 3), networks.spec)
        names = [slot.value for slot in plan.slots if slot.space == "arena" and slot.nbytes]
        if len(names) < 2:
            continue
        broken = onto(names[seed % len(names)], names[(seed * 7 + 1) % len(names)])(plan)
        broken = replace(broken, arena_bytes=broken.arena_bytes + (1 << 18))
        try:
            check_plan(broken)
            accepted = True
        except VerifyError:
            accepted = False
            caught += 1
        assert accepted == _safe(broken)
    assert caught > 20


def _safe(plan: Plan) -> bool:
    """Every pair of values that share bytes may do so, as the packer sees it."""
    before = before_masks(plan.schedule)
    place = {slot.value: slot for slot in plan.slots}
    values = lifetimes(plan.tasks, plan.schedule)
    for i, a in enumerate(values):
        for b in values[:i]:
            s, t = place[a.value], place[b.value]
            overlap = max(s.offset, t.offset) < min(s.offset + s.nbytes, t.offset + t.nbytes)
            if overlap and not may_share(a, b, before):
                return False
    return True

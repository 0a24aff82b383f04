"""Elided concats in plans: one buffer, several writers. The checker must catch each mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fusion.elided_concats import CPU, forced, networks

from anabranch.errors import VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan, SpaceName
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.text import parse_graph
from anabranch.memory import pack
from anabranch.memory.guard_bytes import fence
from anabranch.memory.lifetime import before_masks, lifetimes, may_share
from anabranch.memory.race_check import check_plan

GRAPH = parse_graph("""
graph g {
  input %x: f32[1,256]
  %o: f32[1,256] = aten.relu.default(%x)
  %m: f32[1,256] = aten.exp.default(%o)
  %p: f32[1,256] = aten.tanh.default(%m)
  %q: f32[1,256] = aten.neg.default(%x)
  %cat: f32[1,512] = aten.cat.default([%p, %q], 1)
  %s: f32[1,256] = aten.exp.default(%p)
  %r: f32[1,512] = aten.sigmoid.default(%cat)
  %z: f32[1,512] = aten.exp.default(%r)
  return %s, %z
}""")
TASKS = forced(GRAPH)
STREAMS = (
    Launch("o", 0),
    Launch("m", 0),
    Launch("p", 0),
    Launch("q", 1),
    Launch("s", 2, ("p",)),
    Launch("r", 0, ("q",)),
    Launch("z", 0),
)
PLAN = pack(TASKS, Schedule("test", STREAMS), CPU.spec)


def moved(plan: Plan, value: str, other: str) -> Plan:
    place = {slot.value: slot.offset for slot in plan.slots}
    slots = (replace(s, offset=place[other]) if s.value == value else s for s in plan.slots)
    return replace(plan, slots=tuple(slots), arena_bytes=plan.arena_bytes + 4096)


def waits(task: str, *names: str, stream: int | None = None) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        launches = tuple(
            replace(item, waits=names, stream=item.stream if stream is None else stream)
            if item.task == task
            else item
            for item in plan.schedule.launches
        )
        return replace(plan, schedule=replace(plan.schedule, launches=launches))

    return mutate


def space(value: str, name: SpaceName) -> Callable[[Plan], Plan]:
    def mutate(plan: Plan) -> Plan:
        slots = (replace(s, space=name) if s.value == value else s for s in plan.slots)
        return replace(plan, slots=tuple(slots))

    return mutate


def allocating(plan: Plan) -> Plan:
    tasks = tuple(
        replace(t, kernel=replace(t.kernel, writes_out=t.name != "p")) if t.kernel else t
        for t in plan.tasks.tasks
    )
    return replace(plan, tasks=replace(plan.tasks, tasks=tasks))


MUTATIONS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "one part is not waited for": (waits("r"), "r reads %cat .* perhaps before q"),
    "a reader of a part does not wait": (waits("s"), "s reads %p .* perhaps before p"),
    "q may write while m reads what was there": (
        lambda plan: moved(plan, "cat", "o"),
        "q writes q .* where o may still use",
    ),
    "z overwrites what s may read": (
        lambda plan: moved(plan, "z", "cat"),
        "z writes z .* where s may still use cat",
    ),
    "a part with memory of its own": (space("p", "arena"), "belongs in part"),
    "a whole without memory": (space("cat", "part"), "belongs in arena"),
    "a kernel that allocates": (allocating, "does not write into memory it is given"),
}


def test_the_plan_is_right() -> None:
    check_plan(PLAN)
    check_plan(fence(PLAN))
    (life,) = [life for life in lifetimes(TASKS, PLAN.schedule) if life.value == "cat"]
    assert (life.writer, life.later, life.touches) == (2, (3,), 0b0111100)
    assert {life.value for life in lifetimes(TASKS, PLAN.schedule)} == set("omsrz") | {"cat"}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_each_mutation_is_caught(mutation: str) -> None:
    change, said = MUTATIONS[mutation]
    with pytest.raises(VerifyError, match=said):
        check_plan(change(fence(PLAN)))


def test_with_one_more_wait_the_bytes_may_be_shared() -> None:
    check_plan(moved(waits("q", "m")(fence(PLAN)), "cat", "o"))


LARGE = parse_graph("""
graph large {
  input %x: f32[1,2048]
  %o: f32[1,2048] = aten.relu.default(%x)
  %m: f32[1,1] = aten.mean.dim(%o, [1], True)
  %p: f32[1,2048] = aten.add.Tensor(%x, %m)
  %q: f32[1,2048] = aten.neg.default(%x)
  %cat: f32[1,4096] = aten.cat.default([%p, %q], 1)
  %r: f32[1,1] = aten.mean.dim(%cat, [1], True)
  return %r
}""")


def test_where_memory_is_short_every_writer_waits() -> None:
    launches = (
        Launch("o", 0),
        Launch("m", 0),
        Launch("p", 0),
        Launch("q", 1),
        Launch("r", 0, ("q",)),
    )
    loose = pack(forced(LARGE), Schedule("test", launches), CPU.spec)
    assert loose.arena_bytes > 24 << 10
    tight = pack(forced(LARGE), Schedule("test", launches), CPU.spec, limit_bytes=20 << 10)
    assert tight.arena_bytes <= 20 << 10
    assert {launch.task: launch.waits for launch in tight.schedule.launches}["q"] == ("m",)


@given(graph=networks(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_checker_agrees_with_the_rule_of_the_packer(graph: Graph, data: st.DataObject) -> None:
    tasks = forced(graph)
    streams = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=8))
    dag = dag_of(tasks)
    of = {name: streams[i % len(streams)] for i, name in enumerate(dag.names)}
    before = {
        dag.names[v]: [dag.names[u] for u, w in dag.edges() if w == v] for _, v in dag.edges()
    }
    launches = (Launch(n, of[n], tuple(u for u in before.get(n, ()) if of[u] != of[n])) for n in of)
    plan = fence(pack(tasks, Schedule("random", tuple(launches)), CPU.spec))
    lives = {life.value: life for life in lifetimes(tasks, plan.schedule)}
    held = [slot.value for slot in plan.slots if slot.space == "arena"]  # a pool is the allocator's
    if not held:
        return
    one, other = (data.draw(st.sampled_from(sorted(held))) for _ in range(2))
    read = {name for task in tasks.tasks for name in task.reads} | {r.name for r in tasks.outputs}
    unread = {value for value, life in lives.items() if life.later and value not in read}
    if one == other or unread & {one, other}:
        return  # of a concat that nobody reads as a whole, the checker knows which bytes are idle
    check_plan(plan)
    allowed = may_share(lives[one], lives[other], before_masks(plan.schedule))
    broken = moved(plan, one, other)
    broken = replace(broken, arena_bytes=broken.arena_bytes + (1 << 20))
    try:
        check_plan(broken)
    except VerifyError:
        assert not allowed
    else:
        assert allowed

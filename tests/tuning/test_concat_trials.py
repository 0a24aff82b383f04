"""Elided concats are tried: with the kernels that were fast, by costs that are given here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from anabranch.artifact import reading, schema
from anabranch.costs.roofline import Roofline
from anabranch.fusion import partition
from anabranch.fusion.concat_elision import CAT
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost, Provider
from anabranch.ir.refused import Refused
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_tasks
from anabranch.kernels import ALL
from anabranch.memory import pack
from anabranch.trace import Trace
from anabranch.tuning.concat_trials import with_elided_concats
from anabranch.tuning.select import Check, Selection, SelectionConfig, select

SPEC = TargetSpec("cuda", "a GPU", sms=132, capability=(9, 0), simulated=True)
PROVIDED: tuple[Provider, ...] = ALL
FIRE = parse_graph("""
graph fire {
  input %x: f16[1,16,54,54]{46656,1,864,16}
  const %w: f16[64,16,1,1] = w
  const %v: f16[64,16,3,3]{144,1,48,16} = v
  %small: f16[1,64,54,54]{186624,1,3456,64} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %left: f16[1,64,54,54]{186624,1,3456,64} = aten.relu.default(%small)
  %large: f16[1,64,54,54]{186624,1,3456,64} = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %right: f16[1,64,54,54]{186624,1,3456,64} = aten.relu.default(%large)
  %cat: f16[1,128,54,54]{373248,1,6912,128} = aten.cat.default([%left, %right], 1)
  %next: f16[1,128,54,54]{373248,1,6912,128} = aten.sigmoid.default(%cat)
  return %next
}""")  # noqa: E501
ROWS = parse_graph("""
graph rows {
  input %x: f16[64,64]
  input %y: f16[32,64]
  %left: f16[64,64] = aten.relu.default(%x)
  %right: f16[32,64] = aten.tanh.default(%y)
  %sum: f16[32,64] = aten.sub.Tensor(%right, %y)
  %cat: f16[96,64] = aten.cat.default([%left, %right])
  %next: f16[96,64] = aten._softmax.default(%cat, 1, False)
  return %next, %sum
}""")
WIDE = "{373248,1,6912,128}"


class Given(Roofline):
    """Costs that a function of the task says, all measured."""

    def __init__(self, us: Callable[[Task, Kernel], float], failing: bool = False) -> None:
        super().__init__(SPEC)
        self.us, self.failing = us, failing
        self.tried: list[Task] = []

    def task(self, task: Task) -> Cost:
        assert task.kernel is not None
        return Cost(self.us(task, task.kernel), "measured")

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        self.tried += tasks
        return [None if self.failing and strided(task) else self.task(task) for task in tasks]


def strided(task: Task) -> bool:
    return task.writes[0] in ("left", "right") and WIDE in task.body.nodes[-1].type.text


def us(task: Task, kernel: Kernel) -> float:
    """Generated kernels take 2 us, their variants a little more each, cuDNN 1.9 us but 5 us into a
    slice, ATen 4 us, a concatenation 1.5 us."""
    if task.body.nodes[0].op == CAT:
        return 1.5
    if kernel.provider == "cudnn":
        return 5.0 if strided(task) else 1.9
    return 4.0 if kernel.provider == "aten" else 2.0 + len(str(kernel.variant)) / 100


def chosen_by(costs: Given, check: Check = lambda task: None) -> SelectionConfig:
    return SelectionConfig(SPEC, PROVIDED, costs.trial, check)


def selected(costs: Given, graph: Graph = FIRE) -> Selection:
    tasks = partition(graph, Trace(), SPEC)
    return select(tasks, chosen_by(costs), Trace())


def tried(costs: Given, trace: Trace, check: Check = lambda task: None) -> Selection:
    found = selected(costs)
    return with_elided_concats(found, chosen_by(costs, check), costs, trace)


def test_a_join_takes_generated_kernels_instead_of_the_librarys() -> None:
    trace, costs = Trace(), Given(us)
    was = {t.name: t.kernel.provider for t in selected(costs).tasks.tasks if t.kernel}
    assert was == {"small": "cudnn", "large": "cudnn", "cat": "aten", "next": "triton"}
    found = tried(costs, trace)
    verify_tasks(found.tasks)
    kernels = {task.name: task.kernel for task in found.tasks.tasks if task.kernel}
    assert {n: k.provider for n, k in kernels.items()} == dict.fromkeys(
        ("small", "large", "next"), "triton"
    )
    assert [node.name for node in found.tasks.elided_concats] == ["cat"]
    assert found.candidates.keys() == kernels.keys()
    assert WIDE in kernels["small"].body.nodes[-1].type.text
    (event,) = [e for e in trace.events if e.what == "cat"]
    assert event.kind == "applied" and "with the concatenation" in event.why


def test_few_kernels_are_tried_again() -> None:
    costs = Given(us)
    tried(costs, Trace())
    for name in ("small", "large"):
        again = [t.kernel for t in costs.tried if strided(t) and t.name == name]
        by = {k.provider: [x for x in again if x and x.provider == k.provider] for k in again if k}
        assert {p: len(ks) for p, ks in by.items()} == {"cudnn": 3, "triton": 3, "aten": 2}
        assert all(kernel is not None and kernel.writes_out for kernel in again)


def test_rows_below_each_other_keep_their_strides_and_get_kernels_all_the_same() -> None:
    costs = Given(us)
    found = selected(costs, ROWS)
    found = with_elided_concats(found, chosen_by(costs), costs, Trace())
    verify_tasks(found.tasks)
    assert [node.name for node in found.tasks.elided_concats] == ["cat"]
    kernels = {task.name: task.kernel for task in found.tasks.tasks if task.kernel}
    assert kernels.keys() == {task.name for task in found.tasks.tasks}
    assert all(kernels[name].writes_out for name in ("left", "right") if name in kernels)


def slow(task: Task, kernel: Kernel) -> float:
    return us(task, kernel) + 0.8 * strided(task)


def slower(task: Task, kernel: Kernel) -> float:
    """Whatever writes where it is told loses more than the concatenation takes."""
    if kernel.writes_out and task.body.nodes[0].op != CAT:
        return 6.0
    return us(task, kernel)


@pytest.mark.parametrize(
    ("costs", "check", "why"),
    [
        (Given(slow), "", ">="),
        (Given(slower), "", "where they are told lose"),
        (Given(us, failing=True), "", "no kernel runs"),
        (Given(us), "error 1 where 0 is allowed", "no kernel runs"),
    ],
)
def test_what_does_not_pay_stays_a_task(costs: Given, check: str, why: str) -> None:
    trace = Trace()
    plain = selected(costs)

    def refuse(task: Task) -> Refused | None:
        return Refused(check) if check and strided(task) else None

    found = with_elided_concats(plain, chosen_by(costs, refuse), costs, trace)
    assert found is plain
    assert [e.why for e in trace.events if e.kind == "refused" and e.what == "cat"][-1].count(why)


def test_a_plan_with_elided_concats_is_written_and_read() -> None:
    tasks = tried(Given(us), Trace()).tasks
    plan = pack(tasks, Schedule("sequential", sequential_launches(dag_of(tasks))), SPEC)
    spaces = {slot.value: slot.space for slot in plan.slots}
    assert (spaces["left"], spaces["right"], spaces["cat"]) == ("part", "part", "arena")
    written = schema.write(plan, {})
    again, _ = reading.read(written.text.encode(), written.sources, written.tensors)
    assert again == plan
    former = written.text.replace('"elided_concats":', '"joins":')
    assert former != written.text
    again, _ = reading.read(former.encode(), written.sources, written.tensors)
    assert again == plan


GROWING = parse_graph("""
graph growing {
  input %x: f16[1,16,54,54]{46656,1,864,16}
  const %w: f16[64,16,1,1] = w
  const %v: f16[64,16,3,3]{144,1,48,16} = v
  const %u: f16[64,128,1,1] = u
  %left: f16[1,64,54,54]{186624,1,3456,64} = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %right: f16[1,64,54,54]{186624,1,3456,64} = aten.convolution.default(%x, %v, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %cat: f16[1,128,54,54]{373248,1,6912,128} = aten.cat.default([%left, %right], 1)
  %last: f16[1,64,54,54]{186624,1,3456,64} = aten.convolution.default(%cat, %u, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %more: f16[1,192,54,54]{559872,1,10368,192} = aten.cat.default([%left, %right, %last], 1)
  %next: f16[1,192,54,54]{559872,1,10368,192} = aten.sigmoid.default(%more)
  return %next
}""")  # noqa: E501


@pytest.mark.parametrize("last", [2.0, 20.0])
def test_one_that_cannot_write_a_slice_takes_only_the_outermost_with_it(last: float) -> None:
    def us_of(task: Task, kernel: Kernel) -> float:
        if kernel.writes_out and task.name == "last":
            return last
        return us(task, kernel)

    costs, trace = Given(us_of), Trace()
    found = with_elided_concats(selected(costs, GROWING), chosen_by(costs), costs, trace)
    elided = [(node.name, node.uses) for node in found.tasks.elided_concats]
    assert elided == [("cat", ("left", "right")), ("more", ("cat", "last"))][: 1 + (last < 3.0)]

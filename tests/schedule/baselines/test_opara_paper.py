from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from anabranch.ir import ops
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Costs, Limits, Scheduler
from anabranch.ir.schedule import text_schedule
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.baselines import opara
from anabranch.schedule.baselines.opara_paper import (
    MEMORY,
    UNKNOWN,
    computes,
    demand,
    schedule,
    schedule_depth,
    schedule_traced,
)
from anabranch.trace import Trace

TasksOf = Callable[[Dag], TaskGraph]
CostsOf = Callable[[], Costs]


def test_the_docstring(tasks_of: TasksOf, fake_costs: CostsOf) -> None:
    """
         +--> b --+
    x -->|        +--> d      demand b 9, c 2; d waits for the other stream
         +--> c --+
    """
    tasks = _changed(tasks_of(Dag.of(tuple("bcd"), [(0, 2), (1, 2)])), {"b": 9, "c": 2}, "bcd")
    found = schedule(tasks, fake_costs(), Limits())
    assert text_schedule(found) == ("schedule opara-paper {\n  c @0\n  b @1\n  d @1 after c\n}\n")


def test_other_launch_orders_with_the_same_streams(tasks_of: TasksOf, fake_costs: CostsOf) -> None:
    """
    A --> b --+             traced    a c b d: in their own order
              +--> d        depth     a b c d: what is behind a comes before c
    c --------+
    """
    dag = Dag.of(tuple("acbd"), [(0, 2), (2, 3), (1, 3)])
    tasks = _changed(tasks_of(dag), {}, "acbd")
    orders = [made(tasks, fake_costs(), Limits()) for made in (schedule_traced, schedule_depth)]
    assert [launch.task for launch in orders[0].launches] == list("acbd")
    assert [launch.task for launch in orders[1].launches] == list("abcd")
    for found in orders:
        streams = {launch.task: launch.stream for launch in found.launches}
        assert streams["a"] == streams["b"] != streams["c"]


def test_the_turn_changes_with_every_launch() -> None:
    """m1 -> c4; m0 and m2 move memory, c3 and c4 compute. The third turn is compute's, which has
    nothing; the fourth is memory's all the same, so that c4 waits for m2."""
    dag = Dag.of(("m0", "m1", "m2", "c3", "c4"), [(1, 4)])
    compute = [name.startswith("c") for name in dag.names]
    assert opara.launch_order(dag, [0] * 5, compute, by_count=True) == [3, 0, 1, 2, 4]
    assert opara.launch_order(dag, [0] * 5, compute) == [3, 0, 1, 4, 2]


def test_least_demand_first_then_first_come() -> None:
    dag = Dag.of(tuple("abcdef"), [])
    order = partial(opara.launch_order, dag, by_count=True)
    assert order([2, UNKNOWN, 1, 1, UNKNOWN, 0], [True] * 6) == [5, 2, 3, 0, 1, 4]
    assert order([UNKNOWN] * 6, [False] * 6) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("resources", "found"),
    [
        (Resources(1, 128, 32, 24576), 0.5),
        (Resources(9999, 1024, 255, 24576), 0.5),
        (Resources(1, 128, 32, 0), 0.0),
        (Resources(1, 128, 32, 98304), UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_demand_is_the_shared_memory_of_a_cta(
    diamond: Dag, tasks_of: TasksOf, resources: Resources | None, found: float
) -> None:
    """On a GPU where a CTA has 48 KiB without asking for more."""
    task = tasks_of(diamond).tasks[0]
    assert isinstance(task.kernel, Kernel)
    assert demand(replace(task, kernel=replace(task.kernel, resources=resources))) == found
    assert demand(replace(task, kernel=None)) == UNKNOWN


def test_what_is_not_in_the_table_computes(diamond: Dag, tasks_of: TasksOf) -> None:
    task = tasks_of(diamond).tasks[0]
    for op, found in (
        ("aten.relu.default", False),
        ("aten.cat.default", False),
        ("aten.view.default", False),
        ("aten.convolution.default", True),
        ("aten.softmax.int", True),
        ("aten.embedding.default", True),
        ("aten.mul.Tensor", True),
    ):
        assert computes(_as(task, op)) == found, op
    assert not any(ops.OPS.get(name, ops.OPAQUE).kind == "contract" for name in MEMORY)


def test_inputs_take_turns_and_begin_streams(tasks_of: TasksOf, fake_costs: CostsOf) -> None:
    """Node b adds the input x to a; it names x first, whose stream nobody has claimed.

    x -+-> b        a is a constant's relu
    a -+
    """
    tasks = tasks_of(Dag.of(("a", "b"), [(0, 1)]))
    first = replace(tasks.tasks[0], body=replace(tasks.tasks[0].body, inputs=()))
    second = replace(
        tasks.tasks[1],
        body=replace(tasks.tasks[1].body, inputs=(tasks.inputs[0], *tasks.tasks[1].body.inputs)),
    )
    found = schedule(replace(tasks, tasks=(first, second)), fake_costs(), Limits())
    assert [(launch.stream, launch.waits) for launch in found.launches] == [(0, ()), (1, ("a",))]


def test_every_edge_between_streams_is_a_wait(tasks_of: TasksOf, fake_costs: CostsOf) -> None:
    """Seven edges over four streams at most; some of them follow from others."""
    dag = Dag.of(tuple("abcde"), [(0, 1), (0, 2), (1, 3), (2, 3), (0, 4), (2, 4), (3, 4)])
    tasks = tasks_of(dag)
    found = schedule(tasks, fake_costs(), Limits())
    verify_schedule(found, dag_of(tasks))
    stream = {launch.task: launch.stream for launch in found.launches}
    edges = {(dag.names[u], dag.names[v]) for u, v in dag.edges()}
    waits = {(wait, launch.task) for launch in found.launches for wait in launch.waits}
    assert waits == {(u, v) for u, v in edges if stream[u] != stream[v]}
    assert len(waits) > opara.schedule(tasks, fake_costs(), Limits()).waits


@pytest.mark.parametrize("make", [schedule, opara.schedule])
def test_a_schedule_that_lacks_demands_says_so(
    diamond: Dag, tasks_of: TasksOf, fake_costs: CostsOf, make: Scheduler
) -> None:
    """Once, with the number of tasks; and nothing where all are known."""
    tasks, trace = tasks_of(diamond), Trace()
    name = make(tasks, fake_costs(), Limits(trace=trace)).scheduler
    assert not trace.events
    first, second, *others = tasks.tasks
    assert first.kernel is not None
    lacking = replace(first, kernel=replace(first.kernel, resources=None))
    tasks = replace(tasks, tasks=(lacking, replace(second, kernel=None), *others))
    make(tasks, fake_costs(), Limits(trace=trace))
    (event,) = trace.events
    assert (event.kind, event.where) == ("refused", "schedule") and event.what.startswith(name)
    assert event.why.startswith("what 2 of 4 kernels take is not known")


def test_googlenet_takes_28_streams(googlenet: Dag, tasks_of: TasksOf, fake_costs: CostsOf) -> None:
    """1 + 9 modules x 3 more branches, and `max_streams` means nothing to it."""
    assert schedule(tasks_of(googlenet), fake_costs(), Limits(max_streams=2)).streams == 28


def _changed(tasks: TaskGraph, shared: dict[str, int], compute: str) -> TaskGraph:
    """Other shared memory, and convolutions by name where something computes."""
    changed = []
    for task in tasks.tasks:
        assert isinstance(task.kernel, Kernel) and task.kernel.resources is not None
        resources = replace(task.kernel.resources, shared=shared.get(task.name, 0))
        named = _as(task, "aten.mm.default") if task.name in compute else task
        changed.append(replace(named, kernel=replace(task.kernel, resources=resources)))
    return replace(tasks, tasks=tuple(changed))


def _as(task: Task, op: str) -> Task:
    """The task with its last node doing something else, as far as its name says."""
    nodes = (*task.body.nodes[:-1], replace(task.body.nodes[-1], op=op))
    return replace(task, body=replace(task.body, nodes=nodes))

"""The small graphs: legal, packed, runnable, and of the shape that they say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from anabranch.bench.experiments import Experiment, copies, fork_join, lone, pair, steps, tiny
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.key import task_key
from anabranch.ir.schedule import happens_before
from anabranch.ir.task import Task
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_schedule, verify_tasks
from anabranch.kernels.library import aten_kernel
from anabranch.memory import pack
from anabranch.targets.cpu.target import CpuTarget


def linear(name: str = "fc", width: int = 4) -> Task:
    value = torch.ones(width, width)
    x, w = TensorType((2, width), torch.float32), TensorType((width, width), torch.float32)
    node = Node(name, "aten.linear.default", (Ref("x"), Ref("w")), (), (x,))
    body = Graph(name, (Input("x", x),), (Constant("w", w, "d", value),), (node,), (Ref(name),))
    return Task(name, body, aten_kernel("aten", body))


CASES: dict[str, Callable[[], Experiment]] = {
    "copies": lambda: copies(linear(), 30.0),
    "pair": lambda: pair(linear(), 9.0, linear("other", 6), 21.0),
    "steps": lambda: steps(tiny(CpuTarget().spec)[0], "tiny"),
}


@pytest.mark.parametrize("case", CASES)
def test_every_schedule_runs_and_computes_what_the_task_does(case: str) -> None:
    experiment, target = CASES[case](), CpuTarget()
    verify_tasks(experiment.tasks)
    dag = dag_of(experiment.tasks)
    for schedule in experiment.schedules:
        verify_schedule(schedule, dag)
        run = target.load(pack(experiment.tasks, schedule, target.spec))
        given = [torch.randn(value.type.shape) for value in experiment.tasks.inputs]
        last = experiment.tasks.tasks[-1]
        x = given[[value.name for value in experiment.tasks.inputs].index(last.reads[0])]
        expected = torch.relu(x) if case == "steps" else x @ torch.ones(x.shape[1], x.shape[1])
        torch.testing.assert_close(run(given)[0], expected)


@pytest.mark.parametrize("case", CASES)
def test_copies_are_timed_as_their_original(case: str) -> None:
    experiment = CASES[case]()
    for copy, original in zip(experiment.tasks.tasks, experiment.originals, strict=True):
        assert task_key(copy) == task_key(original)


def test_neighbours_share_nothing_and_sets_are_few() -> None:
    experiment = copies(linear(), 1.0)
    assert len(experiment.tasks.tasks) == 40
    weights = [task.body.constants[0].name for task in experiment.tasks.tasks]
    assert len(set(weights[:8])) == 8 and len(set(weights)) == 8
    values = {c.value.data_ptr() for c in experiment.tasks.constants if c.value is not None}
    assert len(values) == 8
    assert [schedule.streams for schedule in experiment.schedules] == [1, 2, 4, 8]


def test_the_chains_of_a_pair_take_as_long() -> None:
    experiment = CASES["pair"]()
    names = [original.name for original in experiment.originals]
    assert (names.count("fc"), names.count("other")) == (2, 1)
    assert [schedule.streams for schedule in experiment.schedules] == [1, 2]


def test_forks_and_joins() -> None:
    """Of ten: a, then b and c, then d that waits for both, then e and f, g, h and i, j.

    a --+--> b --+--> d --+--> e ...
        +--> c --+        +--> f
    """
    names = list("abcdefghij")
    schedule = fork_join(names, 2, 1)
    before = happens_before(schedule)
    assert [before[name].bit_count() for name in names] == [0, 1, 1, 3, 4, 4, 6, 7, 7, 9]
    assert schedule.launches[3].waits == ("c",)
    deep = fork_join(names, 2, 2)
    before = happens_before(deep)
    assert [before[name].bit_count() for name in names] == [0, 1, 1, 2, 2, 5, 6, 6, 7, 7]


def test_a_lone_task() -> None:
    assert len(lone(linear()).tasks) == 1
    assert isinstance(CASES["steps"](), Experiment)

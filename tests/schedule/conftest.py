"""Graphs of the papers, random graphs, and what stands in for tasks and their costs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, bits, parse_dag
from anabranch.ir.graph import Graph, Input, Node, Ref
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Cost, Probe
from anabranch.ir.schedule import Schedule, Span, Timeline
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.types import TensorType

TYPE = TensorType((4,), torch.float32)


@pytest.fixture(scope="session")
def dags() -> SearchStrategy[Dag]:
    return random_dags()


@st.composite
def random_dags(draw: st.DrawFn, max_nodes: int = 10) -> Dag:
    n = draw(st.integers(1, max_nodes))
    pairs = [(u, v) for v in range(n) for u in range(v)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return Dag.of(tuple(f"n{i}" for i in range(n)), edges)


@pytest.fixture(scope="session")
def tasks_of() -> Callable[[Dag], TaskGraph]:
    """A task graph with the dag's dependencies: each task adds up what it reads."""
    return _tasks


def _tasks(dag: Dag) -> TaskGraph:
    tasks = []
    for name, preds in zip(dag.names, dag.preds, strict=True):
        reads = [dag.names[u] for u in bits(preds)] or ["x"]
        nodes, total = [], reads[0]
        for i, read in enumerate(reads[1:]):
            part = f"{name}_{i}"
            nodes.append(Node(part, "aten.add.Tensor", (Ref(total), Ref(read)), (), (TYPE,)))
            total = part
        nodes.append(Node(name, "aten.relu.default", (Ref(total),), (), (TYPE,)))
        inputs = tuple(Input(read, TYPE) for read in reads)
        body = Graph(name, inputs, (), tuple(nodes), (Ref(name),))
        resources = Resources(66 * len(reads), 128, 32, 1024 * len(reads))
        tasks.append(Task(name, body, Kernel("fake", "add", body, resources=resources)))
    outputs = tuple(
        Ref(name) for name, succs in zip(dag.names, dag.succs, strict=True) if not succs
    )
    return TaskGraph("net", (Input("x", TYPE),), (), tuple(tasks), (), outputs)


@pytest.fixture(scope="session")
def fake_costs() -> type[FakeCosts]:
    return FakeCosts


class FakeCosts:
    """Task times by name, else from the task's text, so that equal tasks take equally long.
    Streams run side by side without slowing each other; a wait costs half a microsecond."""

    cold = False

    def __init__(self, us: dict[str, float] | None = None, spread: float = 0.0) -> None:
        self.us = us or {}
        self.spread = spread
        self.asked: list[Schedule] = []

    def task(self, task: Task) -> Cost:
        digest = hashlib.blake2b(task_text(task).encode(), digest_size=1).digest()[0]
        return Cost(self.us.get(task.name, 1 + digest % 8), "estimated")

    def timeline(self, tasks: TaskGraph, schedule: Schedule) -> Timeline:
        table = {task.name: self.task(task).us for task in tasks.tasks}
        free: dict[int, float] = {}
        end: dict[str, float] = {}
        spans = []
        for launch in schedule.launches:
            arrivals = [end[name] + 0.5 for name in launch.waits]
            start = max([free.get(launch.stream, 0.0), *arrivals])
            end[launch.task] = free[launch.stream] = start + table[launch.task]
            spans.append(Span(launch.task, launch.stream, start, end[launch.task]))
        return Timeline(tuple(spans), max(end.values(), default=0.0), "estimated")

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        self.asked.append(schedule)
        return Cost(self.timeline(tasks, schedule).latency, "estimated", self.spread)

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        return [self.schedule(tasks, schedule) for schedule in schedules]

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        return [self.task(task) for task in tasks]

    def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
        return {}


@pytest.fixture(scope="session")
def diamond() -> Dag:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    return parse_dag("a -> b c\nb -> d\nc -> d")


@pytest.fixture(scope="session")
def fire() -> Dag:
    """SqueezeNet's fire with a bypass convolution.

             +--> 1 --+
    in --> 0 |        +--> 3 --+
     |       +--> 2 --+        +--> 5
     +-----------> 4 ----------+
    """
    return _numbered(6, "0-1 0-2 1-3 2-3 3-5 4-5")


@pytest.fixture(scope="session")
def inception_e() -> Dag:
    """Four branches of the block's input.

    in --> 0 -------------------+
    in --> 1 --> 2 and 3 -------+--> 10
    in --> 4 --> 5 --> 6 and 7 -+
    in --> 8 --> 9 -------------+
    """
    return _numbered(11, "1-2 1-3 4-5 5-6 5-7 8-9 0-10 2-10 3-10 6-10 7-10 9-10")


@pytest.fixture(scope="session")
def nasnet_first_cell() -> Dag:
    """Everything that nobody reads goes into the exit, 17.

    0, 1 --> 2 (left)    3 (right)
    3 --> 4 --> 5, 6 --> 7, 12, 15 --> 16        2 --> 8 --> 9, 10 --> 11, 13, 14
    2 3 5 7 9 11 12 13 14 16 --> 17
    """
    exit = " ".join(f"{u}-17" for u in (2, 3, 5, 7, 9, 11, 12, 13, 14, 16))
    return _numbered(
        18, f"0-2 1-2 3-4 4-5 3-6 6-7 2-8 8-9 2-10 10-11 3-12 2-13 2-14 3-15 15-16 {exit}"
    )


@pytest.fixture(scope="session")
def randwire() -> Dag:
    """IOS's ws-32-4-0.75-4: 32 nodes and the sum of its sinks 21 and 31."""
    return _numbered(
        33,
        "0-9 0-11 0-14 0-17 0-31 1-2 1-3 1-31 2-4 2-11 2-12 2-14 2-30 3-4 3-25 4-9 4-20 4-29 5-6 "
        "5-27 6-7 6-21 6-27 7-30 7-31 8-10 8-25 9-10 9-14 10-11 10-16 10-22 10-28 11-16 11-24 "
        "12-13 12-14 12-15 12-16 13-14 13-22 13-26 14-23 15-29 16-21 17-26 18-19 18-20 19-22 "
        "19-27 20-22 22-25 22-30 23-27 24-25 24-26 25-28 26-28 27-28 27-29 28-29 29-30 29-31 "
        "30-31 21-32 31-32",
    )


@pytest.fixture(scope="session")
def googlenet() -> Dag:
    """GoogLeNet op by op, batch norm folded: conv and ReLU, pools, nine modules of four branches.

              +--> 1x1 relu ----------------------+
              +--> 1x1 relu --> 3x3 relu ---------+
    ... -->   +--> 1x1 relu --> 5x5 relu ---------+--> concat --> ...
              +--> pool --> 1x1 relu -------------+
    """
    names: list[str] = []
    edges: list[tuple[int, int]] = []

    def chain(at: int | None, *ops: str) -> int:
        for op in ops:
            if at is not None:
                edges.append((at, len(names)))
            at = len(names)
            names.append(f"{op}{at}")
        assert at is not None
        return at

    at = chain(None, "conv", "relu", "pool", "conv", "relu", "conv", "relu", "pool")
    for module in range(9):
        ends = [
            chain(at, "conv", "relu"),
            chain(at, "conv", "relu", "conv", "relu"),
            chain(at, "conv", "relu", "conv", "relu"),
            chain(at, "pool", "conv", "relu"),
        ]
        at = chain(ends[0], "concat")
        edges += [(end, at) for end in ends[1:]]
        if module in (1, 6):
            at = chain(at, "pool")
    chain(at, "pool", "linear")
    return Dag.of(tuple(names), edges)


def _numbered(nodes: int, edges: str) -> Dag:
    pairs = [edge.split("-") for edge in edges.split()]
    return Dag.of(tuple(str(i) for i in range(nodes)), [(int(u), int(v)) for u, v in pairs])

"""Task graphs and schedules for the tests of this room, given as fixtures."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.ir.dag import bits, dag_of
from anabranch.ir.graph import Graph, Input, Node, Ref
from anabranch.ir.schedule import Launch, Schedule, sequential_launches
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.types import TensorType

Rows = Iterable[tuple[str, Sequence[str], int]]


class Networks:
    """Builders: `tasks` from rows (name, reads, elements); published shapes; random ones."""

    spec = TargetSpec("cuda", "Test GPU", sms=132)

    @staticmethod
    def tasks(
        rows: Rows,
        outputs: Sequence[str],
        aliases: Mapping[str, str] | None = None,
        name: str = "net",
        elements: int = 1024,
    ) -> TaskGraph:
        """Each row is a task that reads values and writes one value of its own name (f16). An
        alias is a view of all elements of another value."""
        types = {"x": TensorType((elements,), torch.float16)}
        nodes: list[Node] = []
        left = dict(aliases or {})
        tasks: list[Task] = []

        def add_aliases() -> None:
            for alias, source in list(left.items()):
                if source in types:
                    types[alias] = TensorType((types[source].numel, 1), torch.float16)
                    view = (Ref(source), (-1, 1))
                    nodes.append(Node(alias, "aten.view.default", view, (), (types[alias],)))
                    del left[alias]
                    add_aliases()
                    return

        add_aliases()
        for row, reads, numel in rows:
            types[row] = TensorType((numel,), torch.float16)
            node = Node(row, "aten.cat.default", (tuple(map(Ref, reads)),), (), (types[row],))
            inputs = tuple(Input(read, types[read]) for read in dict.fromkeys(reads))
            tasks.append(Task(row, Graph(row, inputs, (), (node,), (Ref(row),))))
            add_aliases()
        x = (Input("x", types["x"]),)
        return TaskGraph(name, x, (), tuple(tasks), tuple(nodes), tuple(map(Ref, outputs)))

    @classmethod
    def inception(cls, modules: int = 11) -> TaskGraph:
        """Modules of four branches of 1, 2, 3 and 2 layers that a concat joins."""
        rows: list[tuple[str, Sequence[str], int]] = [("stem", ("x",), 192 * 35 * 35)]
        last, size, channels = "stem", 35, 192
        for m in range(modules):
            if m in (3, 8):
                size, channels = size // 2, channels * 2
            area = size * size

            def row(name: str, reads: Sequence[str], width: int, m: int = m, a: int = area) -> str:
                rows.append((f"{name}{m}", tuple(reads), width * a))
                return f"{name}{m}"

            a1 = row("a1_", [last], channels // 3)
            b1 = row("b1_", [last], channels // 4)
            b2 = row("b2_", [b1], channels // 3)
            c1 = row("c1_", [last], channels // 3)
            c2 = row("c2_", [c1], channels // 2)
            c3 = row("c3_", [c2], channels // 2)
            d1 = row("d1_", [last], channels)
            d2 = row("d2_", [d1], channels // 6)
            last = row("cat_", [a1, b2, c3, d2], channels // 3 * 2 + channels // 2 + channels // 6)
        return cls.tasks(rows, [last], name="inception")

    @classmethod
    def nasnet(cls, cells: int = 12) -> TaskGraph:
        """Cells of five pairs of separable convolutions over the two previous cells' outputs;
        a relu + depthwise and a pointwise task each."""
        rows: list[tuple[str, Sequence[str], int]] = [("stem", ("x",), 96 * 42 * 42)]
        previous, last, size, channels = "stem", "stem", 42, 96
        for c in range(cells):
            if c in (4, 8):
                size, channels = size // 2, channels * 2
            n = size * size * channels

            def row(name: str, reads: Sequence[str], c: int = c, n: int = n) -> str:
                rows.append((f"{name}_{c}", tuple(reads), n))
                return f"{name}_{c}"

            def separable(name: str, value: str, row: Callable[..., str] = row) -> str:
                for half in ("a", "b"):
                    value = row(f"{name}{half}p", [row(f"{name}{half}d", [value])])
                return value

            left, right = row("left", [previous]), row("right", [last])
            sums = [
                row("s0", [separable("l0", left), separable("r0", right)]),
                row("s1", [separable("l1", left), separable("r1", left)]),
                row("s2", [row("pool2", [right]), left]),
                row("s3", [row("pool3", [left]), row("pool4", [left])]),
                row("s4", [separable("r4", right), right]),
            ]
            rows.append((f"cat_{c}", (left, *sums), 6 * n))
            previous, last = last, f"cat_{c}"
        return cls.tasks(rows, [last], name="nasnet")

    @classmethod
    def chance(cls, seed: int, n: int, alias: bool = True) -> TaskGraph:
        """A random network: each task reads one to three of the last values or their aliases."""
        rng = random.Random(seed)
        rows: list[tuple[str, Sequence[str], int]] = []
        aliases: dict[str, str] = {}
        values = ["x"]
        for i in range(n):
            near = values[-8:]
            reads = rng.sample(near, min(len(near), rng.randint(1, 3)))
            rows.append((f"t{i}", reads, rng.choice((0, 1, 100, 256, 1000, 4096, 70_000))))
            values.append(f"t{i}")
            if alias and rng.random() < 0.2:
                aliases[f"v{i}"] = rng.choice([value for value in values[-4:] if value != "x"])
                values.append(f"v{i}")
        outputs = list(dict.fromkeys([values[-1], rng.choice(values[1:])]))
        return cls.tasks(rows, outputs, aliases, name=f"chance{seed}")

    @staticmethod
    def sequential(tasks: TaskGraph) -> Schedule:
        return Schedule("sequential", sequential_launches(dag_of(tasks)))

    @staticmethod
    def parallel(tasks: TaskGraph, limit: int = 16) -> Schedule:
        """A task goes on where a predecessor of it ended, else to a new stream, and waits for the
        others; reduced to the waits that stream order does not give."""
        dag = dag_of(tasks)
        tail: dict[int, int] = {}
        stream_of: dict[int, int] = {}
        launches: list[Launch] = []
        for i, name in enumerate(dag.names):
            free = [stream_of[p] for p in bits(dag.preds[i]) if tail[stream_of[p]] == p]
            stream = free[0] if free else len(tail) if len(tail) < limit else i % limit
            waits = [p for p in bits(dag.preds[i]) if stream_of[p] != stream]
            launches.append(Launch(name, stream, tuple(dag.names[p] for p in waits)))
            tail[stream], stream_of[i] = i, stream
        return Schedule("chains", tuple(launches))

    @staticmethod
    def shuffled(tasks: TaskGraph, seed: int, streams: int) -> Schedule:
        """Random legal launch order, random streams, all the waits that are needed."""
        rng = random.Random(seed)
        dag = dag_of(tasks)
        left, done, stream_of, launches = set(range(len(dag.names))), 0, {}, []
        while left:
            i = rng.choice(sorted(i for i in left if not dag.preds[i] & ~done))
            stream_of[i] = rng.randrange(streams)
            waits = [p for p in bits(dag.preds[i]) if stream_of[p] != stream_of[i]]
            waits_for = tuple(dag.names[p] for p in waits)
            launches.append(Launch(dag.names[i], stream_of[i], waits_for))
            left.discard(i)
            done |= 1 << i
        return Schedule("shuffled", tuple(launches))

    @staticmethod
    def with_kernels(tasks: TaskGraph, change: Callable[[int], Mapping[str, Any]]) -> TaskGraph:
        """Every task with a kernel; `change(i)` gives the i-th one's fields."""
        return replace(
            tasks,
            tasks=tuple(
                replace(task, kernel=Kernel(**{**_kernel(task), **change(i)}))
                for i, task in enumerate(tasks.tasks)
            ),
        )


def _kernel(task: Task) -> dict[str, Any]:
    return {"provider": "test", "name": "call", "body": task.body, "writes_out": True}


@pytest.fixture(scope="session")
def networks() -> type[Networks]:
    return Networks

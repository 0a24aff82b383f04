"""Tasks and a target that only pretends, for the tests of this room, given as fixtures."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from anabranch.cache import Cache
from anabranch.ir.call_padding import CallPadding
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, HeldMemory, Probe, RunCall
from anabranch.ir.schedule import Launch, Schedule, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.types import TensorType
from anabranch.trace import Trace

H200 = TargetSpec(
    "cuda",
    "NVIDIA H200",
    sms=132,
    capability=(9, 0),
    peak_flops=(("f16", 9.89e14), ("bf16", 9.89e14), ("tf32", 4.94e14), ("f32", 6.7e13)),
    bandwidth=4.8e12,
)


class Tasks:
    """Builders of tasks; widths stand for different structures."""

    spec = H200

    @staticmethod
    def relu(name: str, reads: Sequence[str] = ("x",), width: int = 8, ctas: int = 0) -> Task:
        """One pointwise task over equal vectors; with `ctas` it has a kernel of that grid, whose
        CTAs fill an SM each."""
        type = TensorType((width,), torch.float16)
        node = Node(name, "aten.cat.default", (tuple(map(Ref, reads)),), (), (type,))
        inputs = tuple(Input(read, type) for read in dict.fromkeys(reads))
        body = Graph(name, inputs, (), (node,), (Ref(name),))
        if not ctas:
            return Task(name, body)
        resources = Resources(ctas, threads=2048, registers=32, shared=0)
        return Task(name, body, Kernel("test", "relu", body, resources=resources))

    @staticmethod
    def conv(
        c: int, h: int, k: int, r: int, dtype: torch.dtype = torch.float16, groups: int = 1
    ) -> Task:
        """A convolution of an h x h image of c channels with k filters of r x r, padded."""
        x, y = TensorType((1, c, h, h), dtype), TensorType((1, k, h, h), dtype)
        w = Constant("w", TensorType((k, c // groups, r, r), dtype), "-")
        pad = (r // 2, r // 2)
        args = (Ref("x"), Ref("w"), None, (1, 1), pad, (1, 1), False, (0, 0), groups)
        node = Node("y", "aten.convolution.default", args, (), (y,))
        return Task("y", Graph("y", (Input("x", x),), (w,), (node,), (Ref("y"),)))

    @staticmethod
    def graph(*tasks: Task) -> TaskGraph:
        written = {name for task in tasks for name in task.writes}
        read = {value.name: value for task in tasks for value in task.body.inputs}
        inputs = tuple(value for name, value in read.items() if name not in written)
        outputs = tuple(Ref(name) for task in tasks for name in task.writes)
        return TaskGraph("net", inputs, (), tasks, (), outputs)

    @classmethod
    def chance(cls, seed: int, n: int, streams: int) -> tuple[TaskGraph, Schedule]:
        """Random tasks of random grids under a random legal schedule."""
        rng = random.Random(seed)
        stream_of: dict[str, int] = {}
        tasks: list[Task] = []
        launches: list[Launch] = []
        for i in range(n):
            before = [task.name for task in tasks]
            reads = rng.sample(before, min(len(before), rng.randint(0, 3))) or ["x"]
            tasks.append(cls.relu(f"t{i}", reads, ctas=rng.choice((1, 20, 66, 132, 1000))))
            stream = stream_of[f"t{i}"] = rng.randrange(streams)
            waits = tuple(r for r in reads if r != "x" and stream_of[r] != stream)
            launches.append(Launch(f"t{i}", stream, waits))
        return cls.graph(*tasks), Schedule("chance", tuple(launches))


@dataclass
class FakeRun:
    """What a fake target loaded."""

    plan: Plan
    repeat: int
    failure: str = ""
    states: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __call__(
        self, inputs: Sequence[torch.Tensor], clone: bool = False
    ) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    @property
    def arena(self) -> torch.Tensor:
        return torch.empty(0)

    def replay(self) -> None: ...

    def writing(self) -> Any:
        raise NotImplementedError

    def shaken(self, pause: Callable[[str], float]) -> tuple[torch.Tensor, ...]:
        raise NotImplementedError

    def held(self) -> HeldMemory:
        return HeldMemory({})

    def strays(self) -> str:
        return ""

    def padded(self, call: CallPadding) -> RunCall:
        raise NotImplementedError

    def peak_bytes(self) -> int:
        return 0


@dataclass
class FakeTarget:
    """Says that a plan takes `us(plan)`; remembers each batch it was asked to time."""

    us: Callable[[Plan], float] = lambda plan: 10.0
    spec: TargetSpec = H200
    device: torch.device = field(default_factory=lambda: torch.device("meta"))
    batches: list[list[str]] = field(default_factory=list)
    repeats: list[int] = field(default_factory=list)
    probes: int = 0

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        pass

    def load(self, plan: Plan, repeat: int = 1) -> Executable:
        if plan.tasks.tasks[0].name.startswith("unloadable"):
            raise RuntimeError("CUDA error: out of memory\nsecond line")
        self.repeats.append(repeat)
        refused = any(task.name.startswith("uncaptured") for task in plan.tasks.tasks)
        return FakeRun(plan, repeat, "capture refused" if refused else "")

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        names = [run.plan.schedule.scheduler for run in runs]
        tasks = [run.plan.tasks.tasks[0].name for run in runs]
        self.batches.append([t if n == "alone" else n for n, t in zip(names, tasks, strict=True)])
        if any(task.startswith("crashing") for task in tasks):
            raise RuntimeError("illegal memory access")
        return [Cost(self.us(run.plan), "measured", 0.5) for run in runs]

    def probe(self, run: Executable) -> dict[str, Probe]:
        self.probes += 1
        resources = Resources(1, 2, 3, 4)
        return {task.name: Probe(64, 128, 2, resources) for task in run.plan.tasks.tasks}

    def give_back(self) -> int:
        return 0

    def timeline(self, run: Executable) -> Timeline | None:
        return None

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        raise NotImplementedError

    def own_precision(self) -> AbstractContextManager[None]:
        return nullcontext()

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        return nullcontext()


def unpacked(tasks: TaskGraph, schedule: Schedule) -> Plan:
    """A plan without places, enough for a target that runs nothing."""
    return Plan(tasks, schedule, (), (), 0, H200)


@pytest.fixture(scope="session")
def make() -> type[Tasks]:
    return Tasks


@pytest.fixture
def target() -> FakeTarget:
    return FakeTarget()


@pytest.fixture
def prepare() -> Any:
    return unpacked


@pytest.fixture
def another() -> Callable[..., FakeTarget]:
    """A new fake target; `software` changes its versions and so its fingerprint."""

    def build(us: Callable[[Plan], float] = lambda plan: 10.0, software: str = "") -> FakeTarget:
        versions = (("torch", software),) if software else ()
        return FakeTarget(us, replace(H200, versions=versions))

    return build

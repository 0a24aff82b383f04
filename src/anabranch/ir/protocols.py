"""The sockets between rooms: what a target, a source of costs, a kernel provider and a scheduler
must be able to do. Tables of them are literal dicts in the rooms that own them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from anabranch.ir.plan import Plan
from anabranch.ir.schedule import Schedule, Source, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph


@dataclass(frozen=True, slots=True)
class Cost:
    """A time in microseconds: the median, the spread (half the 10-90 percentile range), and where
    the number comes from."""

    us: float
    source: Source
    spread: float = 0.0


class Costs(Protocol):
    """How long things take. Whoever asks cannot tell how it is known, but each number says it."""

    def task(self, task: Task) -> Cost:
        """One task alone, inside a CUDA graph where there is one."""

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        """All tasks of the graph under the schedule, from start to end."""

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        """Costs of several schedules of one graph, comparable with each other: measured costs
        are taken side by side, interleaved."""


class Executable(Protocol):
    """A plan loaded on a target. Not safe for concurrent calls: one thread at a time."""

    plan: Plan

    def __call__(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Outputs for inputs of the plan's types, in the plan's order. The tensors belong to the
        executable and are overwritten by the next call."""

    def peak_bytes(self) -> int:
        """Memory that it really holds for intermediate values."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What a trial run of a task's kernel told: temporary bytes, launches, resources."""

    workspace: int
    launches: int
    resources: Resources | None


class Target(Protocol):
    """The only thing that touches hardware."""

    spec: TargetSpec

    @property
    def device(self) -> torch.device:
        """Where tensors of this target live; a simulated target has the meta device."""

    def load(self, plan: Plan) -> Executable:
        """The plan, ready to run. TargetError if the plan is for another kind of machine."""

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """Latency of each executable, interleaved, within about `budget` seconds in all."""

    def probe(self, kernels: Sequence[Kernel]) -> list[Probe | None]:
        """Run each kernel once on random inputs; None where it failed (not an error)."""

    def timeline(self, run: Executable) -> Timeline | None:
        """What ran when in one call, measured by a profiler, None where there is none."""


class Provider(Protocol):
    """A source of kernels. Providers write text and graphs, and touch no device."""

    name: str

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """All its ways to run the task on such a machine; empty if it has none."""


Scheduler = Callable[[TaskGraph, Costs], Schedule]

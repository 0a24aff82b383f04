"""The sockets between rooms: what a target, a source of costs, a kernel provider and a scheduler
must be able to do. Tables of them are literal dicts in the rooms that own them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch

from anabranch.cache import Cache
from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.call_padding import CallPadding
from anabranch.ir.plan import Plan
from anabranch.ir.schedule import CostSource, Schedule, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Resources, Task, TaskGraph
from anabranch.ir.uncached import Uncached
from anabranch.ir.variant import Variant
from anabranch.trace import Trace


@dataclass(frozen=True, slots=True)
class Cost:
    """A time in microseconds: the median, the spread (half the 10-90 percentile range), and where
    the number comes from."""

    us: float
    source: CostSource
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What a run of a task's kernel told: bytes it must be given, bytes it allocates by itself,
    launches, resources."""

    workspace: int
    temporary: int
    launches: int
    resources: Resources | None


@dataclass(frozen=True, slots=True)
class KernelSpan:
    """One kernel, copy or fill of a run: the task that it belongs to, "" where that cannot be told;
    start and end in microseconds; what it takes of the GPU, None for what is no kernel; whether its
    task multiplies and accumulates, None where that is not known."""

    task: str
    start: float
    end: float
    resources: Resources | None
    computes: bool | None


ScheduledGraphs = Sequence[tuple[TaskGraph, Schedule]]
"""Graphs of tasks, each with a schedule."""


class Costs(Protocol):
    """How long things take. A caller cannot tell how a cost is known, but each number says it."""

    @property
    def settled(self) -> bool:
        """Whether what failed would fail again: nothing was left out for want of time or memory."""

    @property
    def cold(self) -> Uncached | None:
        """What is in no cache while tasks are timed by themselves; None: all may be."""

    def task(self, task: Task) -> Cost:
        """One task alone, inside a CUDA graph where there is one."""

    def trial(self, tasks: Sequence[Task]) -> list[Cost | None]:
        """Costs of tasks with candidate kernels, taken side by side; None where one cannot run."""

    def probe(self, tasks: TaskGraph) -> dict[str, Probe]:
        """The facts of each task's kernel beyond its time, by task name."""

    def timeline(self, tasks: TaskGraph, schedule: Schedule) -> Timeline:
        """When each task would run."""

    def schedule(self, tasks: TaskGraph, schedule: Schedule) -> Cost:
        """All tasks of the graph under the schedule, from start to end."""

    def rank(self, tasks: TaskGraph, schedules: Sequence[Schedule]) -> list[Cost]:
        """Costs of several schedules of one graph, comparable with each other: measured costs
        are taken side by side, interleaved."""

    def race(self, plans: ScheduledGraphs, in_a_row: int = 1, captures: int = 1) -> list[Cost]:
        """As `rank`, of plans of several graphs. `in_a_row`: how often each is run to be timed
        once; more than once where it stands for a part of a graph, which begins as others end.
        `captures`: how often each is captured anew, where that has a say; the median counts then,
        and the spread is how well that repeats."""


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Memory of an executable on its device. places: for weights, inputs, states, arena and
    libraries the bytes at each address, for two executables may share some; pool, kernels: bytes of
    the graph's private pool, and of kernels outside all of these."""

    places: Mapping[str, Mapping[int, int]]
    pool: int = 0
    kernels: int = 0


RunCall = Callable[[Sequence[torch.Tensor], bool], tuple[torch.Tensor, ...]]
"""What runs a plan: inputs, and whether results are copied for the caller."""


class Executable(Protocol):
    """A plan loaded on a target. Calls from several threads wait for each other."""

    plan: Plan
    repeat: int
    failure: str
    """Why it runs in a slower way than the target has (no graph), "" if it does not."""

    @property
    def arena(self) -> torch.Tensor:
        """The memory of its values, bytes of the device; another executable may use it, too."""

    def __call__(
        self, inputs: Sequence[torch.Tensor], clone: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Outputs for inputs of the plan's types, in the plan's order. Without `clone` the tensors
        belong to the executable and are overwritten by the next call; the new value of a state is
        its place in any case. `inputs`: all of the plan's, those of states too, which are set to
        these first; or all but those."""

    def padded(self, call: CallPadding) -> RunCall:
        """Runs the plan for calls with fewer rows than it has, which are copied straight to where
        its inputs lie; results have the call's rows alone. No buffer of an input is expanded."""

    @property
    def states(self) -> Mapping[str, torch.Tensor]:
        """The places of the plan's states, by the names of their inputs."""

    def writing(
        self,
    ) -> AbstractContextManager[Callable[[Sequence[torch.Tensor]], tuple[torch.Tensor, ...]]]:
        """Within it the plan's constants may be written to: no call runs meanwhile, and what is
        done on the current stream comes after all calls before and before all calls after. Gives a
        call that may be made meanwhile; results are the caller's own."""

    def replay(self) -> None:
        """One run on what the input buffers hold, for timing."""

    def shaken(self, pause: Callable[[str], float]) -> tuple[torch.Tensor, ...]:
        """One run on what the input buffers hold, launch by launch, in which the stream of a task
        sleeps before it for as many microseconds as `pause` says of its name. The results are right
        all the same, or the plan is not."""

    def peak_bytes(self) -> int:
        """Memory that it really holds for intermediate values."""

    def held(self) -> HeldMemory:
        """All memory that it holds."""

    def strays(self) -> str:
        """Where bytes of the arena are written that nothing of the plan owns; "" if nowhere."""


class Target(Protocol):
    """The only thing that touches hardware."""

    spec: TargetSpec

    @property
    def device(self) -> torch.device:
        """Where tensors of this target live; a simulated target has the meta device."""

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        """Build what these kernels need, side by side where that saves time, or read what earlier
        processes built and kept in the cache; what fails here fails again, and is heard, when it
        is loaded."""

    def load(
        self,
        plan: Plan,
        repeat: int = 1,
        contents: Mapping[str, torch.Tensor] | None = None,
        beside: Executable | None = None,
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> Executable:
        """The plan, ready to run; with `repeat` > 1 a call runs it that often in a row, for timing
        short plans; with 0 nothing is made ready for speed, for a single run. `contents`: what
        input buffers hold until the first call, by name, instead of drawn numbers. `beside`:
        another one whose arena it uses as well, if that is no smaller than the plan's: the two run
        one at a time, and each overwrites what the other has left there. `states`: the places of
        its states, by name, which keep what they hold until the first call; without, each run
        begins with the values that they had, for a plan that is only timed. TargetError if the plan
        is for another kind of machine or cannot run here."""

    def again(self, run: Executable, plan: Plan) -> Executable:
        """A plan that differs from a loaded one in kernels alone, to be timed beside it: it may use
        the memory of that one, so none of the two runs while the other does."""

    def give_back(self) -> int:
        """Give back what libraries keep for plans that are gone, such as those that were tried; the
        bytes of it. Memory that is in use by nobody goes back to the device as well."""

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """Latency of each executable on the device (of one of its repeats), taken interleaved,
        within about `budget` seconds in all. What the host takes to launch it is left out."""

    def probe(self, run: Executable) -> dict[str, Probe]:
        """The resources that each task of a loaded plan takes of the machine, by task name."""

    def timeline(self, run: Executable) -> Timeline | None:
        """The timeline of one call, measured by a profiler, None where there is none."""

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        """Latency of any call, end to end, as its user sees it."""

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        """Latencies of the executable and of a call of the model as it is, taken interleaved
        within about `budget` seconds; where there are CUDA graphs the model is captured in one."""

    def own_precision(self) -> AbstractContextManager[None]:
        """Within it operators take the short cuts (tf32) that plans for this target take, whatever
        the process has set."""

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        """Within it no operator takes short cuts (tf32): for references. `lean`: none that takes
        much memory is run either, at the price of time."""


@runtime_checkable
class ColdLoader(Protocol):
    """A target that can time a plan as it runs where its weights are not in the cache."""

    def load_cold(
        self,
        plan: Plan,
        repeat: int,
        copies: int,
        contents: Mapping[str, torch.Tensor] | None = None,
    ) -> Executable:
        """As `load`, for timing alone: runs in a row read `copies` copies of the plan's constants
        by turns. Each copy takes as many bytes as the constants."""


@runtime_checkable
class KernelProfiler(Protocol):
    """A target that sees single kernels while a plan runs."""

    def kernel_spans(self, run: Executable) -> tuple[str, tuple[KernelSpan, ...]]:
        """How it was seen, and the kernels of one run, by their starts; why they were not seen, and
        none."""


@dataclass(frozen=True, slots=True)
class KernelOffer:
    """A kernel of a provider whose text need not be written yet. `generated`: it has one; `write`:
    the kernel, which is the same whenever it is asked for."""

    provider: str
    name: str
    variant: Variant | str
    generated: bool
    write: Callable[[], Kernel]


def offered(kernel: Kernel) -> KernelOffer:
    """A kernel that is written already, as an offer."""
    generated = bool(kernel.source)
    return KernelOffer(kernel.provider, kernel.name, kernel.variant, generated, lambda: kernel)


class Provider(Protocol):
    """A source of kernels. Providers write text and graphs, and touch no device."""

    @property
    def name(self) -> str:
        """How kernels and plans refer to the provider, such as "triton"; unique among providers."""

    @property
    def version(self) -> str:
        """Changes with what it offers and with what it writes."""

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """All its ways to run the task on such a machine; empty if it has none."""

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The same kernels in the same order, for whoever wants few of them written."""

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """The one of them with this name and variant. ValueError if it has none."""


A_LARGE_GPU = TargetSpec("cuda", "a GPU of 132 multiprocessors", sms=132)
"""What schedulers assume where nobody says which machine it is."""


ANY_STREAMS = sys.maxsize
"""`Limits.max_streams` where a plan may have as many streams as a scheduler asks for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scheduler may use. `max_group_size` and `max_groups` are IOS's pruning r and s; None
    for no pruning where that can be afforded. `deadline`: what is best when it is over is the
    answer. `spec`: the machine, of which schedulers use the size and the cost of a fork.
    `compared`: whoever asks compares the plan with those of the other schedulers, which then need
    not be done before. `packing`: how plans are packed where that is not the usual way, for the
    keys of what is remembered. `trace` gets what was refused and why."""

    max_streams: int = 16
    max_group_size: int | None = None
    max_groups: int | None = None
    deadline: Deadline = ENDLESS
    spec: TargetSpec = A_LARGE_GPU
    compared: bool = False
    packing: str = ""
    trace: Trace = field(default_factory=Trace, compare=False, repr=False)


Scheduler = Callable[[TaskGraph, Costs, Limits], Schedule]

"""CpuTarget: a plan's streams are threads, its event waits are events between them.

    stream 0 (the caller)   conv1 ─────────── wait(conv2) concat
    stream 1 (a worker)     conv2 set(conv2) ─────┘

Torch releases the interpreter lock inside operators, so launches of different streams overlap.
"""

from __future__ import annotations

import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, Probe
from anabranch.ir.schedule import Launch, Span, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel
from anabranch.ir.types import copy_into
from anabranch.targets.place import Placed, Runner, check_providers, place, run_aten, strays
from anabranch.trace import Trace

RUNNERS: dict[str, Runner] = {"aten": run_aten}
ROUNDS = (3, 30)
"""At least and at most."""


class CpuExecutable:
    """A plan loaded on the CPU. Calls from several threads wait for each other."""

    def __init__(self, plan: Plan, placed: Placed, repeat: int = 1) -> None:
        self.plan, self.repeat, self.failure, self._placed = plan, repeat, "", placed
        self._lock = threading.Lock()
        numbers = dict.fromkeys(launch.stream for launch in plan.schedule.launches)
        self._lanes = [
            [launch for launch in plan.schedule.launches if launch.stream == number]
            for number in numbers
        ]
        self._waited = {name for launch in plan.schedule.launches for name in launch.waits}
        self._workers = ThreadPoolExecutor(max(1, len(self._lanes) - 1), "anabranch-stream")

    def __call__(self, inputs: Sequence[Tensor], clone: bool = False) -> tuple[Tensor, ...]:
        with self._lock, torch.no_grad():
            for static, given in zip(self._placed.inputs, inputs, strict=True):
                copy_into(static, given)
            self.replay()
            return tuple(out.clone() for out in self.outputs) if clone else self.outputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(self._placed.values[ref.name] for ref in self.plan.tasks.outputs)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The buffers a call copies its inputs into."""
        return self._placed.inputs

    def shaken(self, pause: Callable[[str], float]) -> tuple[Tensor, ...]:
        with self._lock:
            self.replay(pause=pause)
            return self.outputs

    def replay(
        self, spans: list[Span] | None = None, pause: Callable[[str], float] | None = None
    ) -> None:
        """One run (per repeat) on what the input buffers hold."""
        for _ in range(max(1, self.repeat)):
            done = {name: threading.Event() for name in self._waited}
            failed = threading.Event()
            others = [
                self._workers.submit(self._run_lane, lane, done, failed, spans, pause)
                for lane in self._lanes[1:]
            ]
            try:
                if self._lanes:
                    self._run_lane(self._lanes[0], done, failed, spans, pause)
            finally:
                for other in others:
                    other.result()

    def strays(self) -> str:
        return strays(self.plan, self._placed.arena)

    def peak_bytes(self) -> int:
        """The arena, and an upper bound of what kernels that allocate hold at once."""
        return self.plan.peak_bytes

    def _run_lane(
        self,
        lane: Sequence[Launch],
        done: dict[str, threading.Event],
        failed: threading.Event,
        spans: list[Span] | None,
        pause: Callable[[str], float] | None,
    ) -> None:
        with torch.no_grad():
            try:
                for launch in lane:
                    for name in launch.waits:
                        done[name].wait()
                    if failed.is_set():
                        return
                    if pause is not None:
                        time.sleep(1e-6 * pause(launch.task))
                    start = time.perf_counter()
                    self._placed.calls[launch.task]()
                    if spans is not None:
                        end = time.perf_counter()
                        spans.append(Span(launch.task, launch.stream, 1e6 * start, 1e6 * end))
                    if launch.task in done:
                        done[launch.task].set()
            except BaseException:
                failed.set()
                for event in done.values():
                    event.set()
                raise


class CpuTarget:
    """The CPU of this machine."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self.spec = TargetSpec(
            kind="cpu",
            name=f"{platform.processor() or platform.machine()} with {cores} cores",
            sms=cores,
            peak_flops=(("f32", 3e10 * cores), ("f64", 1.5e10 * cores)),
            bandwidth=1e10,
            launch_us=5.0,
            fork_us=20.0,
            versions=(("torch", torch.__version__), ("threads", str(torch.get_num_threads()))),
        )

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        """Nothing is built ahead here."""

    def ready(self, kernels: Sequence[Kernel], cache: Cache | None = None) -> Iterator[list[int]]:
        """The positions of these kernels, as they can be loaded: all of them now."""
        yield list(range(len(kernels)))

    def load(self, plan: Plan, repeat: int = 1) -> CpuExecutable:
        if plan.spec.kind != "cpu":
            raise TargetError(
                f"plan {plan.tasks.name} is for {plan.spec.name}",
                "this target is a CPU, and the plan's kernels are not for one",
                "compile the model for target='cpu'",
            )
        check_providers(
            plan,
            RUNNERS,
            f"on a CPU kernels of {', '.join(RUNNERS)} run",
            "compile the model again for target='cpu'",
        )
        with torch.no_grad():
            return CpuExecutable(plan, place(plan, self.device, RUNNERS), repeat)

    def again(self, run: Executable, plan: Plan) -> CpuExecutable:
        return self.load(plan, run.repeat)

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        loaded = [run for run in runs if isinstance(run, CpuExecutable)]
        assert len(loaded) == len(runs), "executables of another target"
        samples = _interleaved([run.replay for run in loaded], budget)
        return [
            _summarise([us / run.repeat for us in taken])
            for taken, run in zip(samples, loaded, strict=True)
        ]

    def probe(self, run: Executable) -> dict[str, Probe]:
        """Launches only: a CPU kernel has no grid, and its temporaries come from the allocator."""
        return {
            task.name: Probe(0, 0, len(task.kernel.body.nodes) if task.kernel else 0, None)
            for task in run.plan.tasks.tasks
        }

    def timeline(self, run: Executable) -> Timeline | None:
        assert isinstance(run, CpuExecutable), "an executable of another target"
        run.replay()
        spans: list[Span] = []
        run.replay(spans)
        start = min((span.start for span in spans), default=0.0)
        moved = tuple(
            Span(span.task, span.stream, span.start - start, span.end - start)
            for span in sorted(spans, key=lambda span: span.start)
        )
        return Timeline(moved, max((span.end for span in moved), default=0.0), "measured")

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        return _summarise(_interleaved([call], budget)[0])

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        assert isinstance(run, CpuExecutable), "an executable of another target"
        with torch.no_grad():
            plan, own = _interleaved([run.replay, model], budget)
        return _summarise([us / run.repeat for us in plan]), _summarise(own)

    def own_precision(self) -> AbstractContextManager[None]:
        return nullcontext()

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        return nullcontext()


def _interleaved(calls: Sequence[Callable[[], object]], budget: float) -> list[list[float]]:
    """Samples in microseconds for each callable, in rounds that visit all of them, after one call
    of each that is not timed."""
    for call in calls:
        call()
    samples: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + budget
    for done in range(ROUNDS[1]):
        if done >= ROUNDS[0] and time.perf_counter() > deadline:
            break
        for taken, call in zip(samples, calls, strict=True):
            start = time.perf_counter()
            call()
            taken.append(1e6 * (time.perf_counter() - start))
    return samples


def _summarise(samples: Sequence[float]) -> Cost:
    ordered = sorted(samples)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return Cost(statistics.median(ordered), "measured", (high - low) / 2)

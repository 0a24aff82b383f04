"""CpuTarget: a plan's streams are threads, its event waits are events between them.

    stream 0 (the caller)   conv1 ─────────── wait(conv2) concat
    stream 1 (a worker)     conv2 set(conv2) ─────┘

Ctrl-C, a thread that cannot start and a fork leave a plan that can be called (`streams`).
Torch releases the interpreter lock inside operators, so launches of different streams overlap.
"""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.costs.samples import ROUNDS, by_turns, summarised
from anabranch.errors import TargetError
from anabranch.ir.ambient import without_autocast
from anabranch.ir.call_padding import CallPadding
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, HeldMemory, Probe, RunCall
from anabranch.ir.schedule import Launch, Span, Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel
from anabranch.ir.types import copy_into
from anabranch.targets.calling import Turn, alone, without_gradients
from anabranch.targets.cpu.streams import Flag, StreamWork, Workers
from anabranch.targets.forks import FORKS
from anabranch.targets.loading import (
    LoadedPlan,
    Placed,
    Runner,
    check_providers,
    copied,
    held_at,
    kept_places,
    place,
    run_aten,
)
from anabranch.targets.padded_rows import PaddedRows
from anabranch.trace import Trace

_T = TypeVar("_T")

RUNNERS: dict[str, Runner] = {"aten": run_aten}
TIMED_ROUNDS = ROUNDS


class CpuExecutable(LoadedPlan):
    """A plan loaded on the CPU. Calls from several threads wait for each other. An interrupted call
    leaves nothing behind: what its threads still do is waited for by the next one."""

    def __init__(
        self, plan: Plan, placed: Placed, repeat: int = 1, turn: Turn | None = None
    ) -> None:
        """`turn`: of other executables with the same arena."""
        self.plan, self.repeat, self.failure, self._placed = plan, repeat, "", placed
        self._forks = self._loaded_at = FORKS.count
        self.turn = turn or Turn()
        self.turn.after_fork()  # those whose turn it is may have been loaded by the parent
        numbers = dict.fromkeys(launch.stream for launch in plan.schedule.launches)
        self._lanes = [
            [launch for launch in plan.schedule.launches if launch.stream == number]
            for number in numbers
        ]
        self._waited = {name for launch in plan.schedule.launches for name in launch.waits}
        self._workers, self._own = Workers("anabranch-stream"), Workers("anabranch-call")
        self._told = False
        self._call_buffers = [placed.values[value.name] for value in plan.tasks.call_inputs]
        self._kept = kept_places(plan)

    def __call__(
        self, inputs: Sequence[Tensor], clone: bool = False, rows: PaddedRows | None = None
    ) -> tuple[Tensor, ...]:
        """Inputs are copied into the plan's buffers, and the streams run on this thread and
        others. `rows`: of a padded call."""
        return self._entered(lambda: self._called(inputs, clone, rows))

    def padded(self, call: CallPadding) -> RunCall:
        """Runs the plan for calls with fewer rows."""
        return partial(self, rows=PaddedRows(self._call_buffers, call))

    def _called(
        self, inputs: Sequence[Tensor], clone: bool, rows: PaddedRows | None = None
    ) -> tuple[Tensor, ...]:
        if rows is not None:
            rows.fill(inputs)
            self._replay()
            return rows.cut(self.outputs, clone, self._kept)
        whole = len(inputs) == len(self._placed.inputs)
        buffers = self._placed.inputs if whole else self._call_buffers
        for static, tensor in zip(buffers, inputs, strict=True):
            copy_into(static, tensor)
        self._replay()
        return copied(self.outputs, self._kept) if clone else self.outputs

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Tensor]], tuple[Tensor, ...]]]:
        """Constants may be written to within it. What threads of an interrupted call still do is
        waited for first; the call that it gives runs on the caller's thread and returns copies."""
        self._after_fork()
        with self.turn.writing(self.plan.tasks.name, self._wait):
            for job in self.turn.left:  # of a call that was interrupted
                job.settle()

            def call(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
                return self._here(lambda: without_gradients(lambda: self._called(inputs, True)))

            yield call

    def _wait(self) -> None:
        self._placed.operators.wait_for(self.turn.lock)

    def shaken(self, pause: Callable[[str], float]) -> tuple[Tensor, ...]:
        """One run in which a thread sleeps before a launch as long as `pause` says, in
        microseconds; the tensors that it leaves are those of `outputs`."""

        def call() -> tuple[Tensor, ...]:
            self._replay(pause=pause)
            return self.outputs

        return self._entered(call)

    def replay(self, spans: list[Span] | None = None) -> None:
        """One run (per repeat) on what the input buffers hold."""
        self._entered(lambda: self._replay(spans))

    def held(self) -> HeldMemory:
        """Bytes of weights, inputs, states and arena by address. What operators allocate while they
        run is torch's, and is not counted."""
        return HeldMemory(held_at(self.plan, self._placed))

    def peak_bytes(self) -> int:
        """The arena, and an upper bound of what kernels that allocate hold at once."""
        return self.plan.peak_bytes

    def _entered(self, call: Callable[[], _T]) -> _T:
        """One call at a time, without gradients."""
        self._after_fork()

        def locked() -> _T:
            with self.turn.lock:
                return without_gradients(call)

        def entered() -> _T:
            self._wait()
            return self._here(locked)

        return alone(self.turn, self.plan.tasks.name, entered)

    def _after_fork(self) -> None:
        if self._forks != FORKS.count:
            self._forks = FORKS.count
            self.turn.after_fork()
            self._placed.operators.forget()

    def _here(self, call: Callable[[], _T]) -> _T:
        """On the caller's thread. In a forked process on one of our own: those that OpenMP had for
        the caller's stayed with the parent, and it would wait for them for ever."""
        if self._forks == self._loaded_at or torch.get_num_threads() == 1:
            return call()
        if not self._own.ready(1):
            raise TargetError(
                f"plan {self.plan.tasks.name} cannot run in this forked process",
                "its operators need a thread, and the system starts no more of them",
                "call torch.set_num_threads(1) first, or raise the limit of threads (ulimit -u)",
            )
        results: list[_T] = []
        job = StreamWork(partial(copy_context().run, lambda: results.append(call())))
        self._own.submit(0, job)
        job.wait()
        if job.failure is not None:
            raise job.failure
        return results[0]

    def _replay(
        self, spans: list[Span] | None = None, pause: Callable[[str], float] | None = None
    ) -> None:
        """Whoever asks has the lock."""
        for job in self.turn.left:
            job.settle()
        for _ in range(max(1, self.repeat)):

            def started() -> _Run:
                return _Run(self._placed, self._waited, spans, pause)

            if len(self._lanes) < 2 or not self._side_by_side(started()):
                started().lane(self.plan.schedule.launches)

    def _side_by_side(self, run: _Run) -> bool:
        """The first stream here and each of the others on a thread. False where there are no
        threads for them, and nothing runs any more."""
        others = self._lanes[1:]
        if not self._workers.ready(len(others)):
            self._tell()
            return False
        works = [partial(copy_context().run, run.lane, lane) for lane in others]
        jobs = self.turn.left = [StreamWork(work) for work in works]
        try:
            try:
                for number, job in enumerate(jobs):
                    self._workers.submit(number, job)
            except RuntimeError:
                run.fail()
                for job in jobs:
                    job.settle()
                self._tell()
                return False
            run.lane(self._lanes[0])
            for job in jobs:
                job.wait()
        except BaseException:
            run.fail()
            for job in jobs:
                job.settle()
            raise
        self.turn.left = ()
        for job in jobs:
            if job.failure is not None:
                raise job.failure
        return True

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            warnings.warn(
                f"plan {self.plan.tasks.name} runs its streams one after another on the caller's "
                "thread: the system starts no more threads (see ulimit -u)",
                RuntimeWarning,
                stacklevel=2,
            )


class _Run:
    """One run of all streams: what they wait for, and whether one of them has failed."""

    def __init__(
        self,
        placed: Placed,
        waited: Collection[str],
        spans: list[Span] | None,
        pause: Callable[[str], float] | None,
    ) -> None:
        self._calls, self._spans, self._pause = placed.calls, spans, pause
        self._done = {name: Flag() for name in waited}
        self._failed = False

    def fail(self) -> None:
        """Every stream ends after the launch that it is at."""
        self._failed = True
        for flag in self._done.values():
            flag.set()

    def lane(self, lane: Sequence[Launch]) -> None:
        """The launches of one stream; of all streams, in their order, where there is one thread."""
        try:
            with without_autocast():
                without_gradients(lambda: self._launch(lane))
        except BaseException:
            self.fail()
            raise

    def _launch(self, lane: Sequence[Launch]) -> None:
        for launch in lane:
            for name in launch.waits:
                self._done[name].wait()
            if self._failed:
                return
            if self._pause is not None:
                time.sleep(1e-6 * self._pause(launch.task))
            start = time.perf_counter()
            self._calls[launch.task]()
            if self._spans is not None:
                end = time.perf_counter()
                self._spans.append(Span(launch.task, launch.stream, 1e6 * start, 1e6 * end))
            if launch.task in self._done:
                self._done[launch.task].set()


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

    def ready(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, in_turn: bool = False
    ) -> Iterator[list[int]]:
        """The positions of these kernels, as they can be loaded: all of them now."""
        yield list(range(len(kernels)))

    def load(
        self,
        plan: Plan,
        repeat: int = 1,
        contents: Mapping[str, Tensor] | None = None,
        beside: Executable | None = None,
        states: Mapping[str, Tensor] | None = None,
    ) -> CpuExecutable:
        """The plan with places and threads of its own; TargetError for a plan of another kind of
        machine, and for kernels of a provider that has none for a CPU."""
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
        shared = beside.arena if beside is not None else None
        with torch.no_grad():
            placed = place(plan, self.device, RUNNERS, contents, shared, states)
        turn = None
        if isinstance(beside, CpuExecutable) and placed.arena is shared:
            turn = beside.turn
        return CpuExecutable(plan, placed, repeat, turn)

    def again(self, run: Executable, plan: Plan) -> CpuExecutable:
        """As `load`: nothing of an executable is worth keeping here, and the two share no
        memory."""
        return self.load(plan, run.repeat)

    def give_back(self) -> int:
        """Libraries keep nothing here."""
        return 0

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """Wall-clock medians of replays in rounds that visit all executables, 3 to 30 as the budget
        allows, after one each that is not timed."""
        loaded = [run for run in runs if isinstance(run, CpuExecutable)]
        assert len(loaded) == len(runs), "executables of another target"
        samples = _interleaved([run.replay for run in loaded], budget)
        return [summarised(taken, run.repeat) for taken, run in zip(samples, loaded, strict=True)]

    def probe(self, run: Executable) -> dict[str, Probe]:
        """Launches only: a CPU kernel has no grid, and its temporaries come from the allocator."""
        return {
            task.name: Probe(0, 0, len(task.kernel.body.nodes) if task.kernel else 0, None)
            for task in run.plan.tasks.tasks
        }

    def timeline(self, run: Executable) -> Timeline | None:
        """Spans of one replay by the clock of the host, after one that warms up."""
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
        """The wall-clock median of calls, after one that is not timed."""
        return summarised(_interleaved([call], budget)[0])

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        """Wall-clock medians of the plan, of one of its repeats, and of the model run eagerly
        without gradients."""
        assert isinstance(run, CpuExecutable), "an executable of another target"
        with torch.no_grad():
            plan, own = _interleaved([run.replay, model], budget)
        return summarised(plan, run.repeat), summarised(own)

    def own_precision(self) -> AbstractContextManager[None]:
        """Changes nothing: operators have no short cuts on a CPU."""
        return nullcontext()

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        """Changes nothing, as `own_precision`; no operator here takes memory for speed either."""
        return nullcontext()


def _interleaved(calls: Sequence[Callable[[], object]], budget: float) -> list[list[float]]:
    """As `by_turns`, after one call of each that is not timed."""
    for call in calls:
        call()
    return by_turns(calls, budget, TIMED_ROUNDS)

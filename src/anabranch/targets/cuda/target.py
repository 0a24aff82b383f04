"""CudaTarget: loads, runs, times and profiles plans on one GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial

import torch

from anabranch.cache import Cache
from anabranch.costs.resource_demand import ROW
from anabranch.costs.samples import summarised
from anabranch.errors import TargetError
from anabranch.ir.library_calls import library_streams
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, KernelSpan, Probe, Target
from anabranch.ir.schedule import Timeline
from anabranch.ir.task import Kernel
from anabranch.targets.cuda import cudnn, profile, timing, triton
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.targets.cuda.cubin import AHEAD
from anabranch.targets.cuda.device import read_spec
from anabranch.targets.cuda.library_workspaces import LibraryWorkspaces
from anabranch.targets.cuda.model import beside_model
from anabranch.targets.cuda.probe import probe
from anabranch.targets.cuda.stream_places import stream_places
from anabranch.targets.loading import (
    Runner,
    check_providers,
    held_at,
    needs_values,
    place,
    run_aten,
    with_own_constants,
)
from anabranch.targets.tf32 import precision, settable
from anabranch.trace import Trace

URGENT = -1
"""The priority of streams for urgent launches; the others have 0, the lowest."""


def open_cuda(tf32: bool, index: int | None = None) -> Target:
    """The GPU of this number, None for the current one. TargetError for one that is not there, in a
    process that was forked from one that used a GPU, and while the caller captures a graph."""
    if torch.cuda._is_in_bad_fork():
        raise TargetError(
            "no GPU can be used in this forked process",
            "the process that it was forked from has used one, which does not survive a fork",
            "start processes by 'spawn' (torch.multiprocessing.set_start_method)",
        )
    if torch.cuda.is_current_stream_capturing():
        raise TargetError(
            "nothing can be compiled or loaded while a CUDA graph is captured",
            "kernels are loaded, run and timed meanwhile, which no graph can hold",
            "compile before the capture begins; calls may be captured",
        )
    count = torch.cuda.device_count()
    if index is not None and index >= count:
        raise TargetError(
            f"there is no GPU cuda:{index}",
            f"torch sees {count}, from cuda:0 to cuda:{count - 1}; CUDA_VISIBLE_DEVICES says which",
            "choose one of these, or target='cuda' for the current one",
        )
    number = torch.cuda.current_device() if index is None else index
    return CudaTarget(torch.device("cuda", number), tf32)


class CudaTarget:
    """One GPU. Side streams are made once and shared by all plans: libraries keep a workspace per
    stream, and a schedule's streams only name which of its launches may overlap."""

    def __init__(self, device: torch.device, tf32: bool = False) -> None:
        self.device, self.tf32 = device, tf32
        self.spec = read_spec(device, tf32)
        self._streams: list[torch.cuda.Stream] = []
        self._urgent: list[torch.cuda.Stream] = []
        self._workspaces = LibraryWorkspaces(
            self._workspace_of, torch._C._cuda_clearCublasWorkspaces
        )
        self._runners: dict[str, Runner] = {"aten": partial(run_aten, device=device)}
        self._cudnn = cudnn.Cudnn(tf32, device) if cudnn.available() else None
        if self._cudnn is not None:
            self._runners["cudnn"] = self._cudnn.runner
        self._triton = triton.Triton(device, self.spec.capability)
        if triton.available():
            self._runners["triton"] = self._triton.runner

    def start(self, most: int = AHEAD) -> None:
        """Get ready for a batch of generated kernels that is to come: who compiles is started, for
        so many of them."""
        self._triton.start(most)

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        """Triton's kernels are compiled in other processes while cuDNN's engines are built here."""
        with torch.cuda.device(self.device), self._triton.building(kernels, cache, trace):
            if self._cudnn is not None:
                self._cudnn.build(kernels, cache, self.spec.fingerprint)

    def ready(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, in_turn: bool = False
    ) -> Iterator[list[int]]:
        """As `prepare` for generated kernels: their positions as they get ready. `in_turn`: about
        in this order."""
        with torch.cuda.device(self.device):
            yield from self._triton.ready(kernels, cache, in_turn=in_turn)

    def load(
        self,
        plan: Plan,
        repeat: int = 1,
        contents: Mapping[str, torch.Tensor] | None = None,
        beside: Executable | None = None,
        states: Mapping[str, torch.Tensor] | None = None,
    ) -> CudaExecutable:
        """One CUDA graph. Where capture fails the executable launches eagerly and says why in
        `failure`; the caller reports it. A plan that may not run on numbers that are drawn is
        captured at the first call."""
        if plan.spec.kind != "cuda":
            raise TargetError(
                f"plan {plan.tasks.name} is for {plan.spec.name}",
                f"this target is {self.spec.name}",
                "compile the model for target='cuda'",
            )
        check_providers(
            plan,
            self._runners,
            "the package that provides them is not installed here",
            "pip install 'anabranch[cuda]', or compile the model again on this machine",
        )
        count = 2 + max((launch.stream for launch in plan.schedule.launches), default=0)
        while len(self._streams) < count:
            self._streams.append(torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]
        if any(launch.urgent for launch in plan.schedule.launches):
            while len(self._urgent) < count:
                stream = torch.cuda.Stream(self.device, URGENT)  # type: ignore[no-untyped-call]
                self._urgent.append(stream)
        with torch.cuda.device(self.device), torch.no_grad(), precision(self.tf32):
            streams = (
                self._placed(plan, self._streams, False),
                self._placed(plan, self._urgent, True),
            )
            libraries = self._workspaces.ensure(_multiplying(plan, *streams))
            self.prepare([task.kernel for task in plan.tasks.tasks if task.kernel])
            before = torch.cuda.memory_allocated(self.device)
            shared = beside.arena if beside is not None else None
            placed = place(plan, self.device, self._runners, contents, shared, states)
            taken = torch.cuda.memory_allocated(self.device) - before
            together = beside if placed.arena is shared else None
            fresh = held_at(plan, placed, arena=together is None)
            own = max(0, taken - sum(sum(at.values()) for at in fresh.values()))
            later = not contents and needs_values(plan)
            assert together is None or isinstance(together, CudaExecutable)
            run = CudaExecutable(
                *(plan, placed, *streams, repeat),
                later=later,
                kernel_bytes=own,
                beside=together,
                waiting=self._triton.waiting,
            )
            return self._with_libraries(run, libraries)

    def load_cold(
        self,
        plan: Plan,
        repeat: int,
        copies: int,
        contents: Mapping[str, torch.Tensor] | None = None,
    ) -> CudaExecutable:
        """As `load`, with copies of constants by turns: together they are larger than the L2, so
        what one run has read is gone when its turn comes again. The inputs are the same, as those
        of a plan are, which the kernel before has just written."""
        run = self.load(plan, 0, contents)
        with torch.cuda.device(self.device), torch.no_grad(), precision(self.tf32):
            own = [with_own_constants(plan) for _ in range(copies - 1)]
            others = [place(copy, self.device, self._runners, beside=run.placed) for copy in own]
            return self._with_libraries(run.by_turns(others, repeat), run.libraries)

    def again(self, run: Executable, plan: Plan) -> CudaExecutable:
        """As `load`, at the price of a capture."""
        assert isinstance(run, CudaExecutable), "an executable of another target"
        with torch.cuda.device(self.device), torch.no_grad(), precision(self.tf32):
            self.prepare([task.kernel for task in run.unmade(plan) if task.kernel])
            libraries = self._workspaces.ensure(_multiplying(plan, *run.streams))
            return self._with_libraries(run.again(plan), libraries)

    def give_back(self) -> int:
        """Memory that libraries keep for plans that are gone; what torch keeps goes back, too."""
        with torch.cuda.device(self.device), torch.no_grad():
            freed = self._workspaces.give_back()
            torch.cuda.empty_cache()
            return freed

    def _with_libraries(self, run: CudaExecutable, libraries: Mapping[int, int]) -> CudaExecutable:
        run.libraries = libraries
        self._workspaces.used(run, libraries.keys())
        return run

    def _placed(
        self, plan: Plan, ours: Sequence[torch.cuda.Stream], urgent: bool
    ) -> list[torch.cuda.Stream]:
        """By stream of the plan which of ours it is; none where it launches none of the kind."""
        if urgent and not any(launch.urgent for launch in plan.schedule.launches):
            return []
        return [ours[place] for place in stream_places(plan, urgent)]

    def _workspace_of(self, stream: torch.cuda.Stream) -> int:
        """Have cuBLAS make the workspace of a stream in a pool of ours, and count its bytes.

        torch.compile's CUDA graphs free the workspaces of all streams when they record. In a pool
        of ours what is freed so is given to no other stream, and graphs that were captured with it
        go on writing to memory of this target.
        """
        before = torch.cuda.memory_allocated(self.device)
        with torch.cuda.use_mem_pool(_workspaces(self.device)), torch.cuda.stream(stream):
            square = torch.zeros(16, 16, dtype=torch.float16, device=self.device)
            torch.addmm(square[0], torch.mm(square, square), square)
            del square
        return max(0, torch.cuda.memory_allocated(self.device) - before)

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """Medians by CUDA events around replays, interleaved; launches are issued ahead of the
        device, so the host takes no part in them."""
        loaded = [run for run in runs if isinstance(run, CudaExecutable)]
        assert len(loaded) == len(runs), "executables of another target"
        # What is many runs in a row is a mean of many already.
        each = [timing.PER_ROUND if run.repeat <= ROW else 1 for run in loaded]
        with torch.cuda.device(self.device):
            samples = timing.interleaved([run.replay for run in loaded], budget, each=each)
        return [summarised(taken, run.repeat) for taken, run in zip(samples, loaded, strict=True)]

    def probe(self, run: Executable) -> dict[str, Probe]:
        """Registers, shared memory and CTAs: of generated kernels as their cubins say, of others as
        a capture of each task alone shows, with cuDNN's own numbers for workspaces."""
        assert isinstance(run, CudaExecutable), "an executable of another target"
        with torch.cuda.device(self.device):
            return self._probed(run)

    def _probed(self, run: CudaExecutable) -> dict[str, Probe]:
        kernels = {task.name: task.kernel for task in run.plan.tasks.tasks if task.kernel}
        probes = {
            name: self._triton.probe(kernel)
            for name, kernel in kernels.items()
            if kernel.provider == "triton"
        }
        if len(probes) == len(kernels):
            return probes
        workspaces = {
            name: self._cudnn.engine(kernel).workspace
            for name, kernel in kernels.items()
            if kernel.provider == "cudnn" and self._cudnn
        }
        return probe(run, workspaces) | probes

    def timeline(self, run: Executable) -> Timeline | None:
        """Spans of one run under CUPTI, by torch's profiler; a graph is launched kernel by kernel
        for it."""
        assert isinstance(run, CudaExecutable), "an executable of another target"
        with torch.cuda.device(self.device):
            return profile.timeline(run)

    def kernel_spans(self, run: Executable) -> tuple[str, tuple[KernelSpan, ...]]:
        """Of a replay of the graph under CUPTI, by torch's profiler; none where few are shown."""
        assert isinstance(run, CudaExecutable), "an executable of another target"
        with torch.cuda.device(self.device):
            return profile.kernel_spans(run)

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        """The median from a call to the end of what it launched, the host's work in it: nothing is
        issued ahead."""
        with torch.cuda.device(self.device):
            (taken,) = timing.interleaved([lambda: _drop(call())], budget, ahead=False)
        return summarised(taken)

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        """The model is captured as a CUDA graph on a stream of this target, and run as it is where
        that fails."""
        assert isinstance(run, CudaExecutable), "an executable of another target"
        with torch.cuda.device(self.device), precision(self.tf32):
            return beside_model(run, model, self._streams[0], budget)

    def own_precision(self) -> AbstractContextManager[None]:
        """tf32 for fp32 products and convolutions where the target was made with it, and full fp32
        where not."""
        return precision(self.tf32)

    @contextmanager
    def full_precision(self, lean: bool = False) -> Iterator[None]:
        """Without cuDNN, which takes 20 ms to plan each new shape, and which is judged by this."""
        flags = torch.backends.cudnn
        before = flags.enabled
        with settable():
            flags.enabled = lean and before
        try:
            with precision(tf32=False):
                yield
        finally:
            with settable():
                flags.enabled = before


def _multiplying(
    plan: Plan, streams: Sequence[torch.cuda.Stream], urgent: Sequence[torch.cuda.Stream]
) -> list[torch.cuda.Stream]:
    """The streams on which the plan calls cuBLAS, each once."""
    used = ((urgent if soon else streams)[stream] for stream, soon in library_streams(plan))
    return list({stream.cuda_stream: stream for stream in used}.values())


@cache
def _workspaces(device: torch.device) -> torch.cuda.MemPool:
    """The pool of a device's workspaces, never given up, not at the exit of the process either:
    torch ends the process when a pool goes while it believes that somebody captures a graph, which
    a capture that failed leaves it believing."""
    with torch.cuda.device(device):
        pool = torch.cuda.MemPool()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    return pool


def _drop(_: object) -> None:
    """For calls whose result nobody wants."""

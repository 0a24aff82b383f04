"""A plan as one multi-stream CUDA graph.

    s0   start ──conv1──────────────concat── end
                  └ event            ↑ wait
    s1              └ wait ─conv2────┘

Streams other than the first join the capture by their first wait, or by the start event if they
have none, and all are waited for at the end. Pool values are dropped where the plan says, so that
the allocator may hand their bytes to later launches of the same stream.

An urgent launch goes to a second stream of higher priority, between the launches before and after
it: a captured kernel keeps the priority of its stream. A stream that is urgent as a whole costs no
edge; one that turns back has an edge more, from its last launch that was as urgent.

A call while its caller captures a graph of their own puts the plan's launches into that graph, as
they went into ours: their inputs, results and memory are those of the plan, which then lives as
long as the process. A caller that replays such a graph beside other calls of the plan must order
them.

All kernels of the graph, a library's too, ask for one carve-out of L1
(`kernels.triton.l1_carveout`).

A kernel of a library starts when those before it have ended, also where the library would have it
start sooner: not all of them wait for what they read (`nodes`). In a graph of ours its edges say
so; elsewhere a launch that does nothing goes before it, for a kernel that is launched as a
programmatic dependent overlaps with the launch right before it alone. Another one ends the run, for
the caller may go on with such a kernel.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TypedDict

import torch
from torch import Tensor

from anabranch.errors import TargetError
from anabranch.ir.ambient import without_autocast
from anabranch.ir.call_padding import CallPadding
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import HeldMemory, RunCall
from anabranch.ir.schedule import Launch
from anabranch.ir.task import GENERATED, Task, alias_roots
from anabranch.ir.variant import Variant, without_carveout
from anabranch.kernels.triton.l1_carveout import carveout_of
from anabranch.targets.calling import Turn, alone, without_gradients
from anabranch.targets.cuda import nodes
from anabranch.targets.cuda.cached_memory import with_room
from anabranch.targets.cuda.call_order import Turns
from anabranch.targets.cuda.capturing import captured
from anabranch.targets.cuda.device_sleep import device_sleep
from anabranch.targets.cuda.input_copies import filler
from anabranch.targets.forks import FORKS
from anabranch.targets.loading import LoadedPlan, Placed, copied, held_at, kept_places
from anabranch.targets.padded_rows import PaddedRows

WARM_UPS = 2
"""Runs before capture: libraries initialise, choose algorithms and allocate workspaces in them."""

_let_go: list[torch.cuda.CUDAGraph] = []
"""Graphs that nobody holds any more, but which went while their thread captured another: CUDA frees
none then, and what was captured so far would be lost. They are freed when the next plan is
loaded."""


_in_other_graphs: list[CudaExecutable] = []
"""Plans whose launches a caller has captured: the graph holds addresses of their memory and of
their code, and nobody is told when it goes."""


def _free(graph: torch.cuda.CUDAGraph) -> None:
    """Nothing holds the graph but this call."""
    if torch.cuda.is_current_stream_capturing():
        _let_go.append(graph)


class CudaExecutable(LoadedPlan):
    """A plan loaded on a GPU. Calls from several threads or streams wait for each other."""

    def __init__(
        self,
        plan: Plan,
        placed: Placed,
        streams: Sequence[torch.cuda.Stream],
        urgent: Sequence[torch.cuda.Stream] = (),
        repeat: int = 1,
        warm_ups: int = WARM_UPS,
        later: bool = False,
        kernel_bytes: int = 0,
        beside: CudaExecutable | None = None,
        turns: Sequence[Placed] = (),
        waiting: Collection[str] = (),
    ) -> None:
        """`later`: nothing runs before the first call, whose inputs are the first that its
        operators may read. `kernel_bytes`: memory that kernels hold for themselves. `beside`:
        another one with the same arena. `turns`: on what the runs in a row run, by turns, where
        that is not `placed` alone. `waiting`: names of kernels that wait for what they read."""
        self.plan, self.repeat, self.failure, self._warm_ups = plan, repeat, "", warm_ups
        self._placed, self._streams, self._urgent = placed, streams, urgent
        self._device = placed.arena.device
        self._by_turns = turns or (placed,)
        self._waited = {name for launch in plan.schedule.launches for name in launch.waits}
        self._releases = _releases(plan)
        self._pooled = list(chain.from_iterable(_pooled(plan).values()))
        self._waiting, self._in_own_graph = waiting, False
        providers = {task.name: task.kernel.provider for task in plan.tasks.tasks if task.kernel}
        self._of_libraries = {name for name, by in providers.items() if by != GENERATED}
        self._generated = GENERATED in providers.values()
        mixed = set(providers.values()) != {"aten"}
        self._launched_after = self._of_libraries if mixed else set[str]()
        """Tasks before which something is launched where edges cannot be changed. None of those
        that only follow kernels of libraries: they run as in eager."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._outputs: tuple[Tensor, ...] = ()
        self._sealed: tuple[Tensor, ...] = ()
        self._replay_graph: Callable[[], None] | None = None
        self._pool_bytes, self._kernel_bytes = 0, kernel_bytes
        self.turn: Turn = Turn() if beside is None else beside.turn
        self._forks = FORKS.count
        self.libraries: Mapping[int, int] = {}
        """Bytes that libraries keep for the streams on which it multiplies, by their handles."""
        self._turns: Turns = Turns(self._device) if beside is None else beside._turns
        self._fill = filler([placed.values[value.name] for value in plan.tasks.call_inputs])
        self._fill_all = filler(placed.inputs) if placed.states else self._fill
        self._kept = kept_places(plan)
        self._call_of = {_named(task): placed.calls[task.name] for task in plan.tasks.tasks}
        self._later = later
        if not later and beside is None:
            self._prepare()
        elif not later:
            self._prepare_alone()

    def _prepare_alone(self) -> None:
        """No other call uses the arena meanwhile: capturing runs the plan."""
        with self.turn.lock:
            stream = self._turns.take()
            try:
                self._prepare()
            finally:
                self._turns.leave(stream)

    def unmade(self, plan: Plan) -> list[Task]:
        """Those tasks of `again` whose kernels have not been made ready yet."""
        return [task for task in plan.tasks.tasks if _named(task) not in self._call_of]

    def again(self, plan: Plan) -> CudaExecutable:
        """The plan with other kernels for some tasks, on the same memory: captured, and not placed
        anew. What a library needed to begin it has had; kernels that are new run once before, for
        nothing may be loaded while a graph is captured."""
        assert plan.slots == self.plan.slots and plan.schedule == self.plan.schedule
        fresh = self.unmade(plan)
        for task in fresh:
            self._call_of[_named(task)] = self._placed.call(task)
        calls = {task.name: self._call_of[_named(task)] for task in plan.tasks.tasks}
        placed = replace(self._placed, calls=calls)
        runs = 1 if fresh else 0
        streams = self._streams, self._urgent
        return CudaExecutable(plan, placed, *streams, self.repeat, runs, **self._same)

    @property
    def placed(self) -> Placed:
        """Its memory and its calls."""
        return self._placed

    def by_turns(self, others: Sequence[Placed], repeat: int) -> CudaExecutable:
        """The plan on this memory and on others' by turns, so often in a row, to be timed. Each
        runs once before: what a library needs to begin it has had then, many times."""
        turns = (self._placed, *others)
        own = self.plan, self._placed, self._streams, self._urgent
        return CudaExecutable(*own, repeat, 1, turns=turns, **self._same)

    @property
    def _same(self) -> _Shared:
        """Of this one and of those that are captured anew on its memory."""
        return {"kernel_bytes": self._kernel_bytes, "waiting": self._waiting}

    def __call__(
        self, inputs: Sequence[Tensor], clone: bool = False, rows: PaddedRows | None = None
    ) -> tuple[Tensor, ...]:
        """Inputs are copied in, the graph is replayed on the current stream, and results are copied
        out where `clone` asks for it. `rows`: of a padded call. TargetError in a process that was
        forked after the plan was loaded."""
        if self._forks != FORKS.count:
            raise _forked(self.plan)
        if self._graph is None:  # operators run in Python, and may call this very plan
            return alone(
                self.turn, self.plan.tasks.name, lambda: self._waited_for(inputs, clone, rows)
            )
        return self._locked(inputs, clone, rows)

    def padded(self, call: CallPadding) -> RunCall:
        """Runs the plan for calls with fewer rows."""
        buffers = [self._placed.values[value.name] for value in self.plan.tasks.call_inputs]
        return partial(self, rows=PaddedRows(buffers, call))

    def _waited_for(
        self, inputs: Sequence[Tensor], clone: bool, rows: PaddedRows | None
    ) -> tuple[Tensor, ...]:
        self._wait()
        return self._locked(inputs, clone, rows)

    def _wait(self) -> None:
        if self._graph is None:
            self._placed.operators.wait_for(self.turn.lock)

    def seal(self, seal: Callable[[Sequence[Tensor]], Sequence[Tensor]]) -> None:
        """From now on copies of results that are made in grad mode have the history that `seal`
        gives to tensors. The buffers get it once: a call pays for a node of its copy alone."""
        if self._graph is not None:
            pairs = zip(self._outputs, seal(self._outputs), strict=True)
            self._sealed = tuple(
                own if i in self._kept else sealed for i, (own, sealed) in enumerate(pairs)
            )

    def _locked(
        self, inputs: Sequence[Tensor], clone: bool, rows: PaddedRows | None
    ) -> tuple[Tensor, ...]:
        with self.turn.lock:
            if torch.is_grad_enabled():
                if self._may_leave_history(inputs):
                    return without_gradients(lambda: self._run(inputs, clone, rows))
                return self._run(inputs, clone, rows, self._sealed)
            return self._run(inputs, clone, rows)

    def _run(
        self,
        inputs: Sequence[Tensor],
        clone: bool,
        rows: PaddedRows | None = None,
        sealed: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        if self._replay_graph is not None and self._turns.stays():
            self._filling(inputs, rows)
            self._replay_graph()
            return self._results(sealed if clone and sealed else self._outputs, clone, rows)
        return self._run_there(inputs, clone, rows, sealed)

    def _filling(self, inputs: Sequence[Tensor], rows: PaddedRows | None = None) -> None:
        if rows is not None:
            rows.fill(inputs)
            return
        whole = len(inputs) == len(self._placed.inputs)
        (self._fill_all if whole else self._fill)(inputs)

    def _results(
        self, outputs: Sequence[Tensor], clone: bool, rows: PaddedRows | None
    ) -> tuple[Tensor, ...]:
        if rows is not None:
            return rows.cut(outputs, clone, self._kept)
        return copied(outputs, self._kept) if clone else tuple(outputs)

    def _run_there(
        self,
        inputs: Sequence[Tensor],
        clone: bool,
        rows: PaddedRows | None,
        sealed: Sequence[Tensor],
    ) -> tuple[Tensor, ...]:
        """A call on another stream than the one before, or the first one, or without a graph."""
        if self._turns.captures():
            with torch.cuda.device(self._device):
                return self._into_other_graph(inputs, clone, rows)
        stream = self._turns.take()
        try:
            self._filling(inputs, rows)
            if self._later:
                self._later = False
                with torch.cuda.device(self._device):
                    self._prepare()
            self.replay()
            return self._results(sealed if clone and sealed else self.outputs, clone, rows)
        finally:
            self._turns.leave(stream)

    def _into_other_graph(
        self, inputs: Sequence[Tensor], clone: bool, rows: PaddedRows | None
    ) -> tuple[Tensor, ...]:
        """The launches of a call, in the graph that its caller captures. They begin on the stream
        that libraries have been prepared for."""
        for number, tensor in enumerate(inputs):
            if tensor.device != self._device and not tensor.is_pinned():
                raise TargetError(
                    f"input {number} of plan {self.plan.tasks.name} is on {tensor.device} while a "
                    "CUDA graph is captured",
                    f"a graph can copy to {self._device} from there or from pinned memory only",
                    f"move the input to {self._device} before the capture begins",
                )
        if self._later:
            raise TargetError(
                f"plan {self.plan.tasks.name} is called for the first time while a CUDA graph is "
                "captured",
                "its operators look at the values of its inputs, which a capture does not have",
                "call it once before the capture begins",
            )
        _in_other_graphs.append(self)
        self._filling(inputs, rows)
        main, side = torch.cuda.current_stream(self._device), self._streams[0]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(max(1, self.repeat)):
                self.launch_all()
        main.wait_stream(side)
        return self._results(super().outputs, clone, rows)

    @contextmanager
    def writing(self) -> Iterator[Callable[[Sequence[Tensor]], tuple[Tensor, ...]]]:
        """The captured graph reads constants where they are: it needs no capturing again."""
        with (
            self.turn.writing(self.plan.tasks.name, self._wait) as first,
            torch.cuda.device(self._device),
            torch.no_grad(),
        ):
            stream = self._turns.take() if first else None
            try:
                yield lambda inputs: self._run(inputs, clone=True)
            finally:
                if first:
                    self._turns.leave(stream)

    def _may_leave_history(self, inputs: Sequence[Tensor]) -> bool:
        """Whether a call must turn gradients off, which takes as long as all else in Python."""
        if self._graph is None:
            return True
        return any([x.requires_grad for x in inputs]) or any(
            [x.requires_grad for x in self.outputs]
        )

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Where a replay leaves its results: as captured, whatever ran outside the graph since."""
        return self._outputs or super().outputs

    def replay(self) -> None:
        """One run on what the input buffers hold, on the current stream."""
        if self._graph is not None:
            self._graph.replay()
            return
        with torch.cuda.device(self._device):
            for _ in range(max(1, self.repeat)):
                self.launch_all()

    def shaken(self, pause: Callable[[str], float]) -> tuple[Tensor, ...]:
        """One run outside the graph, in which a stream spins before a task as long as `pause` says,
        in microseconds."""

        def delayed(name: str, call: Callable[[], None]) -> None:
            if us := pause(name):
                device_sleep(us)
            call()

        with self.turn.lock, torch.cuda.device(self._device):
            self.launch_all(delayed)
            return super().outputs

    @property
    def streams(self) -> tuple[Sequence[torch.cuda.Stream], Sequence[torch.cuda.Stream]]:
        """Those of the target that each stream of the plan is, and for urgent launches."""
        return self._streams, self._urgent

    @property
    def side(self) -> torch.cuda.Stream:
        """Where it was captured: libraries have what they need to launch there."""
        return self._streams[0]

    @property
    def values(self) -> dict[str, Tensor]:
        """What calls of tasks read and write, by name: results that they allocate come and go."""
        return self._placed.values

    def held(self) -> HeldMemory:
        """Bytes by address, the workspaces that cuBLAS keeps for these streams among them, the pool
        of the graph, and code of generated kernels."""
        places = {**held_at(self.plan, self._placed), "libraries": self.libraries}
        return HeldMemory(places, self._pool_bytes, self._kernel_bytes)

    def peak_bytes(self) -> int:
        """The arena, and what the graph's private pool took."""
        return self.plan.arena_bytes + self._pool_bytes

    def launch_all(self, around: Callable[[str, Callable[[], None]], None] | None = None) -> None:
        """Issue every task on its stream, forked from and joined to the current stream of the
        plan's device, which is the current one, also where something is raised on the way.
        `around` gets each task's name and call, to mark or delay it."""
        main = torch.cuda.current_stream(self._device)
        last = {0: main}
        try:
            with without_autocast():
                self._launch_all(main, last, around or (lambda _, call: call()))
        finally:
            for stream in last.values():
                if stream != main:
                    end = torch.cuda.Event()  # type: ignore[no-untyped-call]
                    end.record(stream)
                    main.wait_event(end)
        if self._generated and not self._in_own_graph:
            device_sleep(0.0)

    def _launch_all(
        self,
        main: torch.cuda.Stream,
        last: dict[int, torch.cuda.Stream],
        around: Callable[[str, Callable[[], None]], None],
    ) -> None:
        """`last`: by stream of the schedule, where its last launch went; filled in."""
        events: dict[str, torch.cuda.Event] = {}
        start = torch.cuda.Event()  # type: ignore[no-untyped-call]
        start.record(main)
        for launch in self.plan.schedule.launches:
            for name in self._releases.get(launch.task, ()):
                self._placed.values.pop(name, None)
            before = last.get(launch.stream)
            stream = last[launch.stream] = self._stream(launch, main)
            if before is not None and before != stream:
                stream.wait_stream(before)
            elif before is None and not launch.waits:
                stream.wait_event(start)
            for name in launch.waits:
                stream.wait_event(events[name])
            with torch.cuda.stream(stream):
                if launch.task in self._launched_after and not self._in_own_graph:
                    device_sleep(0.0)
                around(launch.task, self._placed.calls[launch.task])
            if launch.task in self._waited:
                events[launch.task] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                events[launch.task].record(stream)

    def _stream(self, launch: Launch, main: torch.cuda.Stream) -> torch.cuda.Stream:
        # Without a graph, an operator that is not torch's may launch on the default stream whatever
        # the current one is, and that waits for no stream of ours: all goes in the caller's order.
        if self.failure and self._placed.operators:
            return main
        if launch.urgent:
            return self._urgent[launch.stream]
        return self._streams[launch.stream] if launch.stream else main

    def _prepare(self) -> None:
        if not self.repeat:
            return
        if not self.plan.graph:
            self.failure = "the plan is launched by each call, as it was asked for"
            return
        if not torch.cuda.is_current_stream_capturing():
            _let_go.clear()
        side = self._streams[0]
        before_runs = [(place, place.clone()) for place in self.states.values()]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._warm_ups):
                self._launch_on_each(len(self._by_turns))
                for place, value in before_runs:
                    place.copy_(value)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        del before_runs
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        try:
            graph = with_room(partial(self._captured, side))
        except RuntimeError as failed:
            self.failure = str(failed).splitlines()[0]
            torch.cuda.synchronize()
            return
        self._graph, self._outputs = graph, super().outputs
        # Without torch's own wrapper, which costs as much as a check of ours.
        self._replay_graph = partial(torch._C._CUDAGraph.replay, graph)
        weakref.finalize(self, _free, graph).atexit = False
        self._pool_bytes = max(0, torch.cuda.max_memory_allocated() - before)

    def _captured(self, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        graph = self._recorded(side)
        with torch.cuda.stream(side):
            with suppress(TargetError):  # a preference: without it all is right, and slower
                nodes.part(graph.raw_cuda_graph(), carveout_of(self.plan.tasks))
            graph.instantiate()
        return graph

    def _recorded(self, side: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
        """The graph, which is not instantiated yet, in which kernels of libraries start when those
        before them have ended."""
        record = partial(self._launch_on_each, self.repeat)
        self._in_own_graph = True
        try:
            graph = captured(record, side, keep=True)
            if self._of_libraries:
                nodes.join(graph.raw_cuda_graph(), self._waiting)
        except TargetError:  # a driver that cannot change edges: launches stand between
            self._in_own_graph = False
            graph = captured(record, side, keep=True)
        finally:
            self._in_own_graph = False
        return graph

    def _launch_on_each(self, times: int) -> None:
        """So many runs in a row, by turns. What operators allocate is kept by the first turn alone:
        the others leave results behind that nobody reads, of any size."""
        own = self._placed
        try:
            for at in range(times):
                self._placed = self._by_turns[at % len(self._by_turns)]
                self.launch_all()
                if self._placed is not own:
                    for name in self._pooled:
                        self._placed.values.pop(name, None)
        finally:
            self._placed = own


class _Shared(TypedDict):
    """Arguments of an executable."""

    kernel_bytes: int
    waiting: Collection[str]


def _forked(plan: Plan) -> TargetError:
    return TargetError(
        f"plan {plan.tasks.name} cannot be called in this forked process",
        "what a process has on a GPU does not survive a fork",
        "start processes by 'spawn' (torch.multiprocessing.set_start_method), and compile or load "
        "the plan in each",
    )


def _named(task: Task) -> tuple[str, str, str, Variant | str]:
    """A kernel on the memory of a task: its text depends on nothing else, and the carve-out is
    said to the graph."""
    kernel = task.kernel
    assert kernel is not None, f"task {task.name} has no kernel"
    variant = kernel.variant
    base = without_carveout(variant) if isinstance(variant, Variant) else variant
    return task.name, kernel.provider, kernel.name, base


def _pooled(plan: Plan) -> dict[str, list[str]]:
    """By pool value: its name, and those of its aliases."""
    bases = alias_roots(plan.tasks)
    return {
        slot.value: [slot.value, *(alias for alias, base in bases.items() if base == slot.value)]
        for slot in plan.slots
        if slot.space == "pool"
    }


def _releases(plan: Plan) -> dict[str, list[str]]:
    """By task: the pool values, and their aliases, to drop before its launch."""
    names = _pooled(plan)
    table: dict[str, list[str]] = {}
    for slot in plan.slots:
        if slot.space == "pool" and slot.release is not None:
            table.setdefault(slot.release, []).extend(names[slot.value])
    return table

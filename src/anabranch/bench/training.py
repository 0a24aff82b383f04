"""Whole training steps side by side: models x dtypes x batches -> a record.

    for each model, dtype, batch:
      eager makes STEPS steps in higher precision      the losses that all others are compared with
      every rival and ours are built in turn           compile_s; a failure or a timeout is a row
      each makes STEPS steps from the same state       losses too far off: the row says wrong
      all that stand are timed in common rounds        median, p10, p90; ratio to ours, paired

Higher precision is fp64 for fp32, and fp32 for tf32 and bf16. The loss of a step may be off by
DEVIATIONS times what eager's own are until then in the row's dtype, and by FLOOR at least, as a
part of the largest loss: roundings grow from step to step, how fast depends on the network. Eager
runs in ORDERS orders of the batch, which change nothing but roundings, and the worst counts: of a
single run a loss is off by ten times more or less, as luck has it. Weights, optimizer and
statistics are fp32; in bf16 the forward pass and the loss run under autocast.

`anabranch` is the replay of our plan, `anabranch-call` the call of `compile_step`'s result as users
make it; each row trains a copy of the model. On a simulated GPU nothing runs, and rows have the
forecast. Of ours `facts` has the phases: microseconds of its tasks one by one.
"""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch import api
from anabranch.bench import harness
from anabranch.bench.built import KEPT_FACTS, System, reason, told_apart, without_graph
from anabranch.bench.deadline import Expired, within
from anabranch.bench.harness import Cell, Save, cells_of
from anabranch.bench.machine import Machine, TimedCall, machine
from anabranch.bench.result_rows import (
    CALL,
    BenchmarkMatrix,
    BenchmarkRow,
    check_names,
    named,
    rivals_of,
    variant,
)
from anabranch.bench.speed import kept_there, lost
from anabranch.bench.spread import spread_over
from anabranch.bench.timed import built_then_timed, timed
from anabranch.bench.training_rivals import RIVALS, USUAL, eager, loss_in, rewind
from anabranch.compiled.training_step import TrainingStep
from anabranch.costs.stopwatch import lacks_graph
from anabranch.errors import OptionError
from anabranch.models.training_recipes import OPTIMIZERS, Trainable, load_trainable
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.targets.tf32 import precision
from anabranch.trace import Trace
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

STEPS = 5
DEVIATIONS = 3.0
ORDERS = 3
FLOOR = {"fp32": 1e-4, "tf32": 2e-3, "bf16": 5e-3}
"""By dtype, of all that can be trained; parts of the largest loss."""
STOPPED = "not built: stopped as asked"


@dataclass(frozen=True, slots=True)
class TrainingCase:
    """One network with one dtype and batch. `reference`: losses of STEPS steps in higher precision;
    `tolerance`: how far off those of others may be; both empty where nothing runs."""

    name: str
    dtype: str
    batch: int
    network: Trainable
    reference: tuple[float, ...] = ()
    tolerance: tuple[float, ...] = ()

    @property
    def telling(self) -> bool:
        """Whether a step that updates nothing would be found out."""
        idle = deviations(self.reference[:1] * len(self.reference), self.reference)
        return any(off > allowed for off, allowed in zip(idle, self.tolerance, strict=True))


@dataclass(frozen=True, slots=True)
class Compared:
    """The largest deviation of losses, and how many times what is allowed; wrong is above 1."""

    difference: float
    excess: float


@dataclass(frozen=True, slots=True)
class Built:
    """A system, and how its losses compare when it makes its first steps again."""

    system: System
    again: Callable[[], Compared] | None = None


def run(
    matrix: BenchmarkMatrix,
    trace: Trace | None = None,
    save: Save | None = None,
    workers: WorkerPool | None = None,
) -> dict[str, Any]:
    """The record of the whole matrix. `save` gets it anew after every model. An interrupt while
    systems are built stops building: those that stand are timed, and the benchmark ends with that.
    `rival_timeout` is for ours as well, which then ends with the best so far. `workers`: who
    does cells instead of this process. OptionError for names that mean nothing."""
    trace, here = trace or Trace(), machine(matrix.target)
    rivals = _checked(matrix, here)
    return harness.run(
        "training",
        here.target,
        {**asdict(matrix), "rivals": rivals, "steps": STEPS, "tolerance": FLOOR},
        [
            cell
            for model in matrix.models
            for cell in cells_of(
                (model,), matrix.dtypes, matrix.own_batches.get(model, matrix.batches)
            )
        ],
        lambda cell: _cell(matrix, here, rivals, cell, trace),
        trace,
        save,
        cut_short=lambda rows: "stop" if any(row.failure == STOPPED for row in rows) else "",
        spread=spread_over(workers, _rows_there, (matrix, rivals), lost),
    )


def _rows_there(
    there: WorkerPlace, matrix: BenchmarkMatrix, rivals: Sequence[str], cell: Cell
) -> list[BenchmarkRow]:
    """What a worker does."""
    own_matrix = kept_there(matrix, there)
    return _cell(own_matrix, machine(own_matrix.target), rivals, cell, there.trace)


def _checked(matrix: BenchmarkMatrix, here: Machine) -> tuple[str, ...]:
    """The rivals, once all names are known to mean something."""
    rivals = rivals_of(matrix, USUAL.get(here.target, ()), RIVALS)
    check_names("scheduler", matrix.schedulers, SCHEDULERS)
    for system in matrix.systems:
        variant(system)
    for dtype in matrix.dtypes:
        if dtype not in FLOOR:
            raise OptionError(
                f"training steps are not measured in {dtype}",
                "its gradients are too small without a scaler, and rivals have none here",
                f"choose from: {', '.join(FLOOR)}",
            )
    Options.read(matrix.options, environment=False)
    return rivals


def _cell(
    matrix: BenchmarkMatrix, here: Machine, rivals: Sequence[str], cell: Cell, trace: Trace
) -> list[BenchmarkRow]:
    name, dtype, batch = cell

    def rows(case: TrainingCase, built: list[Built]) -> list[BenchmarkRow]:
        checks = {entry.system.name: entry.again for entry in built if entry.again is not None}
        compared: dict[str, Compared] = {}
        systems = [entry.system for entry in built]
        again = partial(_again, checks, compared)
        timed_rows = list(timed(case, systems, here, matrix.seconds, again))
        return [_judged(row, compared.get(row.system), case) for row in timed_rows]

    with torch.enable_grad(), precision(dtype == "tf32"), TemporaryDirectory() as scratch:
        return built_then_timed(
            cell,
            here,
            lambda: load_case(name, dtype, batch, here, matrix.trust),
            lambda case: _built(matrix, case, rivals, here, Path(scratch), trace),
            rows,
            trace,
        )


def load_case(name: str, dtype: str, batch: int, here: Machine, trust: bool) -> TrainingCase:
    """The network where it will run, and what eager's losses are."""
    network = load_trainable(name, batch, here.device, trust)
    if here.simulated:
        return TrainingCase(name, dtype, batch, network)
    higher = torch.float64 if dtype == "fp32" else torch.float32

    def up(leaf: Any) -> Any:
        return leaf.to(higher) if leaf.dtype.is_floating_point else leaf

    model = copy.deepcopy(network.model).to(higher)
    higher_batch = pytree.tree_map_only(Tensor, up, network.batch)
    exact = replace(network, model=model, batch=higher_batch)
    with precision(False):
        reference = _eager_losses(exact, "fp32", here)
    orders = (turned(network, batch, order * batch // ORDERS) for order in range(ORDERS))
    runs = [deviations(_eager_losses(reordered, dtype, here), reference) for reordered in orders]
    until = [max(max(own[: step + 1]) for own in runs) for step in range(STEPS)]
    tolerance = tuple(max(FLOOR[dtype], DEVIATIONS * off) for off in until)
    return TrainingCase(name, dtype, batch, network, reference, tolerance)


def turned(network: Trainable, batch: int, by: int) -> Trainable:
    """The network with the last `by` of its batch in front: the same losses, rounded otherwise."""

    def moved(leaf: Tensor) -> Tensor:
        return leaf.roll(by, 0) if leaf.dim() and leaf.shape[0] == batch else leaf

    return replace(network, batch=pytree.tree_map_only(Tensor, moved, network.batch))


def _eager_losses(network: Trainable, dtype: str, here: Machine) -> tuple[float, ...]:
    loop = eager(network, dtype, here)
    return losses(loop.step, partial(rewind, network, loop.model, loop.optimizer))


def losses(step: TimedCall, from_start: TimedCall) -> tuple[float, ...]:
    """Those of the first steps."""
    from_start()
    return tuple(float(step()) for _ in range(STEPS))


def deviations(actual: Sequence[float], reference: Sequence[float]) -> tuple[float, ...]:
    """By step, as parts of the largest loss; infinite for what is no number.

    >>> deviations([2.0, 1.0], [2.0, 1.5]), deviations([float("nan"), 1.0], [2.0, 1.5])
    ((0.0, 0.25), (inf, 0.25))
    """
    largest = max(map(abs, reference)) or 1.0
    off = (abs(a - b) / largest for a, b in zip(actual, reference, strict=True))
    return tuple(deviation if deviation == deviation else math.inf for deviation in off)


def compared(actual: Sequence[float], case: TrainingCase) -> Compared:
    """The losses of a system beside the reference."""
    off = deviations(actual, case.reference)
    excess = max(
        deviation / allowed for deviation, allowed in zip(off, case.tolerance, strict=True)
    )
    return Compared(max(off), excess)


def _built(
    matrix: BenchmarkMatrix,
    case: TrainingCase,
    rivals: Sequence[str],
    here: Machine,
    scratch: Path,
    trace: Trace,
) -> list[Built]:
    """All that is asked for, one after the other, ours first."""
    options: dict[str, Any] = {"target": here.target, "tf32": case.dtype == "tf32"}
    options |= {"cache_dir": scratch} if matrix.cold else {}
    own = {**options, **matrix.options}
    limits = {} if matrix.budget is None else {"budget": matrix.budget}
    ours = [
        *([(own, {})] if matrix.ours else []),
        *((own, {"scheduler": name}) for name in matrix.schedulers),
        *(({**options, **limits}, variant(name)) for name in matrix.systems),
    ]
    tasks: list[tuple[str, Callable[[], list[Built]]]] = [
        *((named(a), partial(_ours, case, here, o, a, matrix, trace)) for o, a in ours),
        *((name, partial(_rival, name, case, here, matrix)) for name in rivals),
    ]
    built: list[Built] = []
    stopped = False
    for name, build in tasks:
        entries = [Built(System(name, None, failure=STOPPED))]
        if not stopped:
            trace.add("chosen", "bench", name, f"building its step for {case.name}")
            try:
                entries = build()
            except KeyboardInterrupt:
                stopped = True
        for entry in entries:
            before = [other.system for other in built]
            built.append(replace(entry, system=told_apart(entry.system, before)))
            if entry.system.failure:
                what = f"{case.name} {case.dtype} batch {case.batch}, {name}"
                trace.add("warning", "bench", what, entry.system.failure)
    return built


def _ours(
    case: TrainingCase,
    here: Machine,
    options: dict[str, Any],
    asked: dict[str, Any],
    matrix: BenchmarkMatrix,
    trace: Trace,
) -> list[Built]:
    """Our replay and, for the plan that users get, our call."""
    name, network = named(asked), case.network
    model = copy.deepcopy(network.model)
    optimizer = OPTIMIZERS[network.optimizer](model.parameters())
    loss_fn = loss_in(case.dtype, network.loss, here.device)
    start = time.perf_counter()
    try:
        with _stopped_after(matrix.rival_timeout) as stop:
            chosen = {**options, **asked, "trace": trace, "stop": stop}
            step = api.compile_step(model, loss_fn, optimizer, network.batch, **chosen)
        seconds = time.perf_counter() - start
        executable, facts = step.executable(), _facts(step, case)
        peak = facts["memory"]["total"] - facts["memory"]["states"]
        first = System(name, None, seconds, peak, facts=facts, plan=step.plan)
        first = replace(first, note=str(facts.get("scheduler", "")))
        if executable is None:
            return [Built(first)]
        call = partial(step, *network.batch)
        check = partial(_check, case, call, partial(rewind, network, model, optimizer))
        off = check()
        here.synchronize()
    except Exception as failed:
        return [Built(System(name, None, failure=reason(failed)))]
    if lacks_graph(executable):
        built = [Built(without_graph(first, executable))]
    else:
        replay = replace(first, call=executable.replay)
        built = [Built(_right(replay, off), check)]
    if not asked:
        users = System(CALL, call, seconds, peak, note=first.note, replayed=False)
        built.append(Built(_right(users, off), check))
    return built


def _facts(step: TrainingStep, case: TrainingCase) -> dict[str, Any]:
    held = step.memory()
    memory = {kind: count for kind, count in asdict(held).items() if isinstance(count, int)}
    all_facts = step.known
    return {
        **{key: all_facts[key] for key in KEPT_FACTS if key in all_facts},
        "memory": {**memory, "total": held.total},
        "phases": step.phases(),
        **_about(case),
    }


def _about(case: TrainingCase) -> dict[str, Any]:
    """What a row says of the comparison."""
    network = case.network
    about: dict[str, Any] = {"loss": network.kind, "optimizer": network.optimizer}
    if case.reference:
        about |= {"reference": list(case.reference), "tolerance": list(case.tolerance)}
    return about


@contextmanager
def _stopped_after(seconds: float | None) -> Iterator[threading.Event]:
    """An event that is set when the seconds are over."""
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set) if seconds is not None else None
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield stop
    finally:
        if timer is not None:
            timer.cancel()


def _rival(name: str, case: TrainingCase, here: Machine, matrix: BenchmarkMatrix) -> list[Built]:
    """The rival built for this network, or the sentence that says why it does not stand."""
    network, timeout = case.network, matrix.rival_timeout
    start = time.perf_counter()
    try:
        with _without_caches(matrix.cold), within(timeout):
            loop = RIVALS[name](network, case.dtype, here)
            here.synchronize()
            seconds = time.perf_counter() - start
            peak = loop.peak_bytes if loop.peak_bytes is not None else here.peak_of(loop.step)
            start_again = partial(rewind, network, loop.model, loop.optimizer)
            check = partial(_check, case, loop.step, start_again)
            off = check()
    except Expired:
        return [Built(System(name, None, failure=f"not done in {timeout:g} s"))]
    except Exception as failed:
        return [Built(System(name, None, failure=reason(failed)))]
    system = System(
        name, loop.step, seconds, peak, None, loop.note, facts=_about(case), replayed=loop.replayed
    )
    return [Built(_right(system, off), check)]


@contextmanager
def _without_caches(cold: bool) -> Iterator[None]:
    """Inductor compiles as in its first process, where that is asked for."""
    if not cold:
        yield
        return
    import torch._inductor.config

    with torch._inductor.config.patch(force_disable_caches=True):
        yield


def _check(case: TrainingCase, step: TimedCall, from_start: TimedCall) -> Compared:
    return compared(losses(step, from_start), case)


def _again(
    checks: dict[str, Callable[[], Compared]], comparisons: dict[str, Compared], system: System
) -> float | None:
    """The larger difference of both times: nobody may have written to its memory meanwhile."""
    if system.call is None or system.difference is None or system.name not in checks:
        return system.difference
    try:
        now = checks[system.name]()
    except Exception:
        now = Compared(math.inf, math.inf)
    comparisons[system.name] = now
    return max(system.difference, now.difference)


def _right(system: System, off: Compared) -> System:
    """The system with its difference, and not to be timed if that is too large."""
    checked = replace(system, difference=off.difference)
    return checked if off.excess <= 1.0 else replace(checked, call=None, failure=wrong(off))


def wrong(off: Compared) -> str:
    """
    >>> wrong(Compared(0.5, 25.0))
    "wrong: losses of 5 steps differ by up to 0.5 from eager's, 25 times what is allowed"
    """
    return (
        f"wrong: losses of {STEPS} steps differ by up to {off.difference:.2g} from eager's, "
        f"{off.excess:.3g} times what is allowed"
    )


def _judged(row: BenchmarkRow, now: Compared | None, case: TrainingCase) -> BenchmarkRow:
    """The row with what must be said of its losses, after all rounds."""
    if row.failure or now is None:
        return row
    if not now.excess <= 1.0:
        nothing = {"median_ms": None, "p10_ms": None, "p90_ms": None, "ratio": None, "tie": False}
        said = f"after all were timed {wrong(now)}"
        return replace(row, failure=said, **nothing)  # type: ignore[arg-type]
    if not case.telling:
        weak = "losses move by less than is allowed"
        return replace(row, note="; ".join(filter(None, [row.note, weak])))
    return row

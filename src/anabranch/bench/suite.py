"""The benchmark: models x dtypes x batches, each with all systems in one process -> a record.

    for each model, dtype, batch:
      ours and every rival are built in turn       compile_s; a failure or a timeout is a row too
      all that stand are timed in common rounds    median, p10, p90; ratio to ours, paired
      outputs are compared with eager's            difference

`anabranch` is the replay of its CUDA graph, as `cudagraph` is of eager's; `anabranch-call` is the
call that users make, inputs copied in and outputs copied out. A record is JSON-ready:

    {"version": 1, "date": ..., "command": ..., "commit": ..., "machine": {...}, "versions": {...},
     "settings": {...}, "rows": [{"model": "zoo:resnet50", "dtype": "fp16", "batch": 1,
        "system": "anabranch", "median_ms": 0.31, ..., "failure": ""}, ...]}
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from anabranch import api
from anabranch.bench.deadline import Expired, within
from anabranch.bench.machine import Call, Machine, machine, precision
from anabranch.bench.provenance import provenance, versions
from anabranch.bench.rehearse import NATIVE, rehearse
from anabranch.bench.rivals import RIVALS, USUAL, forget_compiled
from anabranch.bench.statistics import Ratio, Summary, paired, summary
from anabranch.errors import OptionError
from anabranch.ir.numbers import relative_error
from anabranch.models import batch_of, load_model
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.trace import Trace

VERSION = 1
OURS = "anabranch"
NAMING = ("scheduler", "system")
"""Options whose value alone names a row."""
KEPT_FACTS = (
    "scheduler",
    "schedules",
    "streams",
    "event_waits",
    "kernels",
    "tasks",
    "modes",
    "stages_s",
    "peak_bytes_sequential",
    "max_relative_error",
)

Compile = Callable[..., Any]
"""`api.compile`, or a stand-in for it."""
Save = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Matrix:
    """What to run. rivals: None for the usual ones of the target. schedulers, systems: ours once
    more with each of these schedulers, and as each of these published systems ("autograph", or
    with options "anabranch+search=none"). seconds: of timing
    per system; rival_timeout: of building one. cold: ours starts with an empty cache, so that its
    compile time is that of a first compilation."""

    models: Sequence[str]
    dtypes: Sequence[str] = ("fp16",)
    batches: Sequence[int] = (1,)
    rivals: Sequence[str] | None = None
    schedulers: Sequence[str] = ()
    systems: Sequence[str] = ()
    target: str = "auto"
    seconds: float = 1.0
    rival_timeout: float | None = 540.0
    cold: bool = False
    budget: float | None = None
    trust: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One system on one model. Times are None where `failure` says why. ratio: how many times as
    long as anabranch's replay; tie: no difference. difference: the largest relative error of an
    output against eager's."""

    model: str
    dtype: str
    batch: int
    system: str
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    samples: int = 0
    compile_s: float | None = None
    peak_bytes: int | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    tie: bool = False
    difference: float | None = None
    note: str = ""
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cell:
    """One model with one dtype and batch, loaded, and eager's outputs for its inputs."""

    name: str
    dtype: str
    batch: int
    model: nn.Module
    args: tuple[Any, ...]
    reference: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class System:
    """Something that was built: `call` to time, None if it failed and `failure` says why."""

    name: str
    call: Call | None
    compile_s: float | None = None
    peak_bytes: int | None = None
    difference: float | None = None
    note: str = ""
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def run(
    matrix: Matrix,
    trace: Trace | None = None,
    compile: Compile = api.compile,
    save: Save | None = None,
) -> dict[str, Any]:
    """The record of the whole matrix. `save` gets it anew after every model, so that a run which
    is stopped leaves what it has done. OptionError for names that mean nothing."""
    trace, here = trace or Trace(), machine(matrix.target)
    systems = _rivals(matrix, here)
    _check_schedulers(matrix.schedulers)
    [variant(name) for name in matrix.systems]  # before anything is built
    record: dict[str, Any] = {
        "version": VERSION,
        **provenance(),
        "machine": {"target": here.target, **here.survey()},
        "versions": versions(),
        "settings": {**asdict(matrix), "rivals": list(systems)},
        "rows": [],
    }
    cells = [(m, d, b) for m in matrix.models for d in matrix.dtypes for b in matrix.batches]
    for done, (name, dtype, batch) in enumerate(cells):
        trace.progress("bench", done, len(cells), f"{name} {dtype} batch {batch}")
        with torch.no_grad(), precision(dtype == "tf32"), TemporaryDirectory() as scratch:
            rows = _cell(matrix, here, systems, (name, dtype, batch), Path(scratch), trace, compile)
        record["rows"] += [asdict(row) for row in rows]
        if save is not None:
            save(record)
    trace.progress("bench", len(cells), len(cells))
    return record


def _cell(
    matrix: Matrix,
    here: Machine,
    rivals: Sequence[str],
    place: tuple[str, str, int],
    scratch: Path,
    trace: Trace,
    compile: Compile,
) -> list[Row]:
    name, dtype, batch = place
    try:
        model, args = load_model(name, batch, dtype, here.device, trust=matrix.trust)
        batch = batch_of(name, args, batch) or batch
        cell = Cell(name, dtype, batch, model, args, _outputs(model(*args)))
    except OptionError:
        raise
    except Exception as failed:
        return [Row(name, dtype, batch, OURS, failure=_reason(failed))]
    options: dict[str, Any] = {"target": here.target, "tf32": dtype == "tf32"}
    options |= {"budget": matrix.budget} if matrix.budget is not None else {}
    options |= {"cache_dir": scratch} if matrix.cold else {}
    built: list[System] = []
    for asked in (
        {},
        *({"scheduler": name} for name in matrix.schedulers),
        *(variant(name) for name in matrix.systems),
    ):
        built += _ours(cell, here, options, asked, compile, trace)
    for rival in rivals:
        trace.add("chosen", "bench", rival, f"building it for {name}")
        built.append(_rival(rival, cell, here, matrix))
        if built[-1].failure:
            what = f"{name} {dtype} batch {batch}, {rival}"
            trace.add("warning", "bench", what, built[-1].failure)
    try:
        return list(_timed(cell, built, here, matrix.seconds))
    finally:
        built.clear()
        forget_compiled()
        gc.collect()
        with suppress(RuntimeError):
            here.release()


def variant(text: str) -> dict[str, str]:
    """The options that "autograph+search_dp=false" stands for. OptionError if it means nothing.

    >>> variant("autograph+search_dp=false")
    {'system': 'autograph', 'search_dp': 'false'}
    """
    system, *more = text.split("+")
    pairs = [word.partition("=") for word in more]
    for word, (name, equals, _) in zip(more, pairs, strict=True):
        if not name or not equals:
            raise OptionError(
                f"{word!r} is no option",
                f"{text!r} was given",
                "write a system and options, such as anabranch+search=none",
            )
    asked = {"system": system, **{name: value for name, _, value in pairs}}
    Options.read(asked, environment=False)
    return asked


def _ours(
    cell: Cell,
    here: Machine,
    options: dict[str, Any],
    asked: dict[str, str],
    compile: Compile,
    trace: Trace,
) -> Iterator[System]:
    """Our replay and, for the plan that users get, our call. `asked`: options by which the row is
    named; empty for what users get."""
    named = "+".join(v if k in NAMING else f"{k}={v}" for k, v in asked.items())
    name = f"{OURS}:{named}" if named else OURS
    start, told = time.perf_counter(), len(trace.events)
    try:
        compiled = compile(cell.model, cell.args, trace=trace, **options, **asked)
        seconds = time.perf_counter() - start
        difference = _difference(compiled(*cell.args), cell.reference)
        executable = compiled.executable()
        here.synchronize()
    except Exception as failed:
        trace.add("warning", "bench", f"{cell.name} {name}", _reason(failed))
        yield System(name, None, failure=_reason(failed))
        return
    facts = {key: compiled.facts[key] for key in KEPT_FACTS if key in compiled.facts}
    peak, chosen = executable.peak_bytes(), str(facts.get("scheduler", ""))
    wanted = asked.get("scheduler", chosen)
    fell = [f"fallback: {e.why}" for e in trace.events[told:] if e.kind == "fallback"]
    note = "; ".join([chosen if chosen == wanted else f"{chosen} was faster", *fell])
    yield System(name, executable.replay, seconds, peak, difference, note, facts=facts)
    if not asked:
        yield System(f"{OURS}-call", lambda: compiled(*cell.args), seconds, peak, difference, note)


def _rival(name: str, cell: Cell, here: Machine, matrix: Matrix) -> System:
    timeout = matrix.rival_timeout
    if name in NATIVE and here.target == "cuda" and timeout is not None:
        place = (cell.name, cell.dtype, cell.batch, here.target, matrix.trust)
        if failure := rehearse(name, *place, timeout):
            return System(name, None, failure=failure)
    start = time.perf_counter()
    try:
        with within(timeout):
            ready = RIVALS[name](cell.model, cell.args, here)
            here.synchronize()
            seconds = time.perf_counter() - start
            peak = ready.peak_bytes if ready.peak_bytes is not None else here.peak_of(ready.call)
            difference = _difference(ready.call(), cell.reference)
    except Expired:
        return System(name, None, failure=f"not done in {timeout:g} s")
    except Exception as failed:
        return System(name, None, failure=_reason(failed))
    return System(name, ready.call, seconds, peak, difference, ready.note)


def _timed(cell: Cell, built: Sequence[System], here: Machine, seconds: float) -> Iterator[Row]:
    """A row for each system, of those that stand with the times of common rounds."""
    calls = {system.name: system.call for system in built if system.call is not None}
    try:
        taken = here.sample(list(calls.values()), seconds * len(calls))
        failure = ""
    except Exception as failed:
        taken, failure = [], f"while timing: {_reason(failed)}"
    samples = dict(zip(calls, taken, strict=False))
    for system in built:
        difference = system.difference if failure else _again(system, cell)
        own, ours = samples.get(system.name), samples.get(OURS)
        numbers: Summary | None = summary(own) if own else None
        ratio: Ratio | None = paired(own, ours) if own and ours else None
        yield Row(
            cell.name,
            cell.dtype,
            cell.batch,
            system.name,
            median_ms=numbers.median if numbers else None,
            p10_ms=numbers.p10 if numbers else None,
            p90_ms=numbers.p90 if numbers else None,
            samples=numbers.samples if numbers else 0,
            compile_s=system.compile_s,
            peak_bytes=system.peak_bytes,
            ratio=ratio.ratio if ratio else None,
            ratio_low=ratio.low if ratio else None,
            ratio_high=ratio.high if ratio else None,
            tie=ratio.tie if ratio else False,
            difference=difference,
            note=system.note,
            failure=system.failure or failure,
            facts=system.facts,
        )


def _again(system: System, cell: Cell) -> float | None:
    """The difference once more, after all others have run: nobody may have written to its memory.
    Our replay returns nothing; `anabranch-call` stands for it."""
    if system.call is None or system.difference is None:
        return system.difference
    try:
        returned = system.call()
        now = 0.0 if returned is None else _difference(returned, cell.reference)
    except Exception:
        now = float("inf")
    return max(system.difference, now)


def _rivals(matrix: Matrix, here: Machine) -> tuple[str, ...]:
    chosen = USUAL[here.target] if matrix.rivals is None else tuple(dict.fromkeys(matrix.rivals))
    _known("rival", chosen, RIVALS)
    return chosen


def _check_schedulers(names: Sequence[str]) -> None:
    _known("scheduler", names, SCHEDULERS)


def _known(what: str, names: Sequence[str], known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise OptionError(
                f"unknown {what} {name!r}",
                f"no {what} has this name",
                f"choose from: {', '.join(known)}",
            )


def _outputs(returned: Any) -> tuple[Tensor, ...]:
    return tuple(leaf.clone() for leaf in tree_leaves(returned) if isinstance(leaf, Tensor))


def _difference(returned: Any, reference: Sequence[Tensor]) -> float:
    """The largest relative error; infinite if there are more or fewer outputs."""
    outputs = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
    if len(outputs) != len(reference):
        return float("inf")
    pairs = zip(outputs, reference, strict=True)
    return max((relative_error(out, own) for out, own in pairs), default=0.0)


def _reason(failed: Exception) -> str:
    text = str(failed).strip()
    return f"{type(failed).__name__}: {text.partition(chr(10))[0]}" if text else repr(failed)

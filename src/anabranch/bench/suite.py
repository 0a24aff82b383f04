"""The benchmark: models x dtypes x batches, each with all systems in one process -> a record.

    for each model, dtype, batch:
      ours and every rival are built in turn       compile_s; a failure or a timeout is a row too
      all that stand are timed in common rounds    median, p10, p90; ratio to ours, paired:
                                                   calls to our call, replays to our replay
      outputs are compared with eager's            difference

`anabranch` is the replay of its CUDA graph, as `cudagraph` is of eager's; `anabranch-call` is the
call that users make, inputs copied in and outputs copied out. On a simulated GPU nothing runs, and
rows have the forecast of ours. A record is JSON-ready:

    {"version": 1, "date": ..., "command": ..., "commit": ..., "machine": {...}, "versions": {...},
     "settings": {...}, "rows": [{"model": "zoo:resnet50", "dtype": "fp16", "batch": 1,
        "system": "anabranch", "median_ms": 0.31, ..., "failure": ""}, ...]}
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
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
from anabranch.bench.rows import CALL, OURS, Matrix, Row, named, variant
from anabranch.bench.statistics import Ratio, Summary, paired, summary
from anabranch.costs import costs_of
from anabranch.errors import OptionError
from anabranch.ir.numbers import relative_error
from anabranch.ir.plan import Plan
from anabranch.models import batch_of, load_model
from anabranch.pack import pack
from anabranch.schedule import SCHEDULERS
from anabranch.targets import resolve
from anabranch.trace import Event, Trace

VERSION = 1
KEPT_FACTS = (
    "scheduler",
    "schedules",
    "streams",
    "event_waits",
    "kernels",
    "tasks",
    "modes",
    "carveout",
    "stages_s",
    "peak_bytes_sequential",
    "max_relative_error",
    "search",
)

Compile = Callable[..., Any]
"""`api.compile`, or a stand-in for it."""
Save = Callable[[dict[str, Any]], None]


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
    """Something that was built: `call` to time, None if it failed and `failure` says why, or if
    there is only a `plan`, of what cannot run here. `replayed`: `call` replays a graph. `same`: of
    which other system it is the very plan, and not timed again: two captures of one plan differ by
    more than some systems do."""

    name: str
    call: Call | None
    compile_s: float | None = None
    peak_bytes: int | None = None
    difference: float | None = None
    note: str = ""
    failure: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    replayed: bool = True
    same: str = ""


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
    _check_systems(matrix, systems)  # before anything is built
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
        reference = () if here.simulated else _outputs(model(*args))
        cell = Cell(name, dtype, batch, model, args, reference)
    except OptionError:
        raise
    except Exception as failed:
        return [Row(name, dtype, batch, OURS, failure=_reason(failed))]
    options: dict[str, Any] = {"target": here.target, "tf32": dtype == "tf32"}
    options |= {"budget": matrix.budget} if matrix.budget is not None else {}
    options |= {"cache_dir": scratch} if matrix.cold else {}
    built: list[System] = []
    for asked in (
        *([{}] if matrix.ours else []),
        *({"scheduler": name} for name in matrix.schedulers),
        *(variant(name) for name in matrix.systems),
    ):
        limits = {}
        if _published(asked) and matrix.search_seconds is not None:
            limits = {"search_seconds": matrix.search_seconds}
        ours = _ours(cell, here, {**options, **limits}, asked, compile, trace)
        built += [_told_apart(system, built) for system in ours]
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
    name = named(asked)
    start, told = time.perf_counter(), len(trace.events)
    try:
        compiled = compile(cell.model, cell.args, trace=trace, **options, **asked)
        seconds = time.perf_counter() - start
        executable = compiled.executable()
        difference = None
        if executable is not None:
            difference = _difference(compiled(*cell.args), cell.reference)
        here.synchronize()
    except Exception as failed:
        trace.add("warning", "bench", f"{cell.name} {name}", _reason(failed))
        yield System(name, None, failure=_reason(failed))
        return
    events, known = trace.events[told:], compiled.known
    facts = {key: known[key] for key in KEPT_FACTS if key in known}
    facts["substitutions"] = list(_substitutions(events, "applied", "chosen"))
    facts["substitutions_refused"] = list(_substitutions(events, "refused"))
    peak, chosen = known.get("peak_bytes"), str(facts.get("scheduler", ""))
    wanted = asked.get("scheduler", chosen)
    fell = [f"fallback: {e.why}" for e in events if e.kind == "fallback"]
    note = "; ".join([chosen if chosen == wanted else f"{chosen} was faster", *fell])
    replay = None if executable is None else executable.replay
    plan = compiled.entries[-1].plan
    yield System(name, replay, seconds, peak, difference, note, facts=facts, plan=plan)
    if replay is not None and not asked:
        yield System(CALL, lambda: compiled(*cell.args), seconds, peak, difference, note)


def _told_apart(system: System, others: Sequence[System]) -> System:
    """The system, as the first of the others with its plan where there is one."""
    if system.plan is None:
        return system
    first = next((other for other in others if other.plan == system.plan), None)
    if first is None:
        return system
    note = "; ".join(filter(None, [system.note, f"the plan of {first.name}"]))
    return replace(system, same=first.name, note=note)


def _substitutions(events: Sequence[Event], *kinds: str) -> Iterator[str]:
    """What substitutions were measured to take, in their parts or in the whole."""
    for event in events:
        told = event.kind in kinds and "us" in dict(event.data)
        if told and event.where in ("search", "search.parts"):
            yield f"{event.what}: {event.why}"


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
    return System(name, ready.call, seconds, peak, difference, ready.note, replayed=ready.replayed)


def _timed(cell: Cell, built: Sequence[System], here: Machine, seconds: float) -> Iterator[Row]:
    """A row for each system, of those that stand with the times of common rounds."""
    if here.simulated:
        yield from _foretold(cell, built, here)
        return
    alone = [system for system in built if system.call is not None and not system.same]
    calls = {system.name: system.call for system in alone if system.call is not None}
    try:
        taken = here.sample(list(calls.values()), seconds * len(calls))
        failure = ""
    except Exception as failed:
        taken, failure = [], f"while timing: {_reason(failed)}"
    samples = dict(zip(calls, taken, strict=False))
    samples |= {one.name: samples[one.same] for one in built if one.same in samples}
    for system in built:
        difference = system.difference if failure else _again(system, cell)
        beside = OURS if system.replayed or CALL not in samples else CALL
        own, ours = samples.get(system.name), samples.get(beside)
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
            beside=beside,
            ratio=ratio.ratio if ratio else None,
            ratio_low=ratio.low if ratio else None,
            ratio_high=ratio.high if ratio else None,
            tie=ratio.tie if ratio else False,
            against=_against(own, {n: s for n, s in samples.items() if n != system.name}),
            difference=difference,
            note=system.note,
            failure=system.failure or failure,
            facts=system.facts,
        )


def _against(
    own: list[float] | None, others: Mapping[str, list[float]]
) -> dict[str, tuple[float, float, float, bool]]:
    """How many times as long as each of the others, in the rounds that they have in common."""
    found = {name: paired(own, taken) for name, taken in others.items()} if own else {}
    return {name: (r.ratio, r.low, r.high, r.tie) for name, r in found.items()}


def _foretold(cell: Cell, built: Sequence[System], here: Machine) -> Iterator[Row]:
    """Rows of plans that cannot run here, with what is forecast of them: on one scale for all."""
    plans = {s.name: s.plan for s in built if s.plan is not None}
    target = resolve(here.target, cell.dtype == "tf32")
    costs = costs_of(target, partial(pack, spec=target.spec), None, Trace(quiet=True))
    raced = costs.race([(plan.tasks, plan.schedule) for plan in plans.values()])
    known = dict(zip(plans, raced, strict=True))
    for system in built:
        own, ours = known.get(system.name), known.get(OURS)
        ratio = own.us / ours.us if own and ours else None
        pairs = {n: own.us / c.us for n, c in known.items() if own and n != system.name}
        yield Row(
            cell.name,
            cell.dtype,
            cell.batch,
            system.name,
            median_ms=own.us / 1e3 if own else None,
            source=own.source if own else "",
            compile_s=system.compile_s,
            peak_bytes=system.peak_bytes,
            ratio=ratio,
            tie=ratio == 1.0,
            against={name: (r, r, r, r == 1.0) for name, r in pairs.items()},
            note=system.note,
            failure=system.failure,
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
    usual = USUAL.get(here.target, ())
    chosen = usual if matrix.rivals is None else tuple(dict.fromkeys(matrix.rivals))
    _known("rival", chosen, RIVALS)
    return chosen


def _check_schedulers(names: Sequence[str]) -> None:
    _known("scheduler", names, SCHEDULERS)


def _check_systems(matrix: Matrix, rivals: Sequence[str]) -> None:
    """OptionError for names that mean nothing, and for what would run or limit nothing."""
    asked = [variant(name) for name in matrix.systems]
    if not (matrix.ours or rivals or matrix.schedulers or asked):
        raise OptionError(
            "there is nothing to run",
            "what users get is left out (--without-ours), and no other system is asked for",
            "name some with --systems or --rivals, such as --systems published",
        )
    if matrix.search_seconds is not None and not any(map(_published, asked)):
        raise OptionError(
            "--search-seconds limits nothing here",
            "it is for the searches of published systems, and no row is asked for of one",
            "name some, such as --systems autograph; for ours there is --budget",
        )


def _published(asked: dict[str, str]) -> bool:
    return asked.get("system", OURS) != OURS


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

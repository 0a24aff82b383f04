"""Systems that stand -> a row each, with the times of common rounds, or what is forecast of them.

[System ours, System eager, ...]  ->  BenchmarkRow ours   0.192 ms
                                      BenchmarkRow eager  3.41 ms   17.8 x
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from anabranch.bench.built import System, reason
from anabranch.bench.harness import Cell
from anabranch.bench.machine import Machine
from anabranch.bench.result_rows import CALL, OURS, BenchmarkRow, BoundedTime
from anabranch.bench.rivals import forget_compiled
from anabranch.bench.statistics import Ratio, Summary, paired, summary
from anabranch.costs import costs_of
from anabranch.errors import OptionError
from anabranch.memory import pack
from anabranch.targets import resolve
from anabranch.trace import Trace

C = TypeVar("C")
B = TypeVar("B")


class Timeable(Protocol):
    """What rows are about."""

    @property
    def name(self) -> str:
        """The model's."""

    @property
    def dtype(self) -> str:
        """By its name, "bf16"."""

    @property
    def batch(self) -> int:
        """Inputs per call."""


def built_then_timed(
    place: Cell,
    here: Machine,
    load: Callable[[], C],
    build: Callable[[C], list[B]],
    rows: Callable[[C, list[B]], list[BenchmarkRow]],
    trace: Trace,
) -> list[BenchmarkRow]:
    """The rows of a cell: it is loaded, its systems are built beside other benchmarks and timed
    alone; then they are let go. A network that cannot be loaded is a row that says why."""
    name, dtype, batch = place
    try:
        case = load()
    except OptionError:
        raise
    except Exception as failed:
        return [BenchmarkRow(name, dtype, batch, OURS, failure=reason(failed))]
    with here.building():
        built = build(case)

    def waiting() -> None:
        trace.add("chosen", "bench", f"the times of {name}", "wait for benchmarks that build here")

    try:
        with here.alone(waiting):
            return rows(case, built)
    finally:
        built.clear()
        forget_compiled()
        gc.collect()
        with suppress(RuntimeError):
            here.release()


def timed(
    cell: Timeable,
    built: Sequence[System],
    here: Machine,
    seconds: float,
    again: Callable[[System], float | None],
) -> Iterator[BenchmarkRow]:
    """A row for each system, of those that stand with the times of common rounds; what a system
    takes with bounded memory stands in its own row. `again`: how far off a system is now that all
    others have run."""
    how = _foretold(cell, built, here)
    if not here.simulated:
        how = _sampled(cell, built, here, seconds, again)
    rows = list(how)
    bounded = {system.bounds: row for system, row in zip(built, rows, strict=True) if system.bounds}
    hidden = {row.system for row in bounded.values()}
    for system, row in zip(built, rows, strict=True):
        if not system.bounds:
            against = {name: said for name, said in row.against.items() if name not in hidden}
            time = _bounded_time(bounded.get(system.name))
            yield replace(row, against=against, bounded=time)


def _bounded_time(row: BenchmarkRow | None) -> BoundedTime | None:
    if row is None or row.median_ms is None:
        return None
    waits = int(row.facts.get("event_waits", 0))
    return BoundedTime(row.median_ms, row.p10_ms, row.p90_ms, waits, row.peak_bytes)


def _sampled(
    cell: Timeable,
    built: Sequence[System],
    here: Machine,
    seconds: float,
    again: Callable[[System], float | None],
) -> Iterator[BenchmarkRow]:
    """Rows with the times of common rounds."""
    alone = [system for system in built if system.call is not None and not system.same]
    calls = {system.name: system.call for system in alone if system.call is not None}
    try:
        replays = [i for i, system in enumerate(alone) if system.replayed]
        taken = here.sample(list(calls.values()), seconds * len(calls), replays)
        failure = ""
    except Exception as failed:
        taken, failure = [], f"while timing: {reason(failed)}"
    samples = dict(zip(calls, taken, strict=False))
    samples |= {alias.name: samples[alias.same] for alias in built if alias.same in samples}
    for system in built:
        difference = system.difference if failure else again(system)
        beside = OURS if system.replayed or CALL not in samples else CALL
        own, ours = samples.get(system.name), samples.get(beside)
        numbers: Summary | None = summary(own) if own else None
        ratio: Ratio | None = paired(own, ours) if own and ours else None
        yield BenchmarkRow(
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
    ratios = {name: paired(own, taken) for name, taken in others.items()} if own else {}
    return {name: (r.ratio, r.low, r.high, r.tie) for name, r in ratios.items()}


def _foretold(cell: Timeable, built: Sequence[System], here: Machine) -> Iterator[BenchmarkRow]:
    """Rows of plans that cannot run here, with what is forecast of them: on one scale for all."""
    plans = {s.name: s.plan for s in built if s.plan is not None}
    target = resolve(here.target, cell.dtype == "tf32")
    costs = costs_of(target, partial(pack, spec=target.spec), None, Trace(quiet=True))
    raced = costs.race([(plan.tasks, plan.schedule) for plan in plans.values()])
    forecasts = dict(zip(plans, raced, strict=True))
    for system in built:
        own, ours = forecasts.get(system.name), forecasts.get(OURS)
        ratio = own.us / ours.us if own and ours else None
        pairs = {n: own.us / c.us for n, c in forecasts.items() if own and n != system.name}
        yield BenchmarkRow(
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

"""Systems side by side: models x dtypes x batches, with all systems in one process -> a record.

    for each model, dtype, batch:
      ours and every rival are built in turn       compile_s; a failure or a timeout is a row too
      other benchmarks of this GPU are waited for  until none builds, for they take the host's cores
      all that stand are timed in common rounds    median, p10, p90; ratio to ours, paired:
                                                   calls to our call, replays to our replay
      outputs are compared with eager's            difference

`anabranch` is the replay of its CUDA graph, as `cudagraph` is of eager's, in the device's time;
`anabranch-call` is the call that users make, inputs copied in and outputs copied out, the host
included. On a simulated GPU nothing runs, and rows have the forecast of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from anabranch import api
from anabranch.bench import harness
from anabranch.bench.built import (
    BenchmarkCase,
    Compile,
    System,
    build_ours,
    build_rival,
    difference_now,
    load_cell,
    told_apart,
)
from anabranch.bench.harness import Cell, Save, cells_of
from anabranch.bench.machine import Machine, machine
from anabranch.bench.result_rows import (
    OURS,
    BenchmarkMatrix,
    BenchmarkRow,
    check_names,
    rivals_of,
    variant,
)
from anabranch.bench.rivals import RIVALS, USUAL
from anabranch.bench.spread import spread_over
from anabranch.bench.timed import built_then_timed, timed
from anabranch.errors import OptionError
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.targets.tf32 import precision
from anabranch.trace import Trace
from anabranch.tuning.workers.job import WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool

STOPPED = "not built: stopped as asked"


def run(
    matrix: BenchmarkMatrix,
    trace: Trace | None = None,
    compile: Compile = api.compile,
    save: Save | None = None,
    workers: WorkerPool | None = None,
) -> dict[str, Any]:
    """The record of the whole matrix. `save` gets it anew after every model, so that a run which is
    stopped leaves what it has done. An interrupt while rivals are built stops building: those that
    stand are timed beside ours, and the benchmark ends with that: the record is cut short.
    `workers`: who does cells instead of this process, each one a GPU of its own. OptionError for
    names that mean nothing."""
    trace, here = trace or Trace(), machine(matrix.target)
    systems = rivals_of(matrix, USUAL.get(here.target, ()), RIVALS)
    check_names("scheduler", matrix.schedulers, SCHEDULERS)
    _check_systems(matrix, systems)  # before anything is built
    return harness.run(
        "speed",
        here.target,
        {**asdict(matrix), "rivals": systems},
        cells_of(matrix.models, matrix.dtypes, matrix.batches),
        lambda cell: _cell(matrix, here, systems, cell, trace, compile),
        trace,
        save,
        cut_short=lambda rows: "stop" if any(row.failure == STOPPED for row in rows) else "",
        spread=spread_over(workers, _rows_there, (matrix, systems, compile), lost),
    )


def _rows_there(
    there: WorkerPlace,
    matrix: BenchmarkMatrix,
    systems: Sequence[str],
    compile: Compile,
    cell: Cell,
) -> list[BenchmarkRow]:
    """What a worker does."""
    own_matrix = kept_there(matrix, there)
    return _cell(own_matrix, machine(own_matrix.target), systems, cell, there.trace, compile)


def kept_there(matrix: BenchmarkMatrix, there: WorkerPlace) -> BenchmarkMatrix:
    """The matrix as a worker has it: a folder for its cache that options name is the worker's."""
    if "cache_dir" not in matrix.options:
        return matrix
    return replace(matrix, options={**matrix.options, "cache_dir": there.cache_dir})


def lost(cell: Cell, why: str) -> list[BenchmarkRow]:
    """The row of a cell that no worker could do."""
    return [BenchmarkRow(*cell, OURS, failure=why)]


def _cell(
    matrix: BenchmarkMatrix,
    here: Machine,
    rivals: Sequence[str],
    cell: Cell,
    trace: Trace,
    compile: Compile,
) -> list[BenchmarkRow]:
    name, dtype, batch = cell

    def rows(case: BenchmarkCase, built: list[System]) -> list[BenchmarkRow]:
        return list(timed(case, built, here, matrix.seconds, partial(difference_now, cell=case)))

    with torch.no_grad(), precision(dtype == "tf32"), TemporaryDirectory() as scratch:
        return built_then_timed(
            cell,
            here,
            lambda: load_cell(name, dtype, batch, here, matrix.trust),
            lambda case: _built(matrix, case, rivals, here, Path(scratch), trace, compile),
            rows,
            trace,
        )


def _built(
    matrix: BenchmarkMatrix,
    cell: BenchmarkCase,
    rivals: Sequence[str],
    here: Machine,
    scratch: Path,
    trace: Trace,
    compile: Compile,
) -> list[System]:
    """All that is asked for, one after the other."""
    options: dict[str, Any] = {"target": here.target, "tf32": cell.dtype == "tf32"}
    options |= {"cache_dir": scratch} if matrix.cold else {}
    built: list[System] = []
    for asked in (
        *([{}] if matrix.ours else []),
        *({"scheduler": name} for name in matrix.schedulers),
        *(variant(name) for name in matrix.systems),
    ):
        limits: dict[str, Any] = {}
        if _published(asked) and matrix.search_seconds is not None:
            limits |= {"search_seconds": matrix.search_seconds}
        if _published(asked) and matrix.budget is not None:
            limits |= {"budget": matrix.budget}
        if "system" not in asked:
            limits |= matrix.options
        ours = build_ours(cell, here, {**options, **limits}, asked, compile, trace)
        built += [told_apart(system, built) for system in ours]
    stopped = False
    for rival in rivals:
        system = System(rival, None, failure=STOPPED)
        if not stopped:
            trace.add("chosen", "bench", rival, f"building it for {cell.name}")
            try:
                system = build_rival(rival, cell, here, matrix)
            except KeyboardInterrupt:
                stopped = True
        built.append(system)
        if built[-1].failure:
            what = f"{cell.name} {cell.dtype} batch {cell.batch}, {rival}"
            trace.add("warning", "bench", what, built[-1].failure)
    return built


def _check_systems(matrix: BenchmarkMatrix, rivals: Sequence[str]) -> None:
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
            "name some, such as --systems autograph; for ours there is -O search_seconds=30",
        )
    Options.read(matrix.options, environment=False)
    if matrix.options and not (matrix.ours or matrix.schedulers):
        first, value = next(iter(matrix.options.items()))
        raise OptionError(
            "-O says nothing here",
            "it is for what users get, which is left out (--without-ours)",
            f"write --systems {OURS}+{first}={value}",
        )


def _published(asked: dict[str, str]) -> bool:
    return asked.get("system", OURS) != OURS

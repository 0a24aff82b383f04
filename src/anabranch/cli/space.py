"""anabranch space MODEL | --dag FILE: how many schedules there are to choose from.

The columns are those of Table 1 of IOS (MLSys 2021). Of a MODEL, each block of its tasks (conv with
its norm and activation being one) that can be scheduled apart and has more than one; a dag from a
file is one block, as it stands:

    {"nodes": 6, "edges": [[0, 1], [0, 2], [1, 3], [2, 3], [3, 5], [4, 5]]}

    operators  width  bound  states  transitions  schedules
            6      3    216      12           51        131

With --exact each different block of a MODEL is solved to optimality instead, on a machine simple
enough for proofs, and the table says how far above the proven bound each scheduler's plan is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.cache import Cache
from anabranch.cli import flags, screen
from anabranch.cli.watch import Watch
from anabranch.compiler import Job, compile_model
from anabranch.costs import costs_of
from anabranch.errors import OptionError, ScheduleError
from anabranch.ir.dag import Dag, dag_of
from anabranch.ir.protocols import Limits
from anabranch.models import load_model
from anabranch.options import Options
from anabranch.pack import pack
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.blocks import blocks
from anabranch.schedule.gaps import SEARCHED, BlockGaps, gaps
from anabranch.schedule.solver import cp_sat
from anabranch.schedule.space import Space, space
from anabranch.targets import resolve
from anabranch.trace import Trace

COLUMNS = ("operators", "width", "bound", "states", "transitions", "schedules")
MOST_NODES = 10_000


class DagFile(BaseModel):
    """What a dag file holds: nodes 0 to nodes - 1, and edges between them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    nodes: int = Field(ge=1, le=MOST_NODES)
    edges: list[tuple[int, int]] = []


def run(
    model: Annotated[str | None, typer.Argument(help="A model, as for compile.")] = None,
    dag: Annotated[
        Path | None, typer.Option(help='{"nodes": n, "edges": [[u, v], ...]}', metavar="FILE")
    ] = None,
    max_group_size: Annotated[
        int | None, typer.Option(help="Count groups of at most r operators.", min=1)
    ] = None,
    max_groups: Annotated[
        int | None, typer.Option(help="Count stages of at most s groups.", min=1)
    ] = None,
    batch: flags.Batch = None,
    target: Annotated[str, typer.Option(help="cpu, cuda, sim:h200 or auto: whose tasks.")] = "auto",
    dtype: flags.Dtype = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Schedulers against the proven optimum of each block.")
    ] = False,
    schedulers: Annotated[
        str, typer.Option(help="With --exact: all, or some.")
    ] = "sequential,nimble,opara,ios,critical,local",
    json: flags.Json = None,
    trust: flags.Trust = False,
) -> None:
    """Count the schedules of each block of MODEL, or of a dag."""
    if (model is None) == (dag is None):
        raise OptionError(
            "space needs either MODEL or --dag FILE",
            "both were given" if model else "neither was given",
            "for example anabranch space zoo:inception_v3",
        )
    if dag is not None:
        parts = [read_dag(dag)]
    else:
        assert model is not None
        parts = [] if exact else _parts(model, batch, dtype, target, trust)
    if exact:
        _exact(model, batch, flags.check_dtype(dtype), target, trust, schedulers, json)
        return
    counted: dict[tuple[int, ...], Space] = {}
    rows: list[dict[str, int | None]] = []
    with Watch("counting", "space") as watch:
        trace = Trace(watch)
        for done, part in enumerate(parts):
            trace.progress("space", done, len(parts))
            if part.preds not in counted:  # networks repeat their blocks
                counted[part.preds] = space(part, max_group_size, max_groups)
            found = counted[part.preds]
            counts = (found.states, found.transitions, found.schedules)
            values = (found.nodes, found.width, found.bound, *counts)
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    _show(json, rows)
    screen.write_json(json, {"blocks": rows})


def read_dag(path: Path) -> Dag:
    """The dag of a file; OptionError if it is unreadable, empty, cyclic or not a dag at all."""
    try:
        held = DagFile.model_validate_json(path.read_bytes())
        return Dag.of(tuple(map(str, range(held.nodes))), held.edges)
    except OSError as broken:
        what, why = f"cannot read {path}", broken.strerror or str(broken)
    except ValidationError as broken:
        what, why = f"{path} is not a dag", _first(broken)
    except ScheduleError as broken:
        what, why = f"{path} is not a dag: {broken.what}", broken.why
    raise OptionError(what, why, 'write {"nodes": 3, "edges": [[0, 2], [1, 2]]}')


def _parts(model: str, batch: int | None, dtype: str | None, target: str, trust: bool) -> list[Dag]:
    """The blocks of more than one task, in order, as the scheduler ios cuts them."""
    with Watch(model) as watch, _job(model, batch, dtype, target, trust, Trace(watch)) as job:
        whole = dag_of(compile_model(job, stop_after="fuse"))
    masks = [mask for mask in blocks(whole) if mask.bit_count() > 1]
    return [whole.restrict(mask) for mask in masks]


@contextmanager
def _job(
    model: str, batch: int | None, dtype: str | None, target: str, trust: bool, trace: Trace
) -> Iterator[Job]:
    opened = resolve(target, tf32=dtype == "tf32")
    device = "cpu" if opened.device.type == "meta" else opened.device
    loaded, args = load_model(model, batch, flags.check_dtype(dtype), device, trust=trust)
    options = Options.read({"tf32": dtype == "tf32"})
    with Cache.open(options.cache_dir) as cache:
        yield Job(loaded, args, {}, opened, options, cache, trace)


def _exact(
    model: str | None,
    batch: int | None,
    dtype: str | None,
    target: str,
    trust: bool,
    schedulers: str,
    json: str | None,
) -> None:
    """The table of `schedule.gaps`."""
    if model is None:
        raise OptionError(
            "--exact needs a MODEL",
            "a dag has no times, so no schedule of it is the fastest",
            "for example anabranch space zoo:googlenet --exact --target sim:h200",
        )
    names = flags.words(schedulers, SCHEDULERS, "--schedulers")
    cp_sat()  # before the work, not after it
    with Watch(model) as watch, _job(model, batch, dtype, target, trust, Trace(watch)) as job:
        tasks = compile_model(job, stop_after="probe")
        spec = job.target.spec
        costs = costs_of(job.target, partial(pack, spec=spec), job.cache, job.trace)
        limits = Limits(spec=spec, trace=job.trace)
        rows = [_gap_row(row) for row in gaps(tasks, costs, limits, names)]
    columns = ("tasks", "times", "bound us", *names, SEARCHED, "exact")
    cells = [
        [
            str(row["tasks"]),
            str(row["times"]),
            f"{row['bound_us']:.2f}",
            *(f"{100 * row['gaps'][name]:.1f}%" for name in columns[3:]),
        ]
        for row in rows
    ]
    screen.console(json).print(screen.table(columns, cells))
    screen.write_json(json, {"model": model, "target": target, "blocks": rows})


def _gap_row(row: BlockGaps) -> dict[str, Any]:
    return {
        "tasks": row.tasks,
        "times": row.times,
        "bound_us": row.exact.bound,
        "exact_us": row.exact.us,
        "gaps": {**dict(row.gaps), "exact": row.exact.gap},
    }


def _show(json: str | None, rows: list[dict[str, int | None]]) -> None:
    cells = [[_number(row[column]) for column in COLUMNS] for row in rows]
    numbered = [[str(i), *row] for i, row in enumerate(cells)]
    screen.console(json).print(screen.table(("block", *COLUMNS), numbered))


def _number(value: int | None) -> str:
    """Whole up to ten million, then as the paper prints it; "too many" where counting gave up."""
    if value is None:
        return "too many"
    return f"{value:,}" if value < 10**7 else f"{value:.2e}"


def _first(broken: ValidationError) -> str:
    error: Any = broken.errors()[0]
    place = ".".join(map(str, error["loc"]))
    return f"{place}: {error['msg']}" if place else str(error["msg"])

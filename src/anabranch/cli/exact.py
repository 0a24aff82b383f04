"""`anabranch space MODEL --exact`: each different block of a model solved to optimality, on a
machine simple enough for proofs, and how far above the proven bound each scheduler's plan is.

    tasks  times  bound us  sequential  nimble  local  searched  exact
        8     12     21.40       38.2%    2.1%   0.3%      0.0%   0.0%
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from anabranch.cache import Cache
from anabranch.cli import flags, screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.compiler.pipeline import compile_model
from anabranch.costs import costs_of
from anabranch.errors import OptionError
from anabranch.ir.protocols import Limits
from anabranch.memory import pack
from anabranch.models.load import load_model
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.exact.gaps import SEARCHED, BlockGaps, gaps
from anabranch.schedule.exact.ortools_door import cp_sat
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job


def run(
    model: str | None,
    batch: int | None,
    dtype: str | None,
    target: str,
    trust: bool,
    schedulers: str,
    json: str | None,
) -> None:
    """The table of `schedule.exact.gaps`."""
    if model is None:
        raise OptionError(
            "--exact needs a MODEL",
            "a dag has no times, so no schedule of it is the fastest",
            "for example anabranch space zoo:googlenet --exact --target sim:h200",
        )
    names = flags.words(schedulers, SCHEDULERS, "--schedulers")
    cp_sat()  # before the work, not after it
    with (
        ProgressDisplay(model) as watch,
        _job(model, batch, dtype, target, trust, Trace(watch)) as job,
    ):
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

"""anabranch precompile MODEL...: kernels for a GPU that is not here, compiled into the cache.

model         dtype  batch  kernels  compiled  refused  seconds  note
zoo:resnet50  fp16       1      375       375        0     48.1
...
in /home/me/.cache/anabranch/cache.sqlite

Brought to a machine with such a GPU, the cache leaves its candidates only to be measured there. A
model that fails is a row that says why, and exit status 1 in the end.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from anabranch.bench.jobs import job_of
from anabranch.cache import Cache
from anabranch.cli import flags, screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.compiler.precompile import PrecompileCounts, precompile_kernels
from anabranch.errors import AnabranchError, OptionError
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace

COLUMNS = (
    "<model",
    "<dtype",
    "batch",
    "kernels",
    "compiled",
    "refused",
    "seconds",
    "<note",
)


def run(
    models: Annotated[
        list[str],
        typer.Argument(help=f"{flags.FORMS}.", show_default=False, metavar="MODELS"),
    ],
    batch: Annotated[str, typer.Option(help="One or more: 1,16.")] = "1",
    dtype: Annotated[str, typer.Option(help="One or more: fp16,tf32.")] = "fp16",
    target: Annotated[str, typer.Option(help="sim:h200, sim:FILE.json, or cuda.")] = "sim:h200",
    effort: flags.EffortOption = None,
    json: flags.Json = None,
    trust: flags.Trust = False,
) -> None:
    """Compile the kernels that MODELS may need on a GPU, which need not be here."""
    dtypes, batches = flags.dtypes(dtype), flags.numbers(batch, int, "--batch")
    cells = [(m, d, b) for m in models for d in dtypes for b in batches]
    asked = flags.compile_options((), effort=effort)
    rows: list[dict[str, Any]] = []
    path = ""
    with ProgressDisplay("precompiling", "tuning") as watch:
        for model, of, size in cells:
            options = Options.read({"tf32": of == "tf32", "search": "none", **asked})
            place, trace = resolve(target, options.tf32), Trace(watch)
            start = time.perf_counter()
            counts, failure = PrecompileCounts(0, 0, 0), ""
            with Cache.open(options.cache_dir) as cache:
                try:
                    job = job_of(model, of, size, place, options, cache, trace, trust)
                    counts = precompile_kernels(job)
                except OptionError:
                    raise
                except AnabranchError as failed:
                    failure = failed.what
                path = str(cache.stats().path)
            row = {"model": model, "dtype": of, "batch": size, **asdict(counts)}
            seconds = round(time.perf_counter() - start, 1)
            rows.append({**row, "seconds": seconds, "failure": failure})
    console = screen.console(json)
    console.print(screen.table(COLUMNS, [[str(cell) for cell in row.values()] for row in rows]))
    console.print(f"in {path}")
    screen.write_json(json, {"target": target, "cache": path, "rows": rows})
    if any(row["failure"] for row in rows):
        raise typer.Exit(1)

"""anabranch buckets MODEL: which sizes to compile, from the sizes that calls have.

bucket  share  forecast us
64        10%         41.2
7         40%         12.0
2         50%          9.1
a call takes 13.5 us, with the largest bucket alone 41.2 us

Nothing runs: times are those of a simulated GPU. `anabranch.compile(..., sizes="sizes.json")` makes
the same choice.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import Tensor

from anabranch.bench.jobs import job_of
from anabranch.cache import Cache
from anabranch.cli import flags, screen
from anabranch.cli.progress_display import ProgressDisplay
from anabranch.compiler.buckets import choose, expected, forecasts, padding_cost, read_sizes
from anabranch.errors import OptionError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace

COLUMNS = ("<bucket", "share", "forecast us")


def run(
    model: flags.Model,
    histogram: Annotated[
        Path,
        typer.Option(
            help="JSON: a list of the sizes of calls, or an object from size to share; with "
            'several dimensions a size is "8,128".',
            metavar="FILE.json",
        ),
    ],
    dims: Annotated[
        str, typer.Option(help="Axes that vary, with their names: 0=batch,1=seq.")
    ] = "0=batch",
    limit: Annotated[int, typer.Option(help="Buckets at most.", min=1)] = 8,
    dtype: flags.Dtype = None,
    target: Annotated[str, typer.Option(help="sim:h200, or sim:FILE.json.")] = "sim:h200",
    json: flags.Json = None,
    trust: flags.Trust = False,
) -> None:
    """Choose which sizes of MODEL to compile, by forecast times."""
    kind = flags.check_dtype(dtype) or "fp32"
    options = Options.read({"tf32": kind == "tf32", "buckets": limit})
    place = resolve(target, options.tf32)
    if not place.spec.simulated:
        raise OptionError(
            f"--target {target}",
            "buckets are chosen by forecasts, which come from a recorded GPU",
            "name a simulated one, such as sim:h200",
        )
    names = _names(dims)
    dimensions = tuple(Dimension(name) for name in names.values())
    shares, _ = read_sizes(histogram, dimensions)
    assert shares is not None, "a file was given"
    with ProgressDisplay("forecasting", "kernels") as watch, Cache.open(options.cache_dir) as cache:
        job = job_of(model, kind, 2, place, options, cache, Trace(watch), trust)
        shapes = DynamicShapes(dimensions, _extents(job.args, list(names)))
        if shapes.sizes_of([x for x in job.args if isinstance(x, Tensor)]) is None:
            raise OptionError(
                f"--dims {dims}", "inputs differ on these axes", "name axes that all inputs share"
            )
        forecast = forecasts(job, shapes, shares)
        buckets = choose(shares, forecast, limit)
    total = sum(shares.values())
    served: dict[Any, float] = dict.fromkeys(buckets, 0.0)
    for size, share in shares.items():
        fits = [
            bucket for bucket in buckets if all(a <= b for a, b in zip(size, bucket, strict=True))
        ]
        served[min(fits, key=forecast)] += share / total
    rows = [(list(bucket), served[bucket], forecast(bucket)) for bucket in buckets]
    alone = expected(shares, [max(buckets)], forecast)
    many = expected(shares, buckets, forecast)
    console = screen.console(json)
    cells = [[",".join(map(str, size)), f"{share:.0%}", f"{us:.1f}"] for size, share, us in rows]
    console.print(screen.table(COLUMNS, cells))
    console.print(f"a call takes {many:.1f} us, with the largest bucket alone {alone:.1f} us")
    cost = padding_cost(shares, buckets, forecast)
    console.print(str(cost))
    named = [{"bucket": size, "share": share, "forecast_us": us} for size, share, us in rows]
    facts = {"model": model, "target": place.spec.name, "buckets": named}
    worst = {"size": list(cost.worst), "beside_exact": cost.worst_ratio}
    told = {"expected_us": many, "largest_alone_us": alone, "beside_exact": cost.ratio}
    screen.write_json(json, {**facts, **told, "worst": worst})


def _names(text: str) -> dict[int, str]:
    """By axis its name. OptionError if it is not AXIS=NAME,AXIS=NAME."""
    pairs = [re.fullmatch(r"(\d+)=(\w+)", part) for part in text.split(",")]
    if not all(pairs):
        raise OptionError(f"--dims {text}", "it is not AXIS=NAME", "say 0=batch, or 0=batch,1=seq")
    return {int(pair[1]): pair[2] for pair in pairs if pair}


def _extents(args: Any, axes: list[int]) -> tuple[tuple[Extent, ...], ...]:
    return tuple(
        tuple(Extent(axis, i) for i, axis in enumerate(axes) if axis < x.dim())
        for x in args
        if isinstance(x, Tensor)
    )

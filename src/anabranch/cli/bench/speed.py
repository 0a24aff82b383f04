"""anabranch bench MODEL..., or bench speed: what users get, side by side with eager and rivals.

model          dtype   batch   system           ms    p10    p90   / ours   built in s     peak
zoo:resnet50   fp16        1   anabranch     0.192  0.191  0.193                  59.0   104 MB
zoo:resnet50   fp16        1   anabranch-call 0.21  0.209  0.212   1.09 x         59.0   104 MB
zoo:resnet50   fp16        1   eager          3.41   3.39   3.46   16.2 x          1.1    97 MB
...

A row per model, dtype, batch and system; a rival that fails, or is not built in its time, is a row
that says so. Ctrl-C while rivals are built times those that stand, and ends with them.
"""

from __future__ import annotations

from typing import Annotated

import typer

from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.cli import flags
from anabranch.cli.bench import arguments, system_rows


def run(
    models: arguments.Models,
    batch: arguments.Batches = "1",
    dtype: arguments.Dtypes = "fp16",
    rivals: arguments.Rivals = None,
    target: arguments.TargetOption = "auto",
    seconds: arguments.Seconds = 1.0,
    rival_timeout: arguments.RivalTimeout = 540.0,
    cold: Annotated[bool, typer.Option("--cold", help="Compile ours with an empty cache.")] = False,
    effort: flags.EffortOption = None,
    settings: flags.OptionFields = None,
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Time MODELS as users get them, beside eager, inductor or other rivals."""
    matrix = BenchmarkMatrix(
        models=tuple(models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=arguments.rivals_of(rivals),
        target=target,
        seconds=seconds,
        rival_timeout=rival_timeout,
        cold=cold,
        options=flags.compile_options(settings, effort=effort),
        trust=trust,
    )
    system_rows.run(matrix, json, markdown, workers)

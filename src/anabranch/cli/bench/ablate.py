"""anabranch bench ablate MODEL...: our search with its parts left out one by one, or set otherwise.

Each row is ours once more with one option changed. What a row takes beside ours is what that option
is worth. What AutoGraph's paper leaves out of its own search: `anabranch reproduce autograph
ablation`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from anabranch.bench.result_rows import ABLATIONS, BenchmarkMatrix
from anabranch.cli import flags
from anabranch.cli.bench import arguments, system_rows


def run(
    models: arguments.Models,
    of: Annotated[str, typer.Option(help=f"Which options: {', '.join(ABLATIONS)}.")] = "parts",
    batch: arguments.Batches = "1",
    dtype: arguments.Dtypes = "fp16",
    target: arguments.TargetOption = "auto",
    seconds: arguments.Seconds = 1.0,
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Time MODELS with parts of the search left out, or with other settings of it."""
    chosen = [name for group in flags.words(of, ABLATIONS, "--of") for name in ABLATIONS[group]]
    matrix = BenchmarkMatrix(
        models=tuple(models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=(),
        systems=tuple(dict.fromkeys(chosen)),
        target=target,
        seconds=seconds,
        trust=trust,
    )
    system_rows.run(matrix, json, markdown, workers)

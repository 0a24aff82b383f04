"""Arguments and options that verbs of `anabranch bench` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli import flags

Models = Annotated[
    list[str], typer.Argument(help=f"{flags.FORMS}.", show_default=False, metavar="MODELS")
]
Batches = Annotated[str, typer.Option(help="One or more: 1,16.")]
Dtypes = Annotated[str, typer.Option(help="One or more: fp16,tf32.")]
Target = Annotated[
    str, typer.Option(help="auto, cuda, cpu; sim:h200, sim:FILE.json: rows are forecasts.")
]
Seconds = Annotated[float, typer.Option(help="Of timing, per system.", min=0.0)]
Markdown = Annotated[Path | None, typer.Option(help="Write a markdown table here.", metavar="FILE")]
EachBudget = Annotated[
    float | None, typer.Option("--budget", help="Seconds of each scheduler, for one model.")
]
Kernels = Annotated[str, typer.Option(help="all, or library.")]

"""Arguments and options that verbs of `anabranch bench` share, and what is made of them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.rivals import RIVALS
from anabranch.cli import flags
from anabranch.cli.chosen_target import place
from anabranch.schedule import SCHEDULERS

Models = Annotated[
    list[str], typer.Argument(help=f"{flags.FORMS}.", show_default=False, metavar="MODELS")
]
Batches = Annotated[str, typer.Option(help="One or more: 1,16.")]
Dtypes = Annotated[str, typer.Option(help="One or more: fp16,tf32.")]
TargetOption = Annotated[
    str, typer.Option(help="auto, cuda, cpu; sim:h200, sim:FILE.json: rows are forecasts.")
]
Seconds = Annotated[float, typer.Option(help="Of timing, per system.", min=0.0)]
Markdown = Annotated[Path | None, typer.Option(help="Write a markdown table here.", metavar="FILE")]
EachBudget = Annotated[
    float | None, typer.Option("--budget", help="Seconds of each scheduler, for one model.")
]
KernelsOption = Annotated[str, typer.Option(help="all, or library.")]
Rivals = Annotated[
    str | None,
    typer.Option(help=f"all, none, or some of {', '.join(RIVALS)}.", show_default="eager,inductor"),
]
RivalTimeout = Annotated[float, typer.Option(help="Seconds to build one.", min=0.1)]
SearchSeconds = Annotated[
    float | None, typer.Option(help="Of each search of a published system.", min=0.1)
]


def rivals_of(
    asked: str | None, choices: Collection[str] = tuple(RIVALS)
) -> tuple[str, ...] | None:
    """The rivals of a list, None for the usual ones.

    >>> rivals_of("none"), rivals_of("eager")
    ((), ('eager',))
    """
    if asked is None:
        return None
    return () if asked == "none" else flags.words(asked, choices, "--rivals")


def schedule_matrix(
    models: list[str],
    schedulers: str,
    batch: str,
    dtype: str,
    target: str,
    kernels: str,
    budget: float | None,
    trust: bool,
) -> ScheduleMatrix:
    """What `schedulers` and `delays` compare. OptionError for what is no list of such things."""
    return ScheduleMatrix(
        tuple(models),
        flags.words(schedulers, SCHEDULERS, "--schedulers"),
        flags.dtypes(dtype),
        flags.numbers(batch, int, "--batch"),
        place(target)[0],
        kernels,
        budget,
        trust,
    )

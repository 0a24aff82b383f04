"""anabranch reproduce PAPER TABLE: a published table, on the machine at hand.

anabranch reproduce                     which tables there are
anabranch reproduce ios schedulers      sequential, greedy and IOS's schedules, on IOS's networks
anabranch reproduce deepcuts inference --models zoo:dlrm --batch 1,256 --only cudagraph,deepcuts
                                        a part of a table
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from anabranch.bench.batches import BatchMatrix
from anabranch.bench.reproduce import REPRODUCTIONS, asked_as, reproduction, tables_of
from anabranch.bench.result_rows import BenchmarkMatrix
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments, batches, schedulers, system_rows, training
from anabranch.cli.chosen_target import place
from anabranch.errors import OptionError


def run(
    paper: Annotated[
        str | None,
        typer.Argument(help=f"{', '.join(REPRODUCTIONS)}; none: all tables.", show_default=False),
    ] = None,
    table: Annotated[str | None, typer.Argument(help="Its table.", show_default=False)] = None,
    models: Annotated[
        str | None, typer.Option(help="One or more.", show_default="the paper's in the zoo")
    ] = None,
    batch: Annotated[
        str | None, typer.Option(help="One or more.", show_default="the paper's")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="One.", show_default="the paper's")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Some of its systems, rivals and schedulers; of a table of devices, other ones.",
            show_default="all",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            help="Seconds of each scheduler or published system.",
            min=0.1,
            show_default="the table's",
        ),
    ] = None,
    target: arguments.TargetOption = "auto",
    search_seconds: arguments.SearchSeconds = None,
    json: flags.Json = None,
    workers: flags.WorkersOption = None,
) -> None:
    """Run what a published table compares, on this machine; without arguments list the tables."""
    if paper is None:
        rows = [
            (name, title, published.says)
            for name, tables in REPRODUCTIONS.items()
            for title, published in tables.items()
        ]
        screen.console(json).print(screen.table(("<paper", "<table", "<shows"), rows))
        screen.write_json(
            json, {"tables": [{"paper": p, "table": t, "shows": s} for p, t, s in rows]}
        )
        return
    if table is None:
        choices = ", ".join(tables_of(paper))
        raise OptionError(
            "reproduce needs a table",
            f"the paper {paper} alone does not say which",
            f"choose from: {choices}",
        )
    published = reproduction(paper, table)
    flags.check_dtype(dtype)
    matrix = asked_as(
        published.matrix,
        flags.words(models),
        dtype,
        place(target)[0],
        () if batch is None else flags.numbers(batch, int, "--batch"),
        flags.words(only),
    )
    matrix = replace(matrix, budget=matrix.budget if budget is None else budget)
    if isinstance(matrix, BenchmarkMatrix) and not published.training:
        system_rows.run(replace(matrix, search_seconds=search_seconds), json, None, workers)
    elif search_seconds is not None:
        raise OptionError(
            "--search-seconds limits nothing here",
            f"no graph is searched for {table} of {paper}",
            "leave it out",
        )
    elif isinstance(matrix, BenchmarkMatrix):
        training.compare(matrix, json, None, workers)
    elif isinstance(matrix, BatchMatrix):
        batches.compare(matrix, json, workers)
    else:
        schedulers.compare(matrix, json, workers)

"""anabranch bench systems MODEL...: published systems beside ours, on one machine in one process.

A published system is a set of options: which equal graph it looks for, whose kernels it takes, who
schedules them. So what differs between rows is what their authors decide, and nothing else.
"""

from __future__ import annotations

from typing import Annotated

import typer

from anabranch.bench.result_rows import PUBLISHED_SYSTEMS, BenchmarkMatrix
from anabranch.cli import flags
from anabranch.cli.bench import arguments, system_rows
from anabranch.options import SYSTEMS


def run(
    models: arguments.Models,
    systems: Annotated[
        str,
        typer.Option(
            help=f"all, published, or some of {', '.join(SYSTEMS)}; options may follow a name: "
            "anabranch+search=none."
        ),
    ] = "published",
    batch: arguments.Batches = "1",
    dtype: arguments.Dtypes = "fp16",
    rivals: arguments.Rivals = "none",
    target: arguments.TargetOption = "auto",
    seconds: arguments.Seconds = 1.0,
    rival_timeout: arguments.RivalTimeout = 540.0,
    search_seconds: arguments.SearchSeconds = None,
    without_ours: Annotated[
        bool, typer.Option("--without-ours", help="No row for what users get.")
    ] = False,
    settings: flags.OptionFields = None,
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
    trust: flags.Trust = False,
    workers: flags.WorkersOption = None,
) -> None:
    """Time MODELS as published systems would run them, beside ours."""
    matrix = BenchmarkMatrix(
        models=tuple(models),
        dtypes=flags.dtypes(dtype),
        batches=flags.numbers(batch, int, "--batch"),
        rivals=arguments.rivals_of(rivals),
        systems=systems_of(systems),
        target=target,
        seconds=seconds,
        rival_timeout=rival_timeout,
        options=flags.compile_options(settings),
        search_seconds=search_seconds,
        ours=not without_ours,
        trust=trust,
    )
    system_rows.run(matrix, json, markdown, workers)


def systems_of(asked: str) -> tuple[str, ...]:
    """The systems of these names, each once, none for "none".

    >>> systems_of("ios,anabranch+search=none,ios"), systems_of("none")
    (('ios', 'anabranch+search=none'), ())
    """
    lists = {"all": tuple(SYSTEMS), "published": PUBLISHED_SYSTEMS, "none": ()}
    named = (lists.get(word, (word,)) for word in flags.words(asked))
    return tuple(dict.fromkeys(name for names in named for name in names))

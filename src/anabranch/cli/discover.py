"""anabranch discover: the rules that small graphs are found to obey, written to a file.

anabranch discover                                the file the package is shipped with, anew
anabranch discover matrices elements --size 2     two settings, graphs of up to two operators
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli import flags, screen
from anabranch.errors import OptionError
from anabranch.ir.rule import Rule
from anabranch.rewrite.discover import Counts, Discovery, discover, text_discovery
from anabranch.rewrite.discovery.settings import SETTINGS, SHIPPED
from anabranch.rewrite.rules import CANDIDATES, always

LARGEST = 4
"""Operators of a graph: one more takes hours."""

SettingNames = Annotated[
    list[str] | None, typer.Argument(help=f"Among {', '.join(SETTINGS)}; all if none is given.")
]
SizeOption = Annotated[
    int | None,
    typer.Option(
        min=1, max=LARGEST, help="Operators of a graph at most; as shipped if it is not given."
    ),
]
Seed = Annotated[int, typer.Option(help="Of the random numbers.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="The file; the screen has the counts only.")
]


def run(
    settings: SettingNames = None,
    size: SizeOption = None,
    seed: Seed = 0,
    output: Output = None,
    json: flags.Json = None,
) -> None:
    """Find rules by enumerating small graphs."""
    flags.check_folders(output)
    names = settings or list(SETTINGS)
    if unknown := [name for name in names if name not in SETTINGS]:
        raise OptionError(
            f"unknown setting {unknown[0]!r}", "no table has it", f"one of {', '.join(SETTINGS)}"
        )
    sizes = {name: size or SHIPPED[name] for name in names}
    discovery = discover(sizes, seed, written(), screen.complain)
    console = screen.console(json)
    heads = ("<setting", "size", *COLUMNS)
    console.print(screen.table(heads, _rows(discovery)))
    again = sum(bool(each.written) for each in discovery.rules)
    console.print(f"{len(discovery.rules)} rules, {again} of which are written already.")
    if output is not None:
        text = text_discovery(discovery, command(settings, size, seed))
        screen.write_file(str(output), text)
    counts = {name: asdict(each) for name, each in discovery.counts.items()}
    screen.write_json(json, {"counts": counts, "rules": [each.entry for each in discovery.rules]})


def written() -> list[Rule]:
    """The rules of all tables but the one that discovery fills."""
    tables = (rules for name, rules in CANDIDATES.items() if name != "found")
    return [*always.RULES, *(rule for rules in tables for rule in rules)]


COLUMNS = tuple(Counts.__dataclass_fields__)


def _rows(discovery: Discovery) -> list[tuple[str, ...]]:
    return [
        (name, str(discovery.sizes[name]), *(str(getattr(counts, key)) for key in COLUMNS))
        for name, counts in discovery.counts.items()
    ]


def command(settings: list[str] | None, size: int | None, seed: int) -> str:
    """What was asked, as it stands in the file."""
    words = ["anabranch", "discover", *(settings or ())]
    words += ["--size", str(size)] if size else []
    return shlex.join([*words, "--seed", str(seed)])

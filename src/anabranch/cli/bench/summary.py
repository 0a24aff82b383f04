"""anabranch bench summary FILE...: records that --json wrote, of several processes, as one."""

from __future__ import annotations

from typing import Annotated

import typer

from anabranch.bench import system_tables
from anabranch.bench.verdicts import merged
from anabranch.cli import flags, screen
from anabranch.cli.bench import arguments
from anabranch.cli.bench.schedulers import show_summary
from anabranch.errors import OptionError


def run(
    files: Annotated[
        list[str], typer.Argument(help="Records of bench.", show_default=False, metavar="FILES")
    ],
    json: flags.Json = None,
    markdown: arguments.Markdown = None,
) -> None:
    """What records of several models say together: of systems as tables, of schedulers as means."""
    flags.check_folders(markdown)
    records = system_tables.read(files)
    if not any(map(system_tables.is_record, records)):
        if markdown is not None:
            raise OptionError(
                "--markdown has no table to write",
                "the summary of schedulers is shown, or written as JSON",
                "take --json FILE",
            )
        record = merged(files)
        show_summary(screen.console(json), record)
        screen.write_json(json, record)
        return
    if json is not None:
        raise OptionError(
            "--json has nothing to write",
            "the summary of systems is a text in markdown",
            "take --markdown FILE; the numbers are in the files that were given",
        )
    text = system_tables.summary(records)
    screen.console().print(text, markup=False, soft_wrap=True)
    if markdown is not None:
        screen.write_file(str(markdown), text)

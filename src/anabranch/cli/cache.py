"""anabranch cache ls | stats | clear | path: what is remembered between processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from anabranch.cache import FILE_NAME, TABLES, Cache
from anabranch.cli import flags, screen
from anabranch.errors import OptionError
from anabranch.options import Options
from anabranch.report import units

KEY_WIDTH = 100

app = typer.Typer(help="Show or clear what is remembered between processes.", no_args_is_help=True)
TableName = Annotated[str | None, typer.Argument(help=f"One of {', '.join(TABLES)}; all if none.")]


@app.command("path")
def path(json: flags.Json = None) -> None:
    """Print where the cache is; nothing if there is none."""
    directory = Options.read().cache_dir
    text = "" if directory is None else str(directory / FILE_NAME)
    if text:
        screen.console(json).print(text)
    screen.write_json(json, {"path": text or None})


@app.command("stats")
def stats(json: flags.Json = None) -> None:
    """Entries and bytes of each table."""
    with _opened() as cache:
        usage = cache.stats()
    rows = [(name, str(usage.entries[name]), units.size(usage.bytes[name])) for name in TABLES]
    console = screen.console(json)
    console.print(screen.table(("<table", "entries", "size"), rows))
    console.print(f"{usage.path or 'in memory'}, at most {units.size(usage.max_bytes)}")
    screen.write_json(
        json,
        {
            "path": str(usage.path) if usage.path else None,
            "entries": dict(usage.entries),
            "bytes": dict(usage.bytes),
            "max_bytes": usage.max_bytes,
        },
    )


@app.command("ls")
def ls(
    table: TableName = None,
    limit: Annotated[int, typer.Option(help="Entries shown; 0 for all.", min=0)] = 50,
    json: flags.Json = None,
) -> None:
    """The entries, the most recently used first."""
    _check(table)
    with _opened() as cache:
        entries = cache.ls(table)
    shown = entries[:limit] if limit else entries
    rows = [(entry.table, units.size(entry.size), _line(entry.key)) for entry in shown]
    console = screen.console(json)
    console.print(screen.table(("<table", "size", "<key"), rows))
    if len(shown) < len(entries):
        console.print(f"{len(entries) - len(shown)} more; --limit 0 shows all")
    screen.write_json(json, {"entries": [asdict(entry) for entry in entries]})


@app.command("clear")
def clear(table: TableName = None, json: flags.Json = None) -> None:
    """Forget one table, or everything."""
    _check(table)
    with _opened() as cache:
        before = cache.stats()
        cache.clear(table)
    tables = TABLES if table is None else (table,)
    entries = sum(before.entries[name] for name in tables)
    size = sum(before.bytes[name] for name in tables)
    screen.console(json).print(f"forgot {entries} entries, {units.size(size)}")
    screen.write_json(json, {"entries": entries, "bytes": size})


@contextmanager
def _opened() -> Iterator[Cache]:
    with Cache.open(Options.read().cache_dir) as cache:
        yield cache


def _check(table: str | None) -> None:
    if table is not None and table not in TABLES:
        raise OptionError(
            f"no cache table {table!r}", "no table has this name", f"one of: {', '.join(TABLES)}"
        )


def _line(key: str) -> str:
    text = " ".join(key.split())
    return text if len(text) <= KEY_WIDTH else text[: KEY_WIDTH - 3] + "..."

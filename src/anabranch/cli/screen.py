"""Output of the command line: results on stdout, the rest on stderr, JSON where it was asked for.

Colours and moving bars go to terminals only, and not where NO_COLOR is set: rich sees to that.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anabranch.cache.whole_file import whole_file
from anabranch.errors import unwritable
from anabranch.report.lines import WIDTH
from anabranch.report.units import significant

PIPE_WIDTH = 1000
"""Columns where nobody's window limits them: tables are not to be cut in files."""
STDOUT = "-"


def console(json: str | None = None) -> Console:
    """Where results go: stdout, or stderr if stdout is for JSON."""
    return _console(json == STDOUT)


def text_width(console: Console) -> int:
    """How wide a text may be: as the window, or as texts in files are."""
    return console.width if console.is_terminal else WIDTH


def notices() -> Console:
    """Where progress and warnings go."""
    return _console(True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """One message on stderr, as it is."""
    print(text, file=sys.stderr)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "") -> Table:
    """Columns whose name starts with "<" are aligned left, the others right."""
    grid = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        left = column.startswith("<")
        grid.add_column(column.lstrip("<"), justify="left" if left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def milliseconds(value: float | None) -> str:
    """
    >>> milliseconds(0.01234), milliseconds(None)
    ('0.0123', '-')
    """
    return "-" if value is None else significant(value)


def file_of(json: str | None) -> Path | None:
    """The file that --json names, if it does name one."""
    return None if json is None or json == STDOUT else Path(json)


def write_json(path: str | None, content: Mapping[str, Any]) -> None:
    """To a file, whole or not at all, or to stdout; nothing if no path is given."""
    if path is None:
        return
    text = json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_file(path, text)


def write_file(path: str, text: str) -> None:
    """A text in a file, whole or not at all, with the rights that a new file has."""
    target = Path(path)
    if target.exists() and not target.is_file():  # /dev/stdout, a pipe
        target.write_text(text, encoding="utf-8")
        return
    try:
        with whole_file(target) as stream:
            stream.write(text.encode())
    except OSError as failed:
        raise unwritable(path, failed) from None


def _plain(value: Any) -> Any:
    """What JSON can hold: numbers that are none are null, anything unknown is its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)

"""A record is written anew after every model: what was done is kept if the command is ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch.cli import screen


def saver(json: str | None) -> Callable[[dict[str, Any]], None]:
    """Writes a record to the file that --json names, if it names one."""

    def save(record: dict[str, Any]) -> None:
        file = screen.file_of(json)
        if file is not None:  # its folder was there at first: the work is not lost if it has gone
            file.parent.mkdir(parents=True, exist_ok=True)
            screen.write_json(json, record)

    return save

"""Bytes of weights that lie in a file beside the model: in its folder, and nowhere else.

A location comes from whoever wrote the file. It is refused if it is absolute, climbs by `..`, or is
a link that leads out of the folder; and so is a part of a file that is not as long as the tensor.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from anabranch.errors import OnnxError

COPY = "put the file into the model's folder, and export or copy the model again"
MOST_SHOWN = 200
"""Characters of a location, which may have as many as its author likes."""


def external_bytes(
    folder: Path, location: str, offset: int, length: int | None, size: int, name: str
) -> bytes:
    """The `size` bytes of the tensor `name` at `offset` of the file `location` in `folder`.

    `length`: what the model says of their number. OnnxError if they are not there, or elsewhere.
    """
    if offset < 0 or (length is not None and length != size):
        said = f"{length} bytes" if offset >= 0 else f"begin at {offset}"
        raise OnnxError(
            f"the data of {name} do not fit it",
            f"the file says {said}, and its shape and type make {size} bytes",
            "export the model again",
        )
    path = _inside(folder, location, name)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _elsewhere(location, name, "it is no plain file")
            if offset + size > status.st_size:
                raise OnnxError(
                    f"the data of {name} are not all there",
                    f"{location} has {status.st_size} bytes, {offset + size} are needed",
                    "copy the file again: it was cut off",
                )
            file.seek(offset)
            return file.read(size)
    except OSError as failed:
        raise OnnxError(
            f"cannot read {location}, which has the data of {name}",
            failed.strerror or str(failed),
            "put the file beside the model",
        ) from failed


def _inside(folder: Path, location: str, name: str) -> Path:
    """The real path of a location, which is within the folder."""
    parts = re.split(r"[/\\]", location)
    if not location or "\0" in location:
        raise _elsewhere(location, name, "it names no file")
    if location.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", location):
        raise _elsewhere(location, name, "it is an absolute path")
    if ".." in parts:
        raise _elsewhere(location, name, "it leads out of the model's folder by ..")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        plain = path.is_file() or not path.exists()
    except OSError as failed:  # a name that is too long
        raise _elsewhere(location, name, failed.strerror or str(failed)) from failed
    except RuntimeError as failed:  # links that go round
        raise _elsewhere(location, name, str(failed)) from failed
    if not path.is_relative_to(root):
        raise _elsewhere(location, name, "it is a link that leads out of the model's folder")
    if not plain:  # a pipe would be waited for
        raise _elsewhere(location, name, "it is no plain file")
    return path


def _elsewhere(location: str, name: str, why: str) -> OnnxError:
    said = location if len(location) <= MOST_SHOWN else f"{location[:MOST_SHOWN]}..."
    return OnnxError(f"the data of {name} were not read from {said!r}", why, COPY)

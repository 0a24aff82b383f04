"""Which version of us decides: a digest of the files that offer and write kernels.

Other files may have decided otherwise, so decisions that outlive a process are kept under it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable

ROOMS = ("costs", "deadline.py", "ir", "kernels", "tuning")
"""The rooms that offer kernels, decide which one runs, and how long these are timed."""
PROGRAMS = ("ir", "kernels")
"""Who writes the text of a kernel that is decided on."""
ALL_ROOMS = ""
"""The room that all rooms are in."""


@functools.cache
def digest(*rooms: str) -> str:
    """Names the content of all Python files of these rooms, of `ROOMS` if none is named: 100 files,
    20 ms."""
    state = hashlib.blake2b(digest_size=16)
    for room in rooms or ROOMS:
        for file in _files(resources.files("anabranch").joinpath(room)):
            content = file.read_bytes()
            state.update(f"{file.name} {len(content)}\n".encode())
            state.update(content)
    return state.hexdigest()


@functools.cache
def installed(package: str) -> str:
    """The version of a package, "none" where it is not there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _files(folder: Traversable) -> Iterator[Traversable]:
    if not folder.is_dir():
        yield folder
        return
    for entry in sorted(folder.iterdir(), key=lambda child: child.name):
        if entry.is_dir():
            yield from _files(entry)
        elif entry.name.endswith(".py"):
            yield entry

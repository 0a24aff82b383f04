"""Files that others see whole or not at all.

.plan.anabranch.x7k2  --written, on the disk-->  plan.anabranch, in place of what was there
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from anabranch.errors import OptionError


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """The bytes written to this become the file once the block ends, with the rights that a new
    file has; if the block fails, nothing does. OSError where it cannot."""
    target = Path(path)
    file, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(file, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def path_of(path: Any) -> Path:
    """The path of a file as a user gives it; OptionError for what is none."""
    if path == "":
        raise OptionError(
            "the path of a file is empty", "a file is opened by its name", "give its path"
        )
    if isinstance(path, (str, os.PathLike)):
        return Path(path)
    raise OptionError(
        f"the path of a file is a {type(path).__name__}: {path!r:.80}",
        "files are opened by their names",
        "give a text or a pathlib.Path",
    )

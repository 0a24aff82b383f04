"""What a record must say besides its numbers: when, where, with what, and of which commit."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anabranch
from anabranch.costs.recorded import Provenance

PACKAGES = ("torch", "triton", "numpy", "nvidia-cudnn-frontend", "torchvision", "timm")


def provenance() -> dict[str, str]:
    """Date and command of this process, and the commit of the package ("" if it is in none)."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
    }


def recorded_provenance() -> Provenance:
    """The same and the versions, as profiles and what is fitted to them keep it."""
    origin = provenance()
    return Provenance(
        date=origin["date"],
        commit=origin["commit"],
        versions=versions(),
        command=origin["command"],
    )


def command() -> str:
    """The command line of this process: a script's own, or one of `anabranch`."""
    script = Path(sys.argv[0])
    ours = script.suffix != ".py" or script.name == "__main__.py"
    return " ".join(["anabranch" if ours else sys.argv[0], *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Of this package, of Python and of the packages that numbers depend on, where installed."""
    version_of = {"anabranch": anabranch.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            version_of[name] = version(name)
        except PackageNotFoundError:
            continue
    return version_of


def commit() -> str:
    """The commit this file is tracked in, with "+changes" if the working tree differs from it."""
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return ""
    revision, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain")
    return f"{revision or ''}{'+changes' if changes else ''}"


def _git(*words: str) -> str | None:
    command = ["git", *words]
    folder = Path(__file__).parent
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None

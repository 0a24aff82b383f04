"""Blocks of code in pages of the documentation, and running them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDING = re.compile(r"# needs (\w+)")
INCLUDED = "--8<--"
"""The line of a page that includes an example, which has a test of its own."""


def run_page(page: Path) -> None:
    """All blocks of a page in a row, as a reader would run them; those that need a package which
    cannot be imported here are left out."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, body in blocks(page, "python"):
        needed = NEEDING.match(body)
        if body.startswith(INCLUDED) or (needed and not importable(needed[1])):
            continue
        exec(compile("\n" * (line - 1) + body, str(page), "exec"), names)


def run_pages(pages: Sequence[str]) -> None:
    """In a process of its own."""
    for page in pages:
        run_page(Path(page))


def importable(package: str) -> bool:
    try:
        importlib.import_module(package)
    except (
        ImportError,
        RuntimeError,
    ):  # torchvision's wheels raise the second beside other torches
        return False
    return True


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line and text of the page's blocks of code in a language."""
    text = page.read_text(encoding="utf-8")
    found = [(text.count("\n", 0, one.start()) + 2, one[1], one[2]) for one in BLOCK.finditer(text)]
    return [(line, body) for line, name, body in found if name == language]

"""The digest of the rooms that decide covers all who decide which kernels run."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import anabranch
from anabranch.deadline import EffortSettings
from anabranch.kernels import library, sources
from anabranch.kernels.triton import provider
from anabranch.tuning.select import select

PACKAGE = Path(anabranch.__file__).parent
SILENT = {"cache", "deadline", "errors", "options", "trace"}
"""What these say decides nothing: they keep, end, refuse and tell."""


def imported(room: str) -> set[str]:
    """The rooms of the package that the files of this one import."""
    place = PACKAGE / room
    files = [*place.rglob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
    found = set[str]()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text("utf-8")))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("anabranch."):
            found.add(str(node.module).split(".")[1])
    return found


@pytest.mark.parametrize("decides", [select, library.AtenProvider, provider.TritonProvider])
def test_rooms_that_decide_are_covered(decides: type) -> None:
    assert decides.__module__.split(".")[1] in sources.ROOMS
    assert (PACKAGE / decides.__module__.split(".")[1]).is_dir()


def test_how_much_is_tried_decides_too() -> None:
    assert f"{EffortSettings.__module__.rpartition('.')[2]}.py" in sources.ROOMS


def test_rooms_that_write_programs_are_covered_with_all_that_they_import() -> None:
    reached = set().union(*map(imported, sources.PROGRAMS))
    assert reached <= {*sources.PROGRAMS, *SILENT, "costs"}
    assert set(sources.PROGRAMS) <= set(sources.ROOMS)


def test_another_text_in_a_room_is_another_digest() -> None:
    assert len({sources.digest(), sources.digest("ir"), sources.digest("kernels")}) == 3
    assert sources.digest() == sources.digest(*sources.ROOMS)
    timed = [room for room in sources.ROOMS if room != "deadline.py"]
    assert sources.digest() != sources.digest(*timed), "the table of times decides, too"
    assert str(sys.modules["anabranch.kernels.sources"].__file__).startswith(str(PACKAGE))

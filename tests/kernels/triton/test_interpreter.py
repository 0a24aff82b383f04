"""What runs and compiles kernels in tests leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from tests import fresh
from tests.conftest import CAPTURES
from tests.kernels.triton.interpreter import load_module
from tests.kernels.triton.samples import SAMPLES

from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.codegen import program

pytest.importorskip("triton")


def test_a_script_outside_of_a_run_has_a_folder_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For the process that kernels are run in."""
    monkeypatch.setenv(CAPTURES, "")  # put back at the end, whatever is set meanwhile
    monkeypatch.delenv(CAPTURES)
    folder = fresh.folder()
    assert folder.is_dir() and fresh.folder() == folder == Path(os.environ[CAPTURES])


def test_a_module_is_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variant, text = SAMPLES["pointwise"]
    written = program(parse_graph(text), variant)
    first, second = load_module(written.text), load_module(written.text)
    assert hasattr(first, written.entry)
    assert first.__name__ != second.__name__, "one would be read as the other's source"
    assert not list(tmp_path.iterdir())

"""What runs and compiles kernels in tests leaves nothing behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from tests import fresh
from tests.conftest import CAPTURES
from tests.kernels.triton.interpreter import load_module, run
from tests.kernels.triton.samples import SAMPLES

from anabranch.ir.graph import types
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


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_numbers_that_integers_cannot_hold_become_what_a_gpu_makes_of_them(
    dtype: torch.dtype,
) -> None:
    """By the table of PTX's `cvt`."""
    name = {torch.int32: "i32", torch.int64: "i64"}[dtype]
    body = parse_graph(f"""graph g {{
      input %x: f32[8]
      %y: {name}[8] = aten._to_copy.default(%x, dtype={dtype})
      return %y
    }}""")
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, -2.7, 2.7, 5.0])
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    of_nan = 0 if dtype is torch.int32 else least
    made = run(program(body, "pointwise:256.w1"), {"x": x}, {"y": types(body)["y"]})["y"]
    assert made.tolist() == [of_nan, most, least, most, least, -2, 2, 5]


def test_small_integers_are_the_lower_half_of_16_bits() -> None:
    """PTX has no conversion of floats to a byte: what leaves 16 bits ends there before."""
    body = parse_graph("""graph g {
      input %x: f32[6]
      %y: i8[6] = aten._to_copy.default(%x, dtype=torch.int8)
      return %y
    }""")
    x = torch.tensor([300.0, -129.0, 40_000.0, -40_000.0, float("nan"), -5.9])
    made = run(program(body, "pointwise:256.w1"), {"x": x}, {"y": types(body)["y"]})["y"]
    assert made.tolist() == [44, 127, -1, 0, 0, -5]


def test_a_comparison_of_two_numbers_spreads_over_a_block() -> None:
    body = parse_graph("""graph g {
      input %x: f32[2,2]
      input %y: f32[1]
      %z: f32[2,2] = aten.floor_divide.default(%x, %y)
      return %z
    }""")
    values = {"x": torch.tensor([[7.0, -7.0], [6.0, -0.5]]), "y": torch.tensor([-2.0])}
    made = run(program(body, "pointwise:256.w1"), values, {"z": types(body)["z"]})["z"]
    assert made.tolist() == [[-4.0, 3.0], [-3.0, 0.0]]

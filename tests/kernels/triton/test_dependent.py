"""Programmatic dependent launch: where the lines stand, and that kernels so marked compile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.kernels.triton.samples import SAMPLES
from tests.kernels.triton.test_compile import compiled

from anabranch.ir.text import parse_graph
from anabranch.kernels.triton.dependent import MODES, TRIGGER, WAIT, split
from anabranch.kernels.triton.program import Program
from anabranch.kernels.triton.write import program


def written(name: str, mode: str) -> Program:
    variant, text = SAMPLES[name]
    return program(parse_graph(text), f"{variant}.p{mode}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SAMPLES)
def test_nothing_is_read_or_written_before_the_wait(name: str, mode: str) -> None:
    found = written(name, mode)
    body = found.text.partition(f"def {found.entry}(")[2]
    assert found.pdl and body.count(WAIT) == 1
    assert "tl.load" not in body.partition(WAIT)[0] and "tl.store" not in body.partition(WAIT)[0]
    assert body.count(TRIGGER) == (mode != "n")
    before = body.partition(TRIGGER)[0]
    if mode == "w":
        assert "tl.load" not in before
    if mode == "l":
        assert "tl.load" in before and "tl.store" not in before


def test_a_mode_is_the_end_of_a_variant() -> None:
    assert split("rows:2x64.w4.pl") == ("rows:2x64.w4", "l")
    assert split("rows:2x64.w4") == ("rows:2x64.w4", "")
    assert split("some.px") == ("some.px", "")


@pytest.mark.parametrize("name", list(SAMPLES)[:2])
def test_they_compile_for_the_gpus_that_have_it(name: str, tmp_path: Path) -> None:
    ptx = compiled(written(name, "l"), 90, tmp_path)["ptx"]
    assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx

"""Programmatic dependent launch: where the lines stand, and that kernels so marked compile."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.kernels.triton.bodies import read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.samples import SAMPLES
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled

from anabranch.ir.text import parse_graph
from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.pdl import ASKED, EARLY, TRIGGER, WAIT
from anabranch.kernels.triton.program import Program


def written(name: str, mode: str) -> Program:
    variant, text = SAMPLES[name]
    return program(parse_graph(text), f"{variant}.p{mode}")


@pytest.mark.parametrize("mode", [mode for mode in PdlMode if mode not in EARLY])
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


EARLY_READS = {
    "pointwise": {"y_1"},
    "window": {"weight", "bias"},
    "contraction": {"bias"},
    "contraction_of_one_step": {"weight", "bias"},
    "rows": {"weight", "bias"},
    "rows_that_are_shared": set(),
    "rows_in_blocks": set(),
    "recurrence": set(),
    "recurrence_that_reads_ahead": set(),
    "rows_that_run": set(),
    "rows_that_run_in_blocks": set(),
    "attention": set(),
    "attention_in_blocks": set(),
    "contraction_of_taps": {"bias_1"},
    "contraction_and_its_rows": set(),
    "contraction_of_rows": {"y", "y_1"},
    "gemm_chain": {"bias", "weight_1", "bias_1"},
    "gemm_chain_of_one_row": {"bias_1"},
    "scatter": set(),
}
FETCHED = {
    "contraction": {"weight"},
    "contraction_of_taps": {"weight_1"},
    "contraction_and_its_rows": {"weight"},
    "contraction_of_rows": {"weight"},
}
"""What is asked for ahead, in the mode that does so."""


@pytest.mark.parametrize("mode", EARLY)
@pytest.mark.parametrize("name", SAMPLES)
def test_constants_are_read_before_the_wait(name: str, mode: str) -> None:
    found = written(name, mode)
    body = found.text.partition(f"def {found.entry}(")[2].partition(":\n")[2]
    assert found.pdl and body.count(WAIT) == body.count(TRIGGER) == 1
    before, _, after = body.partition(WAIT)
    pointers = set(re.findall(r"(\w+)_ptr\b", before))
    fetched = FETCHED.get(name, set()) if mode in ASKED else set()
    assert pointers == EARLY_READS[name] | fetched
    assert "tl.store" not in before and "tl.store" in after.partition(TRIGGER)[2]
    assert ("fetch_ahead" in before) == bool(fetched)


BODIES = {
    "norm and product": """
    graph long_rows {
      input %x: f16[1,700]
      const %w: f16[700] = w
      const %weight: f16[21,700] = v
      %n: f16[1,700] = aten.rms_norm.default(%x, [700], %w, 1e-05)
      %r: f16[1,21] = aten.linear.default(%n, %weight)
      return %r
    }""",
    "add": """
    graph add {
      input %x: f16[4,40]
      const %s: f16[40] = s
      %a: f16[4,40] = aten.add.Tensor(%x, %s)
      %r: f16[4,40] = aten.mul.Tensor(%a, %s)
      return %r
    }""",
    "norm": """
    graph norm {
      input %x: f16[5,48]
      const %w: f16[48] = w
      const %b: f16[48] = b
      %r: f16[5,48] = aten.layer_norm.default(%x, [48], %w, %b)
      return %r
    }""",
    "depthwise": """
    graph depthwise {
      input %x: f16[1,16,7,7]{784,1,112,16}
      const %w: f16[16,1,3,3]{1,1,48,16} = w
      const %b: f16[16] = b
      %r: f16[1,16,7,7]{784,1,112,16} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 16)
      return %r
    }""",  # noqa: E501
    "convolution": """
    graph convolution {
      input %x: f16[1,64,5,5]{1600,1,320,64}
      input %y: f16[1,48,5,5]{1200,1,240,48}
      const %w: f16[48,64,3,3]{576,1,192,64} = w
      const %b: f16[48] = b
      %conv: f16[1,48,5,5]{1200,1,240,48} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
      %r: f16[1,48,5,5]{1200,1,240,48} = aten.add.Tensor(%conv, %y)
      return %r
    }""",  # noqa: E501
    "linear": """
    graph linear {
      input %x: f16[1,256]
      const %w: f16[40,256] = w
      const %b: f16[40] = b
      %r: f16[1,40] = aten.linear.default(%x, %w, %b)
      return %r
    }""",
    "in fp32": """
    graph product {
      input %x: f32[20,512]
      const %w: f32[70,512] = w
      %r: f32[20,70] = aten.linear.default(%x, %w)
      return %r
    }""",
    "weights first": """
    graph product {
      input %x: f16[256,20]
      const %w: f16[32,256] = w
      %r: f16[32,20] = aten.mm.default(%w, %x)
      return %r
    }""",
}
VARIANTS = {
    "norm and product": ["rows:4x256.w2", "rows:2x1024.w2"],
    "add": ["pointwise:64.w1"],
    "norm": ["rows:2x64.w1", "rows:2x32.w1"],
    "depthwise": ["window:8x16u2.w1", "window:16x8u1.w1"],
    # One step of nine; three, of a ninth each; of five, some of which some CTAs have not.
    "convolution": [f"contraction:16x16x64.k{k}.w4.s2" for k in (1, 3, 5, 9)],
    "linear": [f"contraction:1x8x{tile}.w1.s2" for tile in ("128.k1", "64.k1", "64.k2")],
    "in fp32": ["contraction:16x64x128.k1.w4.s2", "contraction:16x32x32.k3.w4.s2"],
    "weights first": ["contraction:16x16x64.k1.w4.s2", "contraction:16x16x64.k2.w4.s2"],
}


@pytest.mark.parametrize("name", BODIES)
def test_nothing_that_may_still_be_written_is_read_before_the_wait(name: str) -> None:
    """In the interpreter inputs are nan until the kernel waits."""
    body = read(BODIES[name])
    check(body, [f"{variant}.p{mode}" for variant in VARIANTS[name] for mode in PdlMode])


def asked_for(written: Program) -> dict[str, set[int]]:
    """The elements that all CTAs of a contraction ask for before they wait, by pointer."""
    front = written.text.partition(f"def {written.entry}(")[2].partition(":\n")[2]
    lines = [line.strip() for line in front.partition(WAIT)[0].splitlines()]
    found: dict[str, set[int]] = {}

    def fetch_ahead(place: tuple[str, np.ndarray]) -> None:
        found.setdefault(place[0], set()).update(place[1].flatten().tolist())

    class Pointer:
        def __init__(self, name: str) -> None:
            self.name = name

        def __add__(self, offset: object) -> tuple[str, np.ndarray]:
            return self.name, np.asarray(offset)

    for ids in itertools.product(*map(range, written.grid)):
        tl = SimpleNamespace(arange=np.arange, minimum=np.minimum, program_id=ids.__getitem__)
        names = {"tl": tl, "fetch_ahead": fetch_ahead}
        names |= {f"{name}_ptr": Pointer(name) for name in ("x", "y", "weight", "bias")}
        exec("\n".join(line for line in lines if "tl.load" not in line), names)
    return found


ASKING = {
    # name: which pointer is to weights, numbers in a line of memory, lines of weights
    "convolution": ("weight", 64, 48 * 9),
    "weights first": ("x", 64, 32 * 4),
    "linear": ("weight", 64, 40 * 4),
    "in fp32": ("weight", 32, 70 * 16),
}


@pytest.mark.parametrize("split", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ASKING)
def test_all_weights_of_a_long_loop_are_asked_for(name: str, split: int) -> None:
    """By all CTAs together, in mode f, whatever the columns and steps leave at the ends."""
    pointer, line, lines = ASKING[name]
    tiles = ["16x16x64", "16x32x64", "32x16x32", "16x64x128"]
    for tile in ["1x8x64"] if name == "linear" else tiles:
        written = program(read(BODIES[name]), f"contraction:{tile}.k{split}.w4.s2.pf")
        if "fetch_ahead(" in written.text.partition("def contraction")[2]:
            assert {at // line for at in asked_for(written)[pointer]} == set(range(lines))
        else:
            ragged = name == "convolution" and tile.endswith("128")
            assert ragged or "for step in" not in written.text, "registers hold them"


def test_who_runs_in_a_later_wave_is_not_relied_on() -> None:
    """Of 16 CTAs to a row, eight rows run at once: eight take turns with the twelve steps."""
    body = read("""
    graph g {
      input %x: f16[2048,768]
      const %w: f16[1024,768] = w
      %r: f16[2048,1024] = aten.linear.default(%x, %w)
      return %r
    }""")
    text = program(body, "contraction:64x64x64.k1.w4.s3.pf").text
    assert "asked_step = tl.minimum(tile // 16 % 8 + asked // 64 * 8, 11)" in text


@pytest.mark.parametrize("tile", ["2x128", "4x256", "8x256", "2x128.k2", "4x128.k3"])
def test_rows_that_are_walked_ask_for_their_weights(tile: str) -> None:
    """Of 22 rows of 768, by all CTAs together: their whole rows as far as a power of two of lines
    reaches, never beyond the rows and columns that there are."""
    body = read("""
    graph g {
      input %x: f16[1,768]
      const %weight: f16[22,768] = w
      %r: f16[1,22] = aten.linear.default(%x, %weight)
      return %r
    }""")
    asked = asked_for(program(body, f"rows:{tile}.w1.pf"))["weight"]
    split = int(tile.partition(".k")[2] or 1)
    reach = {1: 8, 2: 4, 3: 4}[split] * 64
    parts = [part * (768 // split) + at for part in range(split) for at in range(0, reach, 64)]
    assert asked == {768 * row + at for row in range(22) for at in parts}


def test_of_one_long_step_all_is_asked_for() -> None:
    text = program(read(BODIES["in fp32"]), "contraction:16x64x128.k1.w1.s2.pa").text
    assert "asked = tl.arange(0, 256)" in text


def test_weights_that_are_gathered_are_not_asked_for() -> None:
    body = read("""
    graph g {
      input %x: f16[20,256]
      const %w: f16[100,256] = w
      const %i: i64[48] = i
      %s: f16[48,256] = aten.index_select.default(%w, 0, %i)
      %r: f16[20,48] = aten.linear.default(%x, %s)
      return %r
    }""")
    for mode in ASKED:
        assert "prefetch" not in program(body, f"contraction:16x16x64.k1.w4.s2.p{mode}").text


def test_a_thread_asks_for_so_many_lines() -> None:
    """A step has 16 lines, and two CTAs share nine steps: of 32 threads one line each is less."""
    body = read(BODIES["convolution"])
    few, more = (program(body, f"contraction:16x16x64.k1.w1.s2.p{mode}").text for mode in "af")
    assert "asked = tl.arange(0, 32)" in few and "asked = tl.arange(0, 128)" in more
    text = program(read(BODIES["weights first"]), VARIANTS["weights first"][0] + ".pa").text
    assert "fetch_ahead(x_ptr" in text, "rows can be what is constant"


@pytest.mark.parametrize("name", list(SAMPLES)[:2])
def test_they_compile_for_the_gpus_that_have_it(name: str, tmp_path: Path) -> None:
    ptx = compiled(written(name, "l"), 90, tmp_path)["ptx"]
    assert "griddepcontrol.wait" in ptx and "griddepcontrol.launch_dependents" in ptx


@pytest.mark.parametrize("name", SAMPLES)
def test_early_reads_compile_without_spills_and_stay_early(name: str, tmp_path: Path) -> None:
    found = compiled(written(name, "f"), 90, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert stack <= SPILLED and not local, found["usage"]
    before, _, after = found["ptx"].partition("griddepcontrol.wait")
    assert ("ld.global" in before) == bool(EARLY_READS[name])
    assert ("prefetch.global.L2" in before) == (name in FETCHED)
    assert "st.global" not in before and "cp.async" not in before and "st.global" in after

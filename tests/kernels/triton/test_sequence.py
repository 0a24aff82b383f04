"""Products of all steps of a sequence with what runs along them: layers of recurrent networks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read, sru
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import compiled

from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program, variants, why_none

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def of_sequences(graph: Graph) -> list[Variant]:
    found = [v for v in variants(graph, gpu(132)) if v.template == "sequence"]
    assert found, why_none(graph)
    return found


@settings(max_examples=7, deadline=None)
@given(st.data(), st.sampled_from(DTYPES), st.booleans())
def test_layers_of_any_size(data: st.DataObject, dtype: torch.dtype, own: bool) -> None:
    steps = data.draw(st.sampled_from([2, 7, 16, 19]), label="steps")
    batch = data.draw(st.sampled_from([1, 3]), label="batch")
    depth = data.draw(st.sampled_from([16, 24, 64, 100]), label="depth")
    channels = data.draw(st.sampled_from([16, 24, 40]), label="channels")
    graph = sru(steps, batch, depth, channels, dtype, own)
    found = of_sequences(graph)
    check(graph, [found[0], data.draw(st.sampled_from(found), label="variant")])


def test_weights_are_read_or_asked_for_before_the_wait() -> None:
    """Those of a single step of the depth are read, those of more are asked for."""
    graph = sru(16, 1, 128, 32, torch.float16, own=False)
    one, more = "sequence:16x16x128.w4.s1", "sequence:16x16x64.w4.s3"
    before = program(graph, f"{one}.pe").text.partition("gdc_wait")[0]
    assert before.count("tl.load(weight_ptr") == 3
    before = program(graph, f"{more}.pf").text.partition("gdc_wait")[0]
    assert before.count("    fetch_ahead(weight_ptr") == 3
    check(graph, [f"{one}.pe", f"{more}.pf", f"{more}.pa"])


@pytest.mark.parametrize("steps", [129, 300])
def test_more_steps_than_a_tile_holds(steps: int) -> None:
    graph = sru(steps, 1, 16, 16, torch.float32, own=False)
    assert not variants(graph, gpu(132))
    assert f"it has {steps} steps, and a tile 128" in why_none(graph)


def test_what_runs_from_the_last_step_on() -> None:
    """The other direction of a bidirectional layer; a tile holds more steps than there are."""
    graph = read(
        """
    graph back {
      input %x: f32[11,2,32]
      const %w: f32[24,32] = sha256:w
      input %f: f32[11,2,24]
      %l: f32[11,2,24] = aten.linear.default(%x, %w, None)
      %a: f32[11,2,24] = aten.flip.default(%l, [0])
      %b: f32[11,2,24] = aten.flip.default(%f, [0])
      %y: f32[11,2,24] = anabranch.recurrence.default(%a, %b, None, 0)
      %z: f32[11,2,24] = aten.flip.default(%y, [0])
      return %z
    }"""
    )
    check(graph, of_sequences(graph)[:2])


def test_other_folds_along_the_rows_of_products() -> None:
    """Sums and largest ones so far, of rows that are many sequences', after a relu before them."""
    graph = read(
        """
    graph sums {
      input %x: f16[3,9,48]
      const %w: f16[40,48] = sha256:w
      const %v: f16[40,48] = sha256:v
      %r: f16[3,9,48] = aten.relu.default(%x)
      %p: f16[3,9,40] = aten.linear.default(%r, %w, None)
      %q: f16[3,9,40] = aten.linear.default(%r, %v, None)
      %s: f16[3,9,40] = aten.cumsum.default(%p, 1)
      %t: f16[3,9,40] = aten.logcumsumexp.default(%q, 1)
      %y: f16[3,9,40] = aten.add.Tensor(%s, %t)
      return %y, %s
    }"""
    )
    check(graph, of_sequences(graph)[:2])


FACTORS = {
    "a number": "%f: f32[20,3,24] = aten.full.default([20, 3, 24], 0.5)",
    "of each step": "%f: f16[20,3,24] = aten.expand.default(%e, [20, 3, 24])",
    "of each channel": "%f: f16[20,3,24] = aten.expand.default(%c, [20, 3, 24])",
}


@pytest.mark.parametrize("name", FACTORS)
def test_decays_of_fewer_elements(name: str, tmp_path: Path) -> None:
    """Interpreted, and compiled for both machines."""
    graph = parse_graph(
        f"""
    graph decay {{
      input %x: f16[20,3,40]
      input %e: f16[20,1,1]
      input %c: f16[24]
      const %w: f16[24,40] = sha256:w
      %l: f16[20,3,24] = aten.linear.default(%x, %w, None)
      {FACTORS[name]}
      %y: f16[20,3,24] = anabranch.recurrence.default(%l, %f, None, 0)
      return %y
    }}"""
    )
    held = replace(graph.constants[0], value=torch.randn(24, 40).half())
    graph = replace(graph, constants=(held,))
    found = of_sequences(graph)
    check(graph, [found[0], found[-1]])
    for capability in (80, 90):
        made = compiled(program(graph, found[0]), capability, tmp_path)
        assert int(made["shared"]) <= 163 << 10  # what a CTA may have where that is least


def test_rows_that_are_read_from_nowhere() -> None:
    graph = read(
        """
    graph nowhere {
      const %w: f32[20,30] = sha256:w
      %a: f32[30] = aten.arange.default(30, dtype=torch.float32)
      %b: f32[17] = aten.arange.default(17, dtype=torch.float32)
      %u: f32[17,1] = aten.unsqueeze.default(%b, 1)
      %o: f32[17,30] = aten.mul.Tensor(%u, %a)
      %l: f32[17,20] = aten.linear.default(%o, %w, None)
      %y: f32[17,20] = aten.cumsum.default(%l, 0)
      return %y
    }"""
    )
    assert not [v for v in variants(graph, gpu(132)) if v.template == "sequence"]


def product(line: str) -> Graph:
    """A linear layer without bias, and what is made of it."""
    return read(
        f"""
    graph product {{
      input %x: f16[3,9,48]
      const %w: f16[40,48] = sha256:w
      %p: f16[3,9,40] = aten.linear.default(%x, %w, None)
      {line}
      return %y
    }}"""
    )


def test_what_runs_along_the_channels() -> None:
    """Weights and rows change places: the channels are the steps then."""
    graph = product("%y: f16[3,9,40] = aten.cumsum.default(%p, 2)")
    check(graph, of_sequences(graph)[:2])


NO_LAYERS = {
    "no fold": ("%y: f16[3,9,40] = aten.tanh.default(%p)", "nothing runs along its rows"),
    "two ways": (
        "%s: f16[3,9,40] = aten.cumsum.default(%p, 1)\n"
        "%y: f16[3,9,40] = aten.cumsum.default(%s, 2)",
        "along several axes",
    ),
    "of the product's row": (
        "%m: f16[3,9,1] = aten.mean.dim(%p, [2], True)\n"
        "%s: f16[3,9,40] = aten.cumsum.default(%p, 1)\n"
        "%y: f16[3,9,40] = aten.sub.Tensor(%s, %m)",
        "no sum of products",
    ),
}


@pytest.mark.parametrize("name", NO_LAYERS)
def test_what_is_no_layer(name: str) -> None:
    line, why = NO_LAYERS[name]
    graph = product(line)
    assert not [v for v in variants(graph, gpu(132)) if v.template == "sequence"]
    with pytest.raises(ValueError, match=why):
        program(graph, "sequence:16x16x32.w4.s2")

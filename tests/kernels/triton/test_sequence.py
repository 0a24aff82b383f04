"""Products of all steps of a sequence with what runs along them: layers of recurrent networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, sru
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph
from anabranch.kernels.triton.write import program, variants, why_none

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def of_sequences(graph: Graph) -> list[str]:
    found = [v for v in variants(graph, gpu(132)) if v.startswith("sequence")]
    assert found, why_none(graph)
    return found


@settings(max_examples=12, deadline=None)
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

"""Two products in one launch, in Triton's interpreter: with what stands before, between and after
them, in the layouts and sizes that networks have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.gemm_chains import convolutions, layers
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.variant import Variant
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.expected_time import expected_us
from anabranch.kernels.triton.gemm_chain import tiles
from anabranch.kernels.triton.gemm_chain_axes import gemm_chain_of
from anabranch.kernels.triton.gemm_chain_tiles import TRIED_TILES

SMALL = settings(max_examples=10, deadline=None)
DTYPES = st.sampled_from(["f16", "bf16", "f32"])


@SMALL
@given(
    batch=st.integers(1, 2),
    channels=st.tuples(st.integers(1, 20), st.integers(2, 24), st.integers(2, 20)),
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    taps=st.sampled_from([(1, 1), (3, 1), (1, 3), (2, 2)]),
    stride=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]),
    padding=st.sampled_from([(0, 0), (1, 0), (0, 1), (2, 1)]),
    tile=st.sampled_from(["16x16x16x16.k1", "32x32x16x16.k2", "16x64x32x32.k3"]),
    dtype=DTYPES,
    last=st.booleans(),
)
def test_convolutions_of_any_shape(
    batch: int, channels: tuple[int, int, int], size: tuple[int, int], taps: tuple[int, int],
    stride: tuple[int, int], padding: tuple[int, int], tile: str, dtype: str, last: bool,
) -> None:  # fmt: skip
    small = min(size) + 2 * padding[0] - taps[0]
    if small < 0 or small // stride[0] + 1 + 2 * padding[1] < taps[1]:
        return  # nothing to compute
    body = convolutions(
        channels[0], size, *channels[1:], batch=batch, taps=taps, stride=stride, padding=padding,
        dtype=dtype, last=last,
    )  # fmt: skip
    found = gemm_chain_of(lower(body))
    if isinstance(found, Refused):
        assert channels[0] * taps[0] == 1 or "row" in found.sentence, found
        return
    if found.m > 1:
        check(body, [f"gemm_chain:{tile}.w4.s2"])


def test_one_pixel_that_is_padded_is_no_pair() -> None:
    """All rows of the result read the same pixel, or none: the first product has but one row."""
    body = convolutions(2, (1, 1), 2, 2, taps=(1, 1), padding=(0, 1), dtype="f16")
    assert gemm_chain_of(lower(body)) == Refused(
        "neither factor of its first product depends on rows"
    )


@SMALL
@given(
    rows=st.integers(1, 40),
    sizes=st.tuples(st.integers(2, 70), st.integers(2, 80), st.integers(2, 40)),
    split=st.integers(1, 4),
    dtype=DTYPES,
)
def test_layers_of_any_size(rows: int, sizes: tuple[int, int, int], split: int, dtype: str) -> None:
    body = layers(rows, *sizes, dtype)
    tiles = ["16x16x16x16", "32x32x32x16"] if rows > 1 else ["1x8x16x32", "1x32x8x64"]
    check(body, [f"gemm_chain:{tile}.k{split}.w4.s2" for tile in tiles])


def linear(depth: int, columns: int) -> Graph:
    return read(f"""
    graph linear {{
      input %x: f16[1,{depth}]
      const %w: f16[{columns},{depth}] = w
      const %b: f16[{columns}] = b
      %y: f16[1,{columns}] = aten.linear.default(%x, %w, %b)
      return %y
    }}""")


@pytest.mark.parametrize(("channels", "middle"), [(96, 4), (480, 20), (672, 28)])
def test_what_excites_channels_is_one_launch(channels: int, middle: int) -> None:
    """Both products of one pixel, as squeeze and excitation has them: each CTA computes the few
    channels between for itself, which is expected to be faster than a launch for each."""
    body = convolutions(channels, (1, 1), middle, channels, taps=(1, 1))
    found = tiles(body, gpu(132))
    assert found and all(tile.m == 1 for tile in found)
    check(body, list(map(Variant, found[:2])))
    apart = [linear(channels, middle), linear(middle, channels)]
    together, *each = (expected_us(graph, gpu(132)) for graph in (body, *apart))
    assert together is not None and together < sum(us for us in each if us is not None)
    small = [one for one in variants(apart[1], gpu(132)) if one.template == "contraction"]
    check(apart[1], [small[0], small[-1]])


def test_what_is_made_of_channels_beyond_the_end_is_left_out() -> None:
    """Of 0 they would be made infinite, and infinity times the zeros of the other factor is nan."""
    body = convolutions(8, (5, 5), 19, 8, between="aten.reciprocal.default(%conv)", dtype="f32")
    check(body, ["gemm_chain:16x16x16x16.k1.w4.s1", "gemm_chain:16x16x32x16.k1.w4.s1"])


def test_stacks_of_matrices() -> None:
    body = read("""
    graph stack {
      input %x: f16[3,19,33]
      input %y: f16[3,33,24]
      input %z: f16[3,24,18]
      %a: f16[3,19,24] = aten.bmm.default(%x, %y)
      %s: f16[3,19,24] = aten.mul.Tensor(%a, 0.125)
      %r: f16[3,19,18] = aten.bmm.default(%s, %z)
      return %r
    }""")
    check(body, ["gemm_chain:16x16x16x16.k1.w4.s2", "gemm_chain:16x32x16x32.k2.w4.s2"])


ONE, TWO = "gemm_chain:1x16x16x32.k1.w4.s1", "gemm_chain:16x16x16x16.k1.w4.s1"
REFUSED = {
    "grouped": (convolutions(8, (5, 5), 16, 8, groups=(4, 1)), TWO, "both factors"),
    "grouped behind": (convolutions(8, (5, 5), 16, 8, groups=(1, 4)), TWO, "one column"),
    "depthwise": (convolutions(8, (5, 5), 8, 16, groups=(8, 1)), TWO, "both factors"),
    "rows": (layers(7, 8, 9, 10), ONE, "does not suit 7 rows"),
    "one row": (layers(1, 8, 9, 10), TWO, "does not suit 1 rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_sentences(name: str) -> None:
    body, variant, why = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(why)):
        program(body, variant)


GPUS: dict[int, TargetSpec] = {
    80: replace(gpu(108), capability=(8, 0), shared_per_sm=164 << 10),
    90: gpu(),
}
OFFERED = {
    "bottleneck": convolutions(64, (56, 56), 64, 256, dtype="bf16"),
    "halo": convolutions(128, (28, 28), 128, 32, taps=(1, 3)),
    "wide rows": layers(3136, 96, 384, 96),
    "few rows": layers(64, 128, 256, 64),
    "one row": layers(1, 512, 2048, 512),
    "fp32": layers(64, 128, 256, 64, "f32"),
}


@pytest.mark.parametrize(
    ("name", "capability"), [(name, tuple(GPUS)[i % 2]) for i, name in enumerate(OFFERED)]
)
def test_what_is_offered_fits_and_does_not_spill(
    name: str, capability: int, tmp_path: Path
) -> None:
    body, spec = OFFERED[name], replace(GPUS[capability], tf32=True)
    offered = list(map(Variant, tiles(body, spec)))
    assert 1 <= len(offered) == len(set(offered)) <= TRIED_TILES
    for variant in offered[:1]:
        found = compiled(program(body, variant), capability, tmp_path)
        stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
        assert stack <= SPILLED and not local, f"{variant}: {found['usage']}"
        assert int(found["shared"]) + 1024 <= spec.shared_per_sm, variant
        assert ("mma" in found["ptx"]) == (name != "one row")

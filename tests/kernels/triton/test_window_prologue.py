"""Windows that a product reads where it reads its factor, in one kernel: depthwise convolutions and
poolings with a convolution of single pixels behind them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.gemm_chains import convolutions, image
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.contraction import tiles
from anabranch.kernels.triton.contraction_axes import contraction_of
from anabranch.kernels.triton.contraction_tiles import KEPT_OF_WINDOWS
from anabranch.kernels.triton.k_loop import steps_of

SMALL = settings(max_examples=10, deadline=None)
DTYPES = st.sampled_from(["f16", "f32"])


@SMALL
@given(
    batch=st.integers(1, 2),
    channels=st.tuples(st.integers(2, 40), st.integers(2, 35)),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    taps=st.integers(2, 5),
    stride=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    padding=st.integers(0, 2),
    tile=st.sampled_from(["16x16x16.k1", "32x16x32.k2", "16x32x16.k3", "16x16x64.k1"]),
    dtype=DTYPES,
    last=st.booleans(),
)
def test_depthwise_and_pointwise_convolutions_of_any_shape(
    batch: int, channels: tuple[int, int], size: tuple[int, int], taps: int,
    stride: tuple[int, int], padding: int, tile: str, dtype: str, last: bool,
) -> None:  # fmt: skip
    if min(size) + 2 * padding < taps:
        return  # nothing to compute
    body = convolutions(
        channels[0], size, channels[0], channels[1], batch=batch, taps=(taps, 1), stride=stride,
        padding=(padding, 0), groups=(channels[0], 1), between="aten.hardswish.default(%conv)",
        dtype=dtype, last=last,
    )  # fmt: skip
    found = contraction_of(lower(body))
    assert not isinstance(found, Refused) and found.reads == taps**2
    one = re.sub(r"^\d+", "1", tile) if found.m == 1 else tile
    check(body, [f"contraction:{one}.w4.s2"])


def pooled(pool: str, channels: int, size: int, out: int, dtype: str, last: bool) -> Graph:
    """A pooling that keeps the size, and a convolution of single pixels."""
    x, y = (image((2, c, size, size), dtype, last) for c in (channels, out))
    return read(f"""
    graph pooled {{
      input %x: {x}
      const %w: {dtype}[{out},{channels},1,1]{{{channels},1,{channels},{channels}}} = w
      const %b: {dtype}[{out}] = b
      %p: {x} = aten.{pool}.default(%x, [3, 3], [1, 1], [1, 1])
      %conv: {y} = aten.convolution.default(%p, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %r: {y} = aten.relu.default(%conv)
      return %r
    }}""")


@SMALL
@given(
    pool=st.sampled_from(["max_pool2d", "avg_pool2d"]),
    channels=st.integers(2, 40),
    size=st.integers(2, 7),
    out=st.integers(2, 35),
    dtype=DTYPES,
    last=st.booleans(),
)
def test_poolings(pool: str, channels: int, size: int, out: int, dtype: str, last: bool) -> None:
    """Channels beyond the end have no largest value: it would be an infinity."""
    check(pooled(pool, channels, size, out, dtype, last), ["contraction:16x16x16.k1.w4.s2"])


def test_nothing_that_may_still_be_written_is_read_before_the_wait() -> None:
    body = convolutions(24, (7, 7), 24, 40, groups=(24, 1))
    tiles = ["contraction:16x16x16.k1.w4.s2", "contraction:32x16x32.k1.w4.s2"]
    check(body, [f"{tile}.p{mode}" for tile in tiles for mode in PdlMode])


WINDOWS = {
    "depthwise 56": convolutions(144, (56, 56), 144, 24, groups=(144, 1), dtype="bf16"),
    "depthwise 14": convolutions(576, (14, 14), 576, 96, groups=(576, 1)),
    "pooling": pooled("max_pool2d", 192, 28, 32, "f16", True),
}


@pytest.mark.parametrize(
    ("name", "capability"),
    [("depthwise 56", 80), ("depthwise 14", 90), ("pooling", 80), ("pooling", 90)],
)
def test_what_is_offered_fits_and_does_not_spill(
    name: str, capability: int, tmp_path: Path
) -> None:
    offered = variants(WINDOWS[name], gpu())
    assert 1 <= len(offered) <= KEPT_OF_WINDOWS
    for variant in offered[:1]:  # each takes seconds
        found = compiled(program(WINDOWS[name], variant), capability, tmp_path)
        stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
        assert stack <= SPILLED and not local, f"{variant}: {found['usage']}"
        assert int(found["shared"]) <= 160 << 10, variant
        assert "mma" in found["ptx"] and "cp.async" in found["ptx"], "taps are not loaded ahead"


def of_one_step(body: Graph) -> list[Variant]:
    """The variants that are offered of which a CTA reads all it multiplies at once."""
    found = contraction_of(lower(body))
    assert not isinstance(found, Refused)
    whole = (t for t in tiles(body, gpu()) if steps_of(found, t.k, "deep").count == 1)
    return list(map(Variant, whole))


@pytest.mark.parametrize(("channels", "size", "taps"), [(176, 7, 3), (88, 14, 5), (160, 14, 3)])
def test_a_tile_that_holds_all_channels_asks_for_all_it_reads_at_once(
    channels: int, size: int, taps: int, tmp_path: Path
) -> None:
    body = convolutions(
        channels, (size, size), channels, channels, groups=(channels, 1), taps=(taps, 1)
    )
    (variant,) = of_one_step(body)
    found = compiled(program(body, variant), 90, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert not stack and not local, f"{variant}: {found['usage']}"
    wide = re.findall(r"ld\.global[^;]*v4", found["ptx"])
    assert len(wide) >= taps**2 and "cp.async" not in found["ptx"]


@pytest.mark.parametrize(("channels", "depth"), [(156, 256), (300, 512)])
def test_one_step_of_more_channels_than_there_are(channels: int, depth: int) -> None:
    body = convolutions(
        channels, (4, 3), channels, 40, groups=(channels, 1), padding=(1, 0),
        between="aten.hardswish.default(%conv)",
    )  # fmt: skip
    check(body, [f"contraction:16x32x{depth}.k1.w8.s2"])


def test_one_step_is_not_tried_where_its_bytes_take_longer_than_several_steps() -> None:
    body = convolutions(308, (28, 28), 308, 308, groups=(308, 1))
    assert variants(body, gpu()) and not of_one_step(body)


REFUSED = {
    "groups of channels": (convolutions(16, (9, 9), 16, 8, groups=(2, 1)), "72 values"),
    "all channels": (convolutions(2, (9, 9), 16, 8), "other channels"),
    "far": (convolutions(8, (9, 9), 8, 8, groups=(8, 1), taps=(7, 1)), "49 values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_are_sentences(name: str) -> None:
    body, why = REFUSED[name]
    assert why in str(contraction_of(lower(body)))

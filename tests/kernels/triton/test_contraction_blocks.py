"""Contractions that sum blocks of what they make, and contractions that read such sums."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read, renormed, summed
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.tiles import ContractionTile
from anabranch.ir.variant import PdlMode
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.contraction import found_in
from anabranch.kernels.triton.contraction_axes import MOST_SHORT
from anabranch.kernels.triton.pdl import EARLY

TYPES = (torch.float16, torch.bfloat16, torch.float32)
TILES = ("16x64x32.k1.w4.s3", "32x32x16.k2.w4.s3", "64x128x64.k1.w4.s3", "16x256x16.k4.w8.s2")


@pytest.mark.parametrize("dtype", TYPES)
def test_mean_and_variance_of_blocks_of_a_result(dtype: torch.dtype) -> None:
    for lead, k, n, block in (((40,), 48, 128, 32), ((1, 33), 96, 96, 16), ((2, 5), 20, 320, 32)):
        check(summed(lead, k, n, block, dtype), [f"contraction:{tile}" for tile in TILES])


@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_normalised_by_sums_that_lie_in_memory(dtype: torch.dtype) -> None:
    for lead, k, n, many in (((40,), 64, 72, 8), ((1, 33), 96, 48, 3), ((2, 5, 3), 80, 130, 24)):
        check(renormed(lead, k, n, many, dtype), [f"contraction:{tile}" for tile in TILES])


@given(
    lead=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    k=st.integers(2, 90),
    block=st.sampled_from([2, 16, 32, 64]),
    many=st.integers(2, 5),
    dtype=st.sampled_from(TYPES),
)
@settings(max_examples=10, deadline=None)
def test_any_rows_and_blocks(
    lead: list[int], k: int, block: int, many: int, dtype: torch.dtype
) -> None:
    if any(size > 1 for size in lead):
        made = summed((*lead,), k, many * block, block, dtype)
        check(made, variants(made, gpu())[:3])
        assert variants(made, gpu())
    used = renormed((*lead,), k + 32, 3 * many, many, dtype, "%out")
    check(used, variants(used, gpu())[:3])


def test_launched_early_it_waits_before_it_reads_what_others_sum() -> None:
    for graph in (renormed((40,), 64, 72, 6, TYPES[0]), summed((40,), 64, 128, 32, TYPES[0])):
        check(graph, [f"contraction:32x32x32.k1.w4.s2.p{mode}" for mode in PdlMode])
        check(graph, [f"contraction:32x32x64.k1.w4.s2.p{mode}" for mode in EARLY])


def test_what_others_sum_is_read_before_the_products_and_summed_after() -> None:
    graph = renormed((40,), 64, 72, 6, torch.float16)
    lines = program(graph, "contraction:32x32x32.k1.w4.s2").text.splitlines()
    loop = next(at for at, line in enumerate(lines) if "for step" in line)
    summed_up = [at for at, line in enumerate(lines) if "tl.sum" in line]
    few = [at for at, line in enumerate(lines) if "few" in line and "tl.load" in line]
    assert len(few) == 2 and max(few) < loop < min(summed_up)


def test_a_tile_holds_whole_blocks() -> None:
    graph = summed((64,), 64, 256, 64, torch.float16)
    found = variants(graph, gpu())
    assert found
    assert all(isinstance(v.tile, ContractionTile) and v.tile.n % 64 == 0 for v in found)
    with pytest.raises(ValueError, match="cuts blocks of 64 columns"):
        program(graph, "contraction:32x32x32.k1.w4.s3")


def test_rows_of_two_lengths_are_no_blocks_where_nothing_is_multiplied() -> None:
    graph = read("""
    graph g {
      input %x: f32[8,32]
      input %y: f32[8,4]
      %p: f32[8,32] = aten.relu.default(%x)
      %q: f32[8,4] = aten.exp.default(%y)
      return %p, %q
    }""")
    assert all(variant.template == "horizontal" for variant in variants(graph, gpu()))


def linear_and(lines: str, results: str, more: str = "") -> Graph:
    """A linear of 40 rows to 128 columns, cut into blocks of 32, with something else."""
    return read(f"""
    graph g {{
      input %x: f32[40,48]
      {more}
      const %w: f32[128,48] = w
      %p: f32[40,128] = aten.linear.default(%x, %w)
      %b: f32[40,4,32] = aten.reshape.default(%p, [40,4,32])
      {lines}
      return {results}
    }}""")


def test_blocks_may_read_what_nothing_else_reads() -> None:
    graph = linear_and(
        """%d: f32[40,4,32] = aten.sub.Tensor(%b, %z)
      %u: f32[40,4] = aten.mean.dim(%d, [-1])""",
        "%p, %u",
        "input %z: f32[40,4,32]",
    )
    check(graph, [f"contraction:{tile}" for tile in TILES])


def test_few_whole_numbers_are_summed_exactly() -> None:
    graph = linear_and(
        """%s: i64[40,1] = aten.sum.dim_IntList(%n, [-1], True)
      %out: f32[40,128] = aten.mul.Tensor(%p, %s)""",
        "%out, %s",
        "input %n: i64[40,3]",
    )
    many = torch.full((40, 3), 2**24 + 1)
    check(graph, ["contraction:16x64x32.k1.w4.s3"], [torch.rand(40, 48), many])


REFUSED = {
    "blocks that are repeated": (
        linear_and(
            """%u: f32[40,4,1] = aten.mean.dim(%b, [-1], True)
      %v: f32[40,4,32] = aten.repeat.default(%u, [1, 1, 32])""",
            "%b, %v",
        ),
        "of blocks and of their columns",
    ),
    "sums of sums of few": (
        linear_and(
            """%s: f32[40,4] = aten.sum.dim_IntList(%n, [-1])
      %t: f32[40,1] = aten.sum.dim_IntList(%s, [-1], True)
      %out: f32[40,128] = aten.mul.Tensor(%p, %t)""",
            "%out",
            "input %n: f32[40,4,8]",
        ),
        "several reductions",
    ),
    "one row": (summed((1,), 48, 128, 32, torch.float16), "no columns"),
    "odd blocks": (summed((8,), 48, 120, 24, torch.float16), "power of two"),
    "long sums": (renormed((8,), 48, 40, MOST_SHORT + 1, torch.float16), "several reductions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    graph, why = REFUSED[name]
    found = found_in(graph)
    assert isinstance(found, Refused) and why in found.sentence


def test_other_numbers_for_each_column_are_not_short() -> None:
    graph = read("""
    graph g {
      input %x: f16[32,64]
      input %y: f16[32,48,5]
      const %w: f16[48,64] = w
      %v: f16[32,48] = aten.sum.dim_IntList(%y, [-1])
      %p: f16[32,48] = aten.linear.default(%x, %w)
      %out: f16[32,48] = aten.mul.Tensor(%p, %v)
      return %out
    }""")
    found = found_in(graph)
    assert isinstance(found, Refused) and "several reductions" in found.sentence


def test_what_is_added_may_be_read_first() -> None:
    """A residual, which every place of the tile has its own of; a bias alone is no reason."""
    graph = summed((40,), 48, 128, 32, torch.float16)
    offered = [variant for variant in variants(graph, gpu()) if str(variant).endswith(".r")]
    assert offered and all(".k1." in str(variant) for variant in offered)
    assert not any(
        str(v).endswith(".r") for v in variants(renormed((40,), 64, 72, 6, TYPES[0]), gpu())
    )
    variant = "contraction:16x64x32.k1.w4.s3"
    after, first = (program(graph, v).text.splitlines() for v in (variant, f"{variant}.r"))
    for lines, early in ((after, False), (first, True)):
        at = next(i for i, line in enumerate(lines) if "tl.load(y_ptr" in line)
        loop = next(i for i, line in enumerate(lines) if "for step" in line)
        assert (at < loop) == early
    check(graph, [f"{variant}.r", f"{variant}.r.pe", *offered[:2]])

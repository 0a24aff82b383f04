"""Contractions that sum more than products: statistics of the rows that they multiply."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, normed, read
from tests.kernels.triton.interpreter import check

from anabranch.kernels.triton.contraction import found_in
from anabranch.kernels.triton.write import program, variants

TILES = (
    *("16x16x32.k1.w4.s1", "32x64x64.k1.w4.s3", "64x16x16.k1.w2.s2"),
    *("128x32x32.k1.w8.s2", "16x128x64.k1.w4.s4"),
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_statistics_of_rows_beside_a_product(dtype: torch.dtype) -> None:
    for lead, k, n in (((40,), 64, 72), ((1, 33), 96, 48), ((2, 5, 3), 80, 130)):
        check(normed(lead, k, n, dtype), [f"contraction:{tile}" for tile in TILES])


@given(
    lead=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    k=st.integers(2, 90),
    n=st.integers(2, 90),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
    stored=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_statistics_of_any_rows(
    lead: list[int], k: int, n: int, dtype: torch.dtype, stored: bool
) -> None:
    """Also of one row, which is multiplied without tensor cores, where none is a result."""
    one = all(size == 1 for size in lead)
    graph = normed((*lead,), k, n, dtype, "%out, %r" if stored and not one else "%out")
    check(graph, variants(graph, gpu())[:3])


def test_each_tile_is_whole_and_one_of_a_row_stores_what_is_of_rows() -> None:
    graph = normed((64,), 64, 256, torch.float16)
    found = variants(graph, gpu())
    assert found and all(".k1." in variant for variant in found)
    text = program(graph, "contraction:32x64x64.k1.w4.s3").text
    guarded = text[text.index("if tile % 4 == 0:") :].splitlines()
    assert [line.lstrip().partition("(")[0] for line in guarded[1:] if "store" in line] == [
        "tl.store",
        "tl.store",
    ]
    assert all(line.startswith("        ") for line in guarded[1:] if line)
    with pytest.raises(ValueError, match="splits a depth"):
        program(graph, "contraction:32x64x32.k2.w4.s3")


def test_launched_early_it_waits_before_it_sums() -> None:
    graph = normed((40,), 64, 72, torch.float16)
    check(graph, [f"contraction:32x16x32.k1.w4.s2.p{mode}" for mode in "nwlea"])
    check(graph, [f"contraction:32x16x64.k1.w4.s2.p{mode}" for mode in "ea"])


def test_what_is_summed_must_be_of_what_is_multiplied() -> None:
    """Two passes over a row are no sum beside products, nor is one of many other numbers, nor one
    that is another for each column."""
    twice = read("""
    graph g {
      input %x: f16[32,64]
      const %w: f16[48,64] = w
      %v: f16[32,1] = aten.var.correction(%x, [-1], correction=0, keepdim=True)
      %p: f16[32,48] = aten.linear.default(%x, %w)
      %out: f16[32,48] = aten.mul.Tensor(%p, %v)
      return %out
    }""")
    other = read("""
    graph g {
      input %x: f16[32,64]
      input %y: f16[32,300]
      const %w: f16[48,64] = w
      %v: f16[32,1] = aten.sum.dim_IntList(%y, [-1], True)
      %p: f16[32,48] = aten.linear.default(%x, %w)
      %out: f16[32,48] = aten.mul.Tensor(%p, %v)
      return %out
    }""")
    below = read("""
    graph g {
      input %x: f16[32,64]
      const %w: f16[48,64] = w
      %u: f16[32,1,64] = aten.unsqueeze.default(%x, 1)
      %e: f16[32,48,64] = aten.expand.default(%u, [32, 48, 64])
      %l: f16[32,48,64] = aten.tril.default(%e)
      %v: f16[32,48] = aten.sum.dim_IntList(%l, [-1])
      %p: f16[32,48] = aten.linear.default(%x, %w)
      %out: f16[32,48] = aten.mul.Tensor(%p, %v)
      return %out
    }""")
    for graph in (twice, other, below):
        found = found_in(graph)
        assert isinstance(found, str) and "several reductions" in found

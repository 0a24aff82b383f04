"""Tiles of contractions: most are never written, and what is offered can be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from benchmarks.layers import linear
from tests.kernels.triton.bodies import body, gpu

from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec
from anabranch.ir.text import parse_graph
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction import tiles
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of
from anabranch.kernels.triton.contraction_tiles import TRIED_TILES, chosen, ranked


def layer(channels: int, size: int, filters: int, window: int) -> Contraction:
    last = torch.channels_last
    x = torch.empty(1, channels, size, size, dtype=torch.half).to(memory_format=last)
    w = torch.empty(filters, channels, window, window, dtype=torch.half).to(memory_format=last)
    around = [window // 2] * 2
    args = (x, w, None, [1, 1], around, [1, 1], False, [0, 0], 1)
    found = contraction_of(lower(body("aten.convolution.default", args)[0]))
    assert isinstance(found, Contraction)
    return found


@pytest.mark.parametrize("sizes", [(256, 14, 256, 3), (512, 7, 512, 3), (1024, 14, 256, 1)])
def test_nearly_all_tiles_are_never_written(sizes: tuple[int, int, int, int]) -> None:
    found = layer(*sizes)
    assert len(chosen(found, gpu())) <= TRIED_TILES < 0.2 * len(ranked(found, gpu()))


def test_the_first_tiles_are_of_all_kinds() -> None:
    """Those that differ in stages alone come last, and what is added first in turn with others."""
    plain, residual = tiles(linear(197, 384, 1536), gpu()), tiles(summing(197, 1536, 384), gpu())
    assert len({(t.m, t.n, t.k, t.split, t.warps) for t in plain[:8]}) == 8
    assert [tile.added_first for tile in residual[:6]] == [False, False, True] * 2
    assert residual[2] == replace(residual[0], added_first=True)


def summing(rows: int, depth: int, columns: int) -> Graph:
    """A linear layer, and what is added to it."""
    return parse_graph(f"""
    graph summing {{
      input %x: f16[{rows},{depth}]
      input %z: f16[{rows},{columns}]
      const %w: f16[{columns},{depth}] = w
      %linear: f16[{rows},{columns}] = aten.linear.default(%x, %w)
      %out: f16[{rows},{columns}] = aten.add.Tensor(%linear, %z)
      return %out
    }}""")


@pytest.mark.parametrize("sizes", [(256, 14, 256, 3), (512, 28, 512, 3), (1024, 14, 256, 1)])
def test_by_limit_those_are_kept_that_may_come_nearest_to_the_peak(
    sizes: tuple[int, int, int, int],
) -> None:
    """At batch 1 they are others than those that are expected to be the fastest."""
    found = layer(*sizes)
    limits = {tile: bound.limit for tile, bound in ranked(found, gpu())}
    kept, fastest = chosen(found, gpu(), by_limit=True), chosen(found, gpu())
    assert len(kept) == len(fastest) == TRIED_TILES and set(kept) != set(fastest)
    assert [limits[tile] for tile in kept] == sorted((limits[t] for t in kept), reverse=True)
    assert limits[kept[0]] == max(limits.values())
    assert min(limits[tile] for tile in kept) > min(limits[tile] for tile in fastest)


def one_row(depth: int, columns: int) -> Contraction:
    args = (torch.empty(1, depth).half(), torch.empty(columns, depth).half(), None)
    found = contraction_of(lower(body("aten.linear.default", args)[0]))
    assert isinstance(found, Contraction)
    return found


def test_few_columns_of_one_row_are_shared_out_one_by_one_or_by_their_depth() -> None:
    """Either way there are more programs than wide tiles would make."""
    few, many = chosen(one_row(4096, 10), gpu()), chosen(one_row(768, 768), gpu())
    assert all(tile.split > 1 or tile.n == 2 for tile in few)
    assert {tile.split for tile in many} == {1} and many[0].n <= 4
    assert chosen(one_row(64, 16), gpu()), "a small linear layer has no tile"


def test_only_products_that_fill_the_gpu_have_the_widest_tiles() -> None:
    def widest(rows: int, spec: TargetSpec) -> int:
        args = (torch.empty(rows, 768).half(), torch.empty(3072, 768).half(), None)
        found = contraction_of(lower(body("aten.linear.default", args)[0]))
        assert isinstance(found, Contraction)
        return max(max(tile.m, tile.n) for tile, _ in ranked(found, spec))

    assert widest(2048, gpu()) == 256 and widest(128, gpu()) == 128
    assert widest(128, gpu(sms=20)) == 256


def test_offers_come_in_the_same_order() -> None:
    graph, _ = body("aten.mm.default", (torch.empty(128, 768).half(), torch.empty(768, 768).half()))
    offers = tiles(graph, gpu())
    assert offers == tiles(graph, gpu()) and len(set(offers)) == len(offers) > 4


def test_without_tensor_cores_for_fp32_nothing_is_rounded() -> None:
    graph, _ = body("aten.mm.default", (torch.empty(64, 64), torch.empty(64, 64)))
    assert not any(tile.tf32 for tile in tiles(graph, gpu()))

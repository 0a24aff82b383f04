"""The upper limit of a kernel by its variant: the one that its tile was ranked by, in any mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import body, call, gpu

from anabranch.ir.graph import Graph
from anabranch.ir.refused import Refused
from anabranch.ir.tiles import ContractionTile, PointwiseTile, RowsTile, Tile, WindowTile
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.triton.codegen import variants
from anabranch.kernels.triton.contraction import found_in, tiles
from anabranch.kernels.triton.contraction_tiles import ranked
from anabranch.kernels.triton.limits import upper_limit

PRODUCT, _ = body("aten.mm.default", (torch.empty(128, 768).half(), torch.empty(768, 96).half()))


def test_it_is_what_the_tile_was_ranked_by() -> None:
    found = found_in(PRODUCT)
    assert not isinstance(found, Refused)
    known = dict(ranked(found, gpu()))
    offered = tiles(PRODUCT, gpu())
    assert len(offered) > 5
    for tile in offered:
        same = known[replace(tile, added_first=False)]
        assert upper_limit(PRODUCT, Variant(tile), gpu()) == same


def test_how_it_is_launched_changes_nothing() -> None:
    plain = Variant(tiles(PRODUCT, gpu())[0])
    launched = replace(plain, pdl=PdlMode.HOIST_CONSTANTS, carveout=50)
    assert upper_limit(PRODUCT, launched, gpu()) == upper_limit(PRODUCT, plain, gpu())


def test_all_four_terms_can_be_read() -> None:
    limit = upper_limit(PRODUCT, Variant(tiles(PRODUCT, gpu())[0]), gpu())
    assert limit is not None
    text = limit.text
    assert all(f"{term} " in text for term in ("memory", "shared", "tail", "fits"))
    assert f"about {limit.us:.1f} us" in text
    huge = upper_limit(PRODUCT, Variant(ContractionTile(128, 128, 128, 1, 1, 5)), gpu())
    assert huge is not None
    assert "fits 0" in huge.text and "us" not in huge.text


RELU, _ = body("aten.relu.default", (torch.empty(1 << 20).half(),))
SUMS, _ = body("aten.sum.dim_IntList", (torch.empty(4096, 512), [1]))
POOL, _ = body("aten.max_pool2d.default", (torch.empty(1, 64, 58, 58).half(), [3, 3], [1, 1]))


def test_a_pointwise_kernel_is_bound_by_memory_and_its_last_wave() -> None:
    """2^20 halves in and out: an operation for 4 bytes, against 66.9e12 / 4.8e12 for one."""
    spec = gpu()
    peak = dict(spec.peak_flops)["f32"] / spec.bandwidth
    found = upper_limit(RELU, Variant(PointwiseTile(1024, 4)), spec)
    assert found is not None and found.fits == found.shared == 1.0
    assert found.memory == pytest.approx(1 / 4 / peak)
    assert found.tail == pytest.approx(1024 / (spec.sms * -(-1024 // spec.sms)))
    assert "us" not in found.text
    wide = upper_limit(RELU, Variant(PointwiseTile(1 << 20, 4)), spec)
    assert wide is not None and wide.tail == pytest.approx(1 / spec.sms)


def test_rows_wait_for_shared_memory_where_several_warps_meet() -> None:
    """4 rows of 512 numbers, by 4 warps: 16 additions of a thread for one load of 29 cycles."""
    alone, several = (upper_limit(SUMS, Variant(RowsTile(4, 512, w)), gpu()) for w in (1, 4))
    assert alone is not None and several is not None
    assert alone.shared == 1.0 and 0.0 < several.shared < 16 / 29
    assert alone.memory == several.memory and alone.tail == several.tail


def test_neighbouring_windows_share_loads() -> None:
    one, two = (upper_limit(POOL, Variant(WindowTile(8, 64, u, 4)), gpu()) for u in (1, 2))
    assert one is not None and two is not None
    assert two.memory / one.memory == pytest.approx((9 + 1) / (9 * (1 + 1 / 3) / 2 + 1))


@pytest.mark.parametrize("graph", [RELU, SUMS, POOL])
def test_what_is_surely_slow_is_left_out(graph: Graph) -> None:
    every = variants(graph, gpu())
    kept = variants(graph, gpu(), "limit")
    known = {one: upper_limit(graph, one, gpu()) for one in every}
    limits = {one: limit.limit for one, limit in known.items() if limit is not None}
    assert set(kept) == {one for one in limits if limits[one] >= max(limits.values()) / 2} != set()


@pytest.mark.parametrize("tile", [PointwiseTile(512, 2), RowsTile(16, 64, 4)])
def test_others_have_none(tile: Tile) -> None:
    assert upper_limit(PRODUCT, Variant(tile), gpu()) is None
    relu = call("aten.relu.default", torch.empty(8))
    assert upper_limit(relu, Variant(tiles(PRODUCT, gpu())[0]), gpu()) is None

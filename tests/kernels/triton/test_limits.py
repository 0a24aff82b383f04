"""The upper limit of a kernel by its variant: the one that its tile was ranked by, in any mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import body, call, gpu

from anabranch.ir.refused import Refused
from anabranch.ir.tiles import ContractionTile, PointwiseTile, RowsTile, Tile
from anabranch.ir.variant import PdlMode, Variant
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


@pytest.mark.parametrize("tile", [PointwiseTile(512, 2), RowsTile(16, 64, 4)])
def test_others_have_none(tile: Tile) -> None:
    assert upper_limit(PRODUCT, Variant(tile), gpu()) is None
    relu = call("aten.relu.default", torch.empty(8))
    assert upper_limit(relu, Variant(tiles(PRODUCT, gpu())[0]), gpu()) is None

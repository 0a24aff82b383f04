"""The upper limit of a kernel by its name: the one that its tile was ranked by, in any mode."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.bodies import body, call, gpu

from anabranch.ir.refused import Refused
from anabranch.kernels.triton.contraction import found_in, variants
from anabranch.kernels.triton.contraction_tiles import ranked
from anabranch.kernels.triton.limits import upper_limit

PRODUCT, _ = body("aten.mm.default", (torch.empty(128, 768).half(), torch.empty(768, 96).half()))


def test_it_is_what_the_tile_was_ranked_by() -> None:
    found = found_in(PRODUCT)
    assert not isinstance(found, Refused)
    known = {tile.text: limit for tile, limit in ranked(found, gpu())}
    offered = variants(PRODUCT, gpu())
    assert len(offered) > 5
    for variant in offered:
        assert upper_limit(PRODUCT, variant, gpu()) == known[variant.removesuffix(".r")]


def test_how_it_is_launched_changes_nothing() -> None:
    plain = variants(PRODUCT, gpu())[0]
    assert upper_limit(PRODUCT, f"{plain}.pe.c50", gpu()) == upper_limit(PRODUCT, plain, gpu())


def test_all_four_terms_can_be_read() -> None:
    limit = upper_limit(PRODUCT, variants(PRODUCT, gpu())[0], gpu())
    assert limit is not None
    text = limit.text
    assert all(f"{term} " in text for term in ("memory", "shared", "tail", "fits"))
    assert f"about {limit.us:.1f} us" in text
    huge = upper_limit(PRODUCT, "contraction:128x128x128.k1.w1.s5", gpu())
    assert huge is not None
    assert "fits 0" in huge.text and "us" not in huge.text


@pytest.mark.parametrize("variant", ["", "0", "pointwise:512.w2", "64x64", "contraction:odd"])
def test_others_have_none(variant: str) -> None:
    assert upper_limit(PRODUCT, variant, gpu()) is None
    relu = call("aten.relu.default", torch.empty(8))
    assert upper_limit(relu, variants(PRODUCT, gpu())[0], gpu()) is None

"""Whether the ranking of tiles keeps what is known to be best on real layers."""

from __future__ import annotations

import pytest
from tests.kernels.triton.convolutions import H200, KNOWN, Known, body

from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.roles import Contraction, contraction_of
from anabranch.kernels.triton.tiles import SHAPES, Sizes, chosen, ranked, space


def contraction(known: Known) -> Contraction:
    found = contraction_of(lower(body(known)))
    assert isinstance(found, Contraction)
    return found


@pytest.mark.parametrize("known", KNOWN, ids=str)
def test_the_best_known_tile_survives(known: Known) -> None:
    """Of all tiles four fifths are never compiled, and the fastest is among the first nine."""
    found = contraction(known)
    survivors = chosen(found, H200)
    assert len(survivors) <= 0.2 * sum(1 for _ in space(Sizes.of(found), H200))
    first = [(t.m, t.n, t.k, t.split) for t in survivors[:SHAPES]]
    assert len(set(first)) == len(first)
    assert known.tile in first


def test_the_model_tells_times_to_a_fifth() -> None:
    """Of each known tile, with the warps and stages that it ranks best."""
    for known in KNOWN:
        tiles = ranked(contraction(known), H200)
        us = next(b.us for t, b in tiles if (t.m, t.n, t.k, t.split) == known.tile)
        assert us == pytest.approx(known.us, rel=0.2), known

"""Single layers: torch gives them the types that their texts say, and they have kernels."""

from __future__ import annotations

import pytest
from benchmarks.layer_chains import PAIRS
from benchmarks.layers import INDEPENDENT, LARGE, SAMPLE, attention
from tests.kernels.triton.bodies import gpu

from anabranch.fusion import partition
from anabranch.ir import ops
from anabranch.ir.components import components
from anabranch.ir.graph import types
from anabranch.ir.tiles import HorizontalTile
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program, variants
from anabranch.trace import Trace

LAYERS = {**SAMPLE, **LARGE, **INDEPENDENT, **PAIRS, "attention": attention(3, 5, 7, 16, mask="b1")}


@pytest.mark.parametrize("name", LAYERS)
def test_types_are_what_torch_infers(name: str) -> None:
    body = LAYERS[name]
    table = types(body)
    for node in body.nodes:
        found = ops.infer(node.op, node.args, node.kwargs, table)
        assert [t.shape for t in found] == [t.shape for t in node.types]
        assert [t.dtype for t in found] == [t.dtype for t in node.types]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_two_launches_or_one(name: str) -> None:
    """The benchmark compares both: two groups apart, and kernels of the whole."""
    apart = partition(PAIRS[name], Trace(), gpu(), pointwise=True)
    assert len(apart.tasks) == 2 and variants(PAIRS[name], gpu())


@pytest.mark.parametrize("name", INDEPENDENT)
def test_horizontal_kernels_of_branches_have_the_ctas_of_their_parts(name: str) -> None:
    body = INDEPENDENT[name]
    offers = [offer for offer in variants(body, gpu()) if offer.template == "horizontal"]
    parts = components(body)
    assert offers and len(parts) > 1
    for offer in offers:
        assert isinstance(offer.tile, HorizontalTile)
        each = map(Variant, offer.tile.parts)
        ctas = sum(program(part, one).ctas for part, one in zip(parts, each, strict=True))
        assert program(body, offer).ctas == ctas

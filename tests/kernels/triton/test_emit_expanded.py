"""Values that repeat along an axis are read at the axes that move only; tiles of an axis of one
point have positions that are numbers."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check

from anabranch.kernels.triton.codegen import variants

ROW = torch.randn(1, 7).expand(5, 7)
COLUMN = torch.randn(5, 1).expand(5, 7)
POINT = torch.randn(1).expand(3)
CALLS: dict[str, tuple[object, ...]] = {
    "aten.mul.Tensor": (POINT, torch.tensor(2.0)),
    "aten.sum.dim_IntList": (COLUMN, [1]),
    "aten._softmax.default": (ROW, 0, False),
    "aten.layer_norm.default": (ROW, [7], torch.randn(7)),
    "aten.linear.default": (torch.randn(1, 1).expand(1, 3), torch.randn(2, 3)),
    "aten.avg_pool2d.default": (torch.randn(1, 6, 2, 9), [3, 3], [2, 2], [1, 1], True, False),
    "aten.max_pool2d.default": (torch.randn(1, 3, 8, 1).expand(2, 3, 8, 8), [3, 3], [2, 2]),
}


FACTORS = {
    "row": (torch.randn(1, 6).expand(16, 6), torch.randn(9, 6)),
    "few rows": (torch.randn(1, 6).expand(3, 6), torch.randn(9, 6)),
    "depth": (torch.randn(16, 1).expand(16, 6), torch.randn(9, 1).expand(9, 6)),
    "all": (torch.randn(1, 1).expand(3, 6), torch.randn(1, 1).expand(9, 6)),
}
"""Of a matrix product, in tiles: what is repeated must fill the tile, and count no more often."""


@pytest.mark.parametrize("which", FACTORS)
def test_factors_of_a_matrix_product(which: str) -> None:
    graph, inputs = body("aten.linear.default", tuple(t.half() for t in FACTORS[which]))
    check(graph, variants(graph, gpu()), inputs)


@pytest.mark.parametrize("op", CALLS)
def test_calls(op: str) -> None:
    graph, inputs = body(op, CALLS[op])
    check(graph, variants(graph, gpu()), inputs)

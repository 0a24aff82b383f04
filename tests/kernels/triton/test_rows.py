"""Reductions over whole axes, held in one tile or walked in blocks, in any layout."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check

from anabranch.kernels.triton.write import variants

X = torch.randn(3, 5, 37)
IMAGE = torch.randn(2, 12, 5, 7)
CALLS: dict[str, tuple[object, ...]] = {
    "aten.sum.dim_IntList": (X, [0, 2]),
    "aten.sum.default": (torch.arange(40).reshape(5, 8),),
    "aten.mean.dim": (IMAGE, [-1, -2], True),
    "aten.amax.default": (X, [1]),
    "aten.amin.default": (torch.randint(-9, 9, (4, 33)), [1], True),
    "aten.softmax.int": (X, -1),
    "aten._softmax.default": (X, 1, False),
    "aten._log_softmax.default": (X, 2, False),
    "aten.var.correction": (X, [2]),
    "aten.layer_norm.default": (X, [5, 37], torch.randn(5, 37), torch.randn(5, 37)),
    "aten.rms_norm.default": (X, [37], torch.randn(37)),
    "aten.adaptive_avg_pool2d.default": (IMAGE, [1, 1]),
    "aten.linear.default": (torch.randn(2, 70), torch.randn(9, 70), torch.randn(9)),
    "aten.addmm.default": (torch.randn(9), torch.randn(1, 70), torch.randn(70, 9)),
}


@pytest.mark.parametrize("op", CALLS)
def test_calls(op: str) -> None:
    graph, tensors = body(op, CALLS[op])
    found = [variant for variant in variants(graph, gpu(132)) if variant.startswith("rows")]
    check(graph, [*found[:2], "rows:2x16.w4"], tensors)

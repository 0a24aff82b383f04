"""Pooling and depthwise convolutions with what stands around them, in NCHW and NHWC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph
from anabranch.kernels.triton.write import variants

X = torch.randn(2, 12, 9, 11)
WIDE = X.to(memory_format=torch.channels_last)


def windows(graph: Graph) -> list[str]:
    return [v for v in variants(graph, gpu(132)) if v.startswith("window")]


CALLS: dict[str, tuple[Any, ...]] = {
    "max_pool": ("aten.max_pool2d.default", [3, 3], [2, 2], [1, 1]),
    "max_pool_ceil": ("aten.max_pool2d.default", [3, 2], [2, 2], [0, 1], [1, 1], True),
    "max_pool_dilated": ("aten.max_pool2d.default", [2, 2], [1, 1], [0, 0], [2, 3]),
    "avg_pool": ("aten.avg_pool2d.default", [3, 3], [1, 1], [1, 1], False, True),
    "avg_pool_counts": ("aten.avg_pool2d.default", [3, 3], [2, 2], [1, 1], False, False),
    "avg_pool_ceil": ("aten.avg_pool2d.default", [2, 3], [2, 2], [1, 1], True, True),
    "avg_pool_ceil_counts": ("aten.avg_pool2d.default", [2, 3], [2, 2], [1, 1], True, False),
    "avg_pool_divisor": ("aten.avg_pool2d.default", [2, 2], [2, 2], [0, 0], False, True, 3),
    "adaptive": ("aten.adaptive_avg_pool2d.default", [3, 1]),
}


@pytest.mark.parametrize("x", [X, WIDE], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CALLS)
def test_pools(name: str, x: torch.Tensor) -> None:
    op, *given = CALLS[name]
    graph, tensors = body(op, (x, *given))
    check(graph, windows(graph)[:3], tensors)

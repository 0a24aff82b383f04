"""Pooling and depthwise convolutions with what stands around them, in NCHW and NHWC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import variants

X = torch.randn(2, 12, 9, 11)
WIDE = X.to(memory_format=torch.channels_last)


def windows(graph: Graph) -> list[Variant]:
    return [v for v in variants(graph, gpu(132)) if v.template == "window"]


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
    "adaptive_uneven": ("aten.adaptive_avg_pool2d.default", [4, 3]),
    "adaptive_max": ("aten.adaptive_max_pool2d.default", [5, 2]),
    "adaptive_to_more": ("aten.adaptive_avg_pool2d.default", [11, 13]),
}


@pytest.mark.parametrize("x", [X, WIDE], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CALLS)
def test_pools(name: str, x: torch.Tensor) -> None:
    op, *given = CALLS[name]
    graph, tensors = body(op, (x, *given))
    check(graph, windows(graph)[:3], tensors)


def test_windows_along_the_only_axis() -> None:
    """A convolution of one channel along channels, as efficient channel attention has it."""
    graph = parse_graph("""
    graph along {
      input %x: f16[1,1,301]
      input %w: f16[1,1,5]
      %c: f16[1,1,301] = aten.convolution.default(%x, %w, None, [1], [2], [1], False, [0], 1)
      %s: f16[1,1,301] = aten.sigmoid.default(%c)
      return %s
    }""")
    check(graph, variants(graph, gpu(132))[:3])
    pooled = parse_graph("""
    graph pooled {
      input %x: f32[1,1,64]
      %m: f32[1,1,32] = aten.avg_pool1d.default(%x, [3], [2], [1])
      return %m
    }""")
    check(pooled, variants(pooled, gpu(132))[:3])


def test_a_window_that_only_some_of_the_results_have() -> None:
    """Two channels: of the first nothing is summed, which neighbours see at their own places."""
    graph = parse_graph("""
    graph some {
      input %x: f32[1,4,16,16]
      input %y: f32[1,1,16,16]
      input %w: f32[1,4,1,1]
      input %b: f32[1]
      %c: f32[1,1,16,16] = aten.convolution.default(%x, %w, %b, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %cat: f32[1,2,16,16] = aten.cat.default([%y, %c], 1)
      %r: f32[1,2,16,16] = aten.relu.default(%cat)
      return %r
    }""")  # noqa: E501
    check(graph, ["window:8x16u2.w4", "window:8x16u1.w4", "window:8x2u4.w1"])

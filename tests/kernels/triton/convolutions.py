"""Sixteen convolutions of networks at batch 1, and the tile that was fastest on a GPU.

Provenance: one NVIDIA H200 (132 SMs), fp16, NHWC, bias and relu fused, microseconds a call in a
CUDA graph, the best of a small search by hand over tiles of an implicit matrix product with split
depth; torch 2.11, Triton 3.6, November 2026. Tests of the ranking read it; the search does not.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.bench.layers import convolution
from anabranch.ir.graph import Graph
from anabranch.ir.target import TargetSpec


class Known(NamedTuple):
    """`channels` of `size` squared, a window of `taps` squared, to `out` channels; how long the
    best kernel took and its rows, columns, depth of a step and split."""

    channels: int
    size: int
    out: int
    taps: int
    us: float
    tile: tuple[int, int, int, int]


KNOWN: tuple[Known, ...] = (
    Known(64, 56, 64, 1, 2.39, (64, 32, 64, 1)),
    Known(64, 56, 64, 3, 4.40, (64, 32, 64, 1)),
    Known(64, 56, 256, 1, 3.22, (64, 64, 64, 1)),
    Known(256, 56, 64, 1, 3.17, (64, 32, 128, 1)),
    Known(128, 28, 128, 3, 5.57, (16, 64, 128, 1)),
    Known(512, 28, 128, 1, 3.55, (32, 32, 128, 1)),
    Known(128, 28, 512, 1, 2.87, (64, 64, 64, 1)),
    Known(256, 14, 256, 3, 6.22, (32, 32, 64, 4)),
    Known(1024, 14, 256, 1, 4.24, (16, 32, 128, 1)),
    Known(256, 14, 1024, 1, 3.17, (64, 32, 128, 1)),
    Known(512, 7, 512, 3, 6.55, (32, 32, 64, 8)),
    Known(2048, 7, 512, 1, 4.79, (32, 32, 128, 4)),
    Known(512, 7, 2048, 1, 3.66, (16, 64, 128, 1)),
    Known(768, 17, 192, 1, 3.70, (16, 32, 128, 1)),
    Known(1280, 8, 384, 1, 4.28, (16, 32, 64, 4)),
    Known(448, 8, 384, 3, 6.35, (32, 32, 64, 8)),
)

H200 = TargetSpec(
    "cuda",
    "NVIDIA H200",
    sms=132,
    capability=(9, 0),
    peak_flops=(("f16", 1.0705e15), ("bf16", 1.0705e15), ("tf32", 5.353e14), ("f32", 6.69e13)),
    bandwidth=4.814e12,
    l2_bytes=62914560,
    simulated=True,
)


def body(known: Known) -> Graph:
    """The convolution with its bias and a relu, NHWC, as a graph."""
    return convolution(known.channels, known.size, known.out, known.taps)

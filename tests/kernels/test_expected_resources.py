"""What generated kernels take, before they are compiled: as a GPU said of those that it ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.task import Kernel, Resources
from anabranch.ir.types import TensorType
from anabranch.ir.variant import parse_variant
from anabranch.kernels.expected_resources import expected_resources
from anabranch.targets.sim.target import open_sim

SPEC = open_sim("h200", False).spec


def _convolution(channels: int, side: int) -> Graph:
    """3x3 with as many channels out as in, channels last, and a ReLU."""
    shape = 1, channels, side, side
    strides = channels * side * side, 1, channels * side, channels
    x = TensorType(shape, torch.float16, strides)
    w = Constant("w", TensorType((channels, channels, 3, 3), torch.float16), "-")
    args = (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    conv = Node("c", "aten.convolution.default", args, (), (x,))
    relu = Node("r", "aten.relu.default", (Ref("c"),), (), (x,))
    return Graph("g", (Input("x", x),), (w,), (conv, relu), (Ref("r"),))


def _adds(parts: int) -> Graph:
    """So many independent additions of 5,000 numbers."""
    x = TensorType((5000,), torch.float16)
    inputs = tuple(Input(f"x{i}", x) for i in range(parts))
    nodes = tuple(
        Node(f"a{i}", "aten.add.Tensor", (Ref(f"x{i}"), Ref(f"x{i}")), (), (x,))
        for i in range(parts)
    )
    return Graph("g", inputs, (), nodes, tuple(Ref(node.name) for node in nodes))


def _kernel(body: Graph, variant: str) -> Kernel:
    return Kernel("triton", variant.partition(":")[0], body, parse_variant(variant))


@pytest.mark.parametrize(
    ("tile", "ctas", "threads"),
    [
        ("64x16x64.k1.w8.s4", 49 * 2, 256),  # 3,136 pixels, 18 channels
        ("16x32x64.k1.w4.s2", 196, 128),
        ("64x32x64.k3.w4.s3", 49 * 3, 128),
    ],
)
def test_ctas_of_a_convolution_are_those_of_its_tiles(tile: str, ctas: int, threads: int) -> None:
    found = expected_resources(_kernel(_convolution(18, 56), f"contraction:{tile}"), SPEC)
    assert found is not None
    assert (found.ctas, found.threads) == (ctas, threads)
    assert 16 <= found.registers <= 255 and 0 < found.shared <= SPEC.shared_per_sm


@pytest.mark.parametrize(
    ("tile", "shared"),
    [
        ("16x16x64.k1.w2.s4", 12288),
        ("32x64x32.k1.w4.s2", 6144),
        ("64x16x128.k1.w8.s2", 20480),
        ("64x16x64.k1.w4.s4", 40960),  # a group of warps: all stages in shared memory
        ("64x64x32.k1.w4.s5", 40960),
    ],
)
def test_shared_memory_of_a_product_is_what_an_h200_said(tile: str, shared: int) -> None:
    found = expected_resources(_kernel(_convolution(64, 56), f"contraction:{tile}"), SPEC)
    assert found is not None and found.shared == shared


def test_parts_of_a_launch_bring_their_ctas() -> None:
    alone = expected_resources(_kernel(_adds(1), "pointwise:256.w1"), SPEC)
    assert alone == Resources(20, 32, 32, 0, estimated=True)  # 256 of 5,000 each
    joint = _kernel(_adds(3), "horizontal:pointwise:256.w1+pointwise:512.w1+pointwise:256.w1")
    assert expected_resources(joint, SPEC) == Resources(20 + 10 + 20, 32, 32, 0, estimated=True)


def test_of_a_librarys_kernel_nothing_is_expected() -> None:
    body = _adds(1)
    assert expected_resources(Kernel("aten", "aten", body), SPEC) is None
    assert expected_resources(Kernel("triton", "pointwise", body, "no tile"), SPEC) is None
    odd = replace(_kernel(body, "pointwise:256.w1"), variant=parse_variant("rows:1x128.w1"))
    assert expected_resources(odd, SPEC) is None  # no such kernel can be written

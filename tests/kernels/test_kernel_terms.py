"""Terms of kernels: one launch for each call, more of what larger work takes more of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.costs.kernel_model import predicted_us
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.task import Kernel, Task
from anabranch.ir.types import TensorType
from anabranch.ir.variant import parse_variant
from anabranch.kernels.kernel_terms import terms_of
from anabranch.targets.sim.target import open_sim

SIM = open_sim("h200", False)


def _linear(rows: int, depth: int, columns: int) -> Task:
    x, y = TensorType((rows, depth), torch.float16), TensorType((rows, columns), torch.float16)
    w = Constant("w", TensorType((columns, depth), torch.float16), "-")
    product = Node("p", "aten.linear.default", (Ref("x"), Ref("w"), None), (), (y,))
    relu = Node("r", "aten.relu.default", (Ref("p"),), (), (y,))
    body = Graph("g", (Input("x", x),), (w,), (product, relu), (Ref("r"),))
    return Task("g", body)


def _group_norm(shape: tuple[int, ...], groups: int) -> Task:
    _, channels, rows, columns = shape
    strides = channels * rows * columns, 1, columns * channels, channels
    image = TensorType(shape, torch.float16, strides)
    args = (Ref("x"), groups, None, None, 1e-5, True)
    norm = Node("n", "aten.group_norm.default", args, (), (image,))
    return Task("g", Graph("g", (Input("x", image),), (), (norm,), (Ref("n"),)))


def _with(task: Task, provider: str, name: str, variant: Any = "") -> Task:
    return replace(task, kernel=Kernel(provider, name, task.body, variant))


def _us(task: Task) -> float:
    assert SIM.estimates is not None
    us = predicted_us(SIM.estimates.model.factors, terms_of(task, SIM.spec))
    assert us is not None
    return us


def test_persistent_ctas_take_less_of_a_large_product() -> None:
    """On an H200 a product of these sizes takes 44.6 us with a CTA for each tile, and 38.9."""
    task = _linear(4284, 768, 3072)
    plain = parse_variant("contraction:128x256x64.k1.w8.s3")
    walked = parse_variant(f"contraction:128x256x64.k1.w8.s3.g{SIM.spec.sms}")
    each, few = (_us(_with(task, "triton", "contraction", one)) for one in (plain, walked))
    assert each == pytest.approx(44.6, rel=0.1) and few == pytest.approx(38.9, rel=0.1)


def test_aten_launches_each_operator() -> None:
    found = terms_of(_with(_linear(128, 512, 512), "aten", "aten"), SIM.spec)
    assert [launch.family for launch in found] == ["aten product", "aten pointwise"]
    assert terms_of(_linear(128, 512, 512), SIM.spec) == ()  # no kernel, no launch


@pytest.mark.parametrize("tile", ["64x32x64.k1.w4.s3", "64x32x64.k4.w4.s3"])
def test_a_deeper_product_takes_longer_and_splitting_pays_for_its_meeting(tile: str) -> None:
    variant = parse_variant(f"contraction:{tile}")
    short, deep = (
        _with(_linear(128, depth, 512), "triton", "contraction", variant) for depth in (512, 4096)
    )
    assert 1.0 < _us(short) < _us(deep) < 20.0
    terms = dict(terms_of(deep, SIM.spec)[0].terms)
    assert ("split" in terms) == (".k4" in tile)


CLOCKS = 0.7
"""A U-Net's time on the H200 that the profile is of, over that on the one of these times."""


@pytest.mark.parametrize(
    ("channels", "side", "tile", "us"),
    [
        (320, 64, "1x4096.w8", 39.1),
        (960, 64, "1x4096.w8", 60.7),
        (320, 64, "1x1024.w4", 52.4),
        (960, 64, "1x1024.w4", 92.9),
        (640, 64, "1x4096.w8", 48.0),
        (320, 32, "1x4096.w8", 11.8),
        (640, 32, "1x4096.w8", 13.8),
        (1280, 16, "1x4096.w8", 6.1),
    ],
)
def test_a_norm_walks_its_groups_block_by_block(
    channels: int, side: int, tile: str, us: float
) -> None:
    """As group norms of two images took, in NHWC; and what one CTA holds is not walked."""
    task = _group_norm((2, channels, side, side), 32)
    foreseen = _us(_with(task, "triton", "rows", parse_variant(f"rows:{tile}")))
    assert foreseen == pytest.approx(CLOCKS * us, rel=0.1)
    assert _us(_with(_group_norm((2, 320, 64, 64), 32), "aten", "aten")) > 15
    (held,) = terms_of(
        _with(_group_norm((2, 32, 64, 64), 32), "triton", "rows", parse_variant("rows:1x4096.w8")),
        SIM.spec,
    )
    assert not held.walked


def test_a_kernel_of_an_unknown_maker_has_no_terms() -> None:
    assert terms_of(_with(_linear(8, 64, 64), "triton", "contraction", "no tile"), SIM.spec) == ()

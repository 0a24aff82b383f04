"""Contractions in Triton's interpreter: every convolution and matrix product, with what stands
around it, in the layouts and precisions that networks have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body
from tests.kernels.triton.interpreter import check

from anabranch.ir.refused import Refused
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.triton.contraction_axes import contraction_of

LAST = torch.channels_last
SMALL = settings(max_examples=10, deadline=None)


def conv(
    x: torch.Tensor, w: torch.Tensor, b: Any = None, stride: Any = (1, 1), padding: Any = (0, 0),
    dilation: Any = (1, 1), groups: int = 1,
) -> tuple[Any, ...]:  # fmt: skip
    args = (x, w, b, [*stride], [*padding], [*dilation], False, [0, 0], groups)
    return body("aten.convolution.default", args)


CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 64, 7, 7), (48, 64, 1, 1), {}),
    "3x3": ((2, 32, 6, 5), (40, 32, 3, 3), {"padding": (1, 1)}),
    "first": ((1, 3, 11, 13), (24, 3, 7, 7), {"stride": (2, 2), "padding": (3, 3)}),
    "wide": ((1, 20, 7, 9), (17, 20, 1, 3), {"padding": (0, 1)}),
    "dilated": ((1, 16, 9, 9), (8, 16, 3, 3), {"padding": (2, 2), "dilation": (2, 2)}),
    "grouped": ((1, 32, 5, 5), (64, 8, 3, 3), {"padding": (1, 1), "groups": 4}),
    "prime": ((1, 13, 3, 5), (7, 13, 1, 1), {}),
}


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("name", CASES)
def test_convolutions(name: str, layout: str) -> None:
    x_shape, w_shape, rest = CASES[name]
    x, w = torch.randn(x_shape).half(), torch.randn(w_shape).half()
    if layout == "NHWC":
        x, w = x.to(memory_format=LAST), w.to(memory_format=LAST)
    graph, tensors = conv(x, w, torch.randn(w_shape[0]).half(), **rest)
    tiles = ["16x16x16.k1.w4.s1", "32x16x32.k3.w4.s2"]
    check(graph, [f"contraction:{tile}" for tile in tiles], tensors)


@pytest.mark.parametrize("tile", ["128x256x64.k1.w8.s3", "256x64x32.k2.w8.s2"])
def test_the_widest_tiles_of_large_products(tile: str) -> None:
    args = (torch.randn(300, 96).half(), torch.randn(264, 96).half(), torch.randn(264).half())
    check(body("aten.linear.default", args)[0], [f"contraction:{tile}"])


@SMALL
@given(
    batch=st.integers(1, 2),
    c=st.integers(1, 40),
    k=st.integers(1, 40),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.integers(1, 2),
    last=st.booleans(),
    slice=st.sampled_from([None, (8, 16), (3, 5)]),
    split=st.integers(1, 4),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_convolutions_of_any_shape(
    batch: int, c: int, k: int, size: tuple[int, int], window: tuple[int, int], stride: int,
    last: bool, slice: tuple[int, int] | None, split: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    """Also of a slice of more channels: so many before it, and so many behind it."""
    x, w = torch.randn(batch, c, *size, dtype=dtype), torch.randn(k, c, *window, dtype=dtype)
    if last:
        x, w = x.to(memory_format=LAST), w.to(memory_format=LAST)
    if slice is not None:
        before, behind = (torch.full_like(x[:, :1], torch.nan) for _ in slice)
        whole = torch.cat([*[before] * slice[0], x, *[behind] * slice[1]], 1)
        x = whole[:, slice[0] : slice[0] + c]
    padding = (window[0] - 1, window[1] - 1)
    graph, tensors = conv(x, w, None, (stride, stride), padding)
    found = contraction_of(lower(graph))
    if isinstance(found, Refused):
        return
    m = 1 if found.m == 1 else 16
    check(graph, [f"contraction:{m}x16x16.k{split}.w4.s1"], tensors)


@pytest.mark.parametrize("name", ["mm", "linear", "addmm", "bmm", "baddbmm", "one row"])
def test_matrix_products(name: str) -> None:
    draw = torch.randn
    calls: dict[str, tuple[Any, ...]] = {
        "mm": ("aten.mm.default", draw(19, 33), draw(33, 21)),
        "linear": ("aten.linear.default", draw(2, 9, 33), draw(21, 33), draw(21)),
        "addmm": ("aten.addmm.default", draw(21), draw(19, 33), draw(33, 21)),
        "bmm": ("aten.bmm.default", draw(3, 19, 33), draw(3, 33, 21)),
        "baddbmm": (
            *("aten.baddbmm.default", draw(1, 1, 21), draw(3, 19, 33), draw(3, 33, 21)),
            {"beta": 0.5, "alpha": 3},
        ),
        "one row": ("aten.linear.default", draw(1, 70), draw(21, 70), draw(21)),
    }
    op, *given_ = calls[name]
    graph, tensors = body(op, tuple(x.half() if isinstance(x, torch.Tensor) else x for x in given_))
    m = 1 if name == "one row" else 16
    check(graph, [f"contraction:{m}x16x16.k{split}.w4.s2" for split in (1, 2)], tensors)


def test_a_value_that_is_not_finite_stays_where_it_is() -> None:
    """Masked places of one factor meet infinities of the other: 0 * inf must not be added."""
    x = torch.randn(1, 6, 5, 5).half().to(memory_format=LAST)
    x[0, :, 2, 2] = float("inf")
    w = torch.rand(16, 3, 3, 3).half().to(memory_format=LAST) + 0.1
    graph, tensors = conv(x, w, padding=(1, 1), groups=2)
    check(graph, ["contraction:16x16x16.k1.w4.s1"], tensors)


def test_what_is_no_contraction_is_refused_with_a_reason() -> None:
    graph, _ = body("aten.softmax.int", (torch.randn(4, 8), 1))
    assert "reduc" in str(contraction_of(lower(graph)))
    graph, _ = body("aten.mm.default", (torch.randn(4, 8).double(), torch.randn(8, 3).double()))
    assert "float64" in str(contraction_of(lower(graph)))

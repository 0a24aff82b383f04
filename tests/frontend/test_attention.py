"""What torch's pairs of attention operators become in a training step: the right gradients, in the
shapes that each pair passes from its forward to its backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anabranch.frontend.attention import PAIRS

aten = torch.ops.aten
HEADS, SHARED, ROWS, WIDTH = 4, 2, 5, 8


def of_flash(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> tuple[Tensor, Any]:
    table = PAIRS
    found = table[aten._scaled_dot_product_flash_attention.default](q, k, v, 0.0, causal)
    out, lse, *sizes, seed, offset, _ = found
    back = table[aten._scaled_dot_product_flash_attention_backward.default]
    return out, back(grad, q, k, v, out, lse, *sizes, 0.0, causal, seed, offset)


def of_cudnn(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, causal: bool) -> tuple[Tensor, Any]:
    table = PAIRS
    forward = table[aten._scaled_dot_product_cudnn_attention.default]
    out, lse, *sizes, seed, offset, _ = forward(q, k, v, None, True, 0.0, causal)
    assert lse.shape == (*q.shape[:3], 1)
    back = table[aten._scaled_dot_product_cudnn_attention_backward.default]
    return out, back(grad, q, k, v, out, lse, seed, offset, None, *sizes, 0.0, causal)


@pytest.mark.parametrize("kind", [of_flash, of_cudnn])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared", [1, SHARED])
def test_pairs_have_the_gradients_of_products(kind: Any, causal: bool, shared: int) -> None:
    q = torch.randn(2, HEADS, ROWS, WIDTH, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, HEADS // shared, ROWS, WIDTH).double() for _ in range(2))
    k.requires_grad_()
    v.requires_grad_()
    grad = torch.randn(2, HEADS, ROWS, WIDTH, dtype=torch.float64)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=shared > 1)
    gradients = torch.autograd.grad(want, (q, k, v), grad)
    with torch.no_grad():
        out, found = kind(q, k, v, grad, causal)
    torch.testing.assert_close(out, want)
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_gets_its_gradient(causal: bool) -> None:
    shape = (2, HEADS, ROWS, WIDTH)
    q, k, v, grad = (torch.randn(shape, dtype=torch.float64) for _ in range(4))
    bias = torch.randn(2, HEADS, ROWS, ROWS, dtype=torch.float64, requires_grad=True)
    masked = bias
    if causal:
        masked = bias.masked_fill(~torch.ones(ROWS, ROWS).bool().tril(), -torch.inf)
    want = F.scaled_dot_product_attention(q, k, v, masked)
    (gradient,) = torch.autograd.grad(want, bias, grad)
    with torch.no_grad():
        forward = PAIRS[aten._scaled_dot_product_efficient_attention.default]
        out, lse, seed, offset = forward(q, k, v, bias, True, 0.0, causal)
        back = PAIRS[aten._scaled_dot_product_efficient_attention_backward.default]
        given = (grad, q, k, v, bias, out, lse, seed, offset, 0.0, [True] * 4, causal)
        *_, found = back(*given)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(found, gradient)


def test_dropout_is_left_to_others() -> None:
    q = torch.randn(1, 1, 2, 8)
    for op in PAIRS:
        if not str(op).endswith("backward.default"):
            given = (q, q, q) + (
                (None, True) if "efficient" in str(op) or "cudnn" in str(op) else ()
            )
            assert PAIRS[op](*given, 0.1) is NotImplemented

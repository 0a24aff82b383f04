"""Operators of ours: what they compute, and the types that they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from anabranch.ir import custom_ops, ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, Input, Ref
from anabranch.ir.types import type_of

grad_of = torch.ops.anabranch.conv_weight_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("groups, stride, last", [(1, 1, False), (2, 2, True), (4, 2, False)])
def test_the_gradient_of_a_weight_is_that_of_convolution_backward(
    dtype: torch.dtype, groups: int, stride: int, last: bool
) -> None:
    x, w = torch.randn(2, 4, 7, 6, dtype=dtype), torch.randn(8, 4 // groups, 3, 3, dtype=dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    window = ([stride] * 2, [1, 1], [1, 1])
    y = torch.ops.aten.convolution(x, w, None, *window, False, [0, 0], groups)
    grad = torch.randn_like(y)
    mask = [False, True, False]
    given = (None, *window, False, [0, 0], groups, mask)
    want = torch.ops.aten.convolution_backward(grad, x, w, *given)[1]
    got = grad_of(grad, x, list(w.shape), *window, groups)
    torch.testing.assert_close(got, want)
    (said,) = ops.infer(
        "anabranch.conv_weight_grad.default",
        (Ref("g"), Ref("x"), tuple(w.shape), *map(tuple, window), groups),
        (),
        {"g": type_of(grad), "x": type_of(x)},
    )
    assert said == type_of(got) and ops.channels_last(said) == last


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_wide_product_is_not_rounded(dtype: torch.dtype) -> None:
    a, b = torch.randn(5, 40).to(dtype), torch.randn(7, 40).to(dtype).t()
    found = torch.ops.anabranch.wide_mm(a, b)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(found.double(), a.double() @ b.double(), atol=1e-5, rtol=1e-5)
    known = {"a": type_of(a), "b": type_of(b)}
    (said,) = ops.infer(custom_ops.WIDE_MM, (Ref("a"), Ref("b")), (), known)
    assert said == type_of(found)


def test_what_no_product_is_of_is_refused() -> None:
    a = torch.zeros(5, 4, dtype=torch.bfloat16)
    for b in (a, a.t().float(), a[0]):
        with pytest.raises(RuntimeError, match="no product"):
            torch.ops.anabranch.wide_mm(a, b)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_sizes_that_no_convolution_has_are_refused(device: str) -> None:
    x, grad = torch.zeros(2, 4, 7, 6, device=device), torch.zeros(2, 8, 7, 6, device=device)
    grad_of(grad, x, [8, 4, 3, 3], [1, 1], [1, 1], [1, 1], 1)
    for size, padding, groups in (([8, 4, 3, 3], [0, 0], 1), ([8, 4, 3, 3], [1, 1], 2)):
        with pytest.raises(RuntimeError, match="no convolution"):
            grad_of(grad, x, size, [1, 1], padding, [1, 1], groups)
    with pytest.raises(RuntimeError, match="no gradient"):
        grad_of(grad.half(), x, [8, 4, 3, 3], [1, 1], [1, 1], [1, 1], 1)


def test_counted_numbers_are_those_of_philox() -> None:
    """The known answer of Philox 4x32-10 for a counter and a key of zeros is 0x6627e8d5."""
    zeros = torch.zeros(2, dtype=torch.int64)
    found = torch.ops.anabranch.uniform(zeros, 0, [1])
    assert found.item() == torch.tensor(0x6627E8D5).float() * 4.6566127342e-10
    random = type_of(zeros)
    node = ops.make_node("u", custom_ops.UNIFORM, (Ref("r"), 0, (1,)), {"r": random})
    graph = Graph("g", (Input("r", random),), (), (node,), (Ref("u"),))
    (wide,) = eval_graph(graph, [zeros], precision=torch.float64)
    assert wide.dtype == torch.float64 and wide.item() == found.item()


def test_what_is_no_counter_is_refused() -> None:
    random = torch.zeros(2, dtype=torch.int64, device="meta")
    for wrong in (random.int(), random[:1], random[0]):
        with pytest.raises(RuntimeError, match="i64"):
            torch.ops.anabranch.uniform(wrong, 0, [1])


def by_autograd(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, grad: Tensor
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Attention in fp64, as products that autograd knows."""
    q, k, v = (one.double().requires_grad_() for one in (q, k, v))
    far = None if mask is None else mask.double()
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, far, is_causal=causal, scale=scale
    )
    return out.detach(), torch.autograd.grad(out, (q, k, v), grad.double())


SHAPES = {"plain": (5, 5, 8), "causal": (5, 5, 8), "masked": (4, 7, 8), "other heads": (4, 7, 6)}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_attention_and_its_backward_are_those_of_fp64(name: str, dtype: torch.dtype) -> None:
    rows, keys, wide = SHAPES[name]
    q = torch.randn(2, rows, 3, 8).to(dtype).transpose(1, 2)
    k, v = torch.randn(2, 3, keys, 8).to(dtype), torch.randn(2, 3, keys, wide).to(dtype)
    mask = torch.randn(1, 1, rows, keys).to(dtype) if name == "masked" else None
    if mask is not None:
        mask[..., 2] = -torch.inf
    told = (mask, name == "causal", 0.3)
    grad = torch.randn(2, 3, rows, wide).to(dtype)
    out, lse = torch.ops.anabranch.scaled_dot_product_forward(q, k, v, *told)
    found = torch.ops.anabranch.scaled_dot_product_backward(
        grad, q, k, v, mask, out, lse, *told[1:]
    )
    want, gradients = by_autograd(q, k, v, *told, grad)
    near = 0.03 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(out.double(), want, atol=near, rtol=near)
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one.double(), other, atol=near, rtol=near)
    known = {n: type_of(x) for n, x in zip("qkv", (q, k, v), strict=True)}
    given = (Ref("q"), Ref("k"), Ref("v"), None)
    if mask is None:
        forward = "anabranch.scaled_dot_product_forward.default"
        said = ops.infer(forward, (*given, *told[1:]), (), known)
        assert said == (type_of(out), type_of(lse))
        known |= {"o": type_of(out), "l": type_of(lse), "g": type_of(grad)}
        backward = "anabranch.scaled_dot_product_backward.default"
        said = ops.infer(backward, (Ref("g"), *given, Ref("o"), Ref("l"), *told[1:]), (), known)
        assert said == tuple(map(type_of, found))


@pytest.mark.parametrize("kind", ["none", "truths", "numbers", "causal"])
def test_attention_by_cudnn_is_torchs_where_there_is_no_cudnn(kind: str) -> None:
    q = torch.randn(2, 5, 3, 8).transpose(1, 2)
    k, v = torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    truths = torch.rand(2, 1, 1, 7) > 0.4
    truths[1] = False
    numbers = torch.zeros(2, 1, 1, 7).masked_fill(~truths, -torch.inf)
    mask = {"truths": truths, "numbers": numbers}.get(kind)
    told = (mask, kind == "causal", 0.3)
    found = torch.ops.anabranch.scaled_dot_product_cudnn(q, k, v, *told)
    want = F.scaled_dot_product_attention(q, k, v, mask, 0.0, told[1], scale=0.3)
    torch.testing.assert_close(found, want)
    known = {n: type_of(x) for n, x in zip("qkv", (q, k, v), strict=True)}
    known |= {} if mask is None else {"m": type_of(mask)}
    given = (Ref("q"), Ref("k"), Ref("v"), None if mask is None else Ref("m"), *told[1:])
    said = ops.infer("anabranch.scaled_dot_product_cudnn.default", given, (), known)
    assert said == (type_of(found),)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_sizes_that_no_attention_has_are_refused(device: str) -> None:
    q, k = torch.zeros(2, 3, 4, 8, device=device), torch.zeros(2, 3, 5, 8, device=device)
    attention = torch.ops.anabranch.scaled_dot_product_forward
    out, lse = attention(q, k, k, None, False, 1.0)
    with pytest.raises(RuntimeError, match="no attention"):
        attention(q, k[:, :, :, :4], k, None, False, 1.0)
    with pytest.raises(RuntimeError, match="one dtype"):
        attention(q, k.half(), k, None, False, 1.0)
    with pytest.raises(RuntimeError, match="a mask"):
        attention(q, k, k, q, False, 1.0)
    back = torch.ops.anabranch.scaled_dot_product_backward
    with pytest.raises(RuntimeError, match="gives"):
        back(out, q, k, k, None, out, lse[..., :2], False, 1.0)

"""Operators of ours: what they compute, and the types that they say."""

from __future__ import annotations

import pytest
import torch

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

"""Writers put into given memory exactly what the operator returns, in any of its own layouts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from anabranch.ir import ops
from anabranch.ir.graph import Node, Ref
from anabranch.ir.inputs import random_tensor
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType, type_of
from anabranch.kernels.writers import can_write, native_out, writer, writes_there

X = TensorType((2, 3, 8, 8), torch.float32)
CALLS: dict[str, tuple[object, ...]] = {
    "aten.relu.default": (X,),
    "aten.add.Tensor": (X, X),
    "aten.rsub.Scalar": (X, 1),
    "aten.mul.Tensor": (X, X),
    "aten.clone.default": (X,),
    "aten.cat.default": ((X, X), 1),
    "aten.stack.default": ((X, X), 1),
    "aten.constant_pad_nd.default": (X, (1, 2, -1, 3), 0.5),
    "aten.max_pool2d.default": (X, (3, 3), (2, 2), (1, 1), (1, 1), True),
    "aten.avg_pool2d.default": (X, (3, 3), (1, 1), (1, 1), False, False),
    "aten.adaptive_avg_pool2d.default": (X, (1, 1)),
    "aten.slice_scatter.default": (X, X, 2, 0, 9999),
    "aten.select_scatter.default": (X, TensorType(X.shape[:-1], X.dtype), -1, -2),
    "aten.copy.default": (X, TensorType(X.shape[-1:], X.dtype)),
    "aten.mean.dim": (X, (-1, -2), True),
    "aten._softmax.default": (X, -1, False),
    "aten.linear.default": (
        TensorType((2, 5, 8), torch.float32),
        TensorType((4, 8), torch.float32),
        TensorType((4,), torch.float32),
    ),
    "aten.embedding.default": (
        TensorType((4, 6), torch.float32),
        TensorType((2, 3), torch.int64),
    ),
    "aten.embedding_dense_backward.default": (
        TensorType((2, 3, 6), torch.float32),
        TensorType((2, 3), torch.int64),
        4,
        1,
        False,
    ),
    "aten.mm.default": (TensorType((4, 8), torch.float32), TensorType((8, 3), torch.float32)),
}


def made(arg: object, seed: int = 0) -> object:
    if isinstance(arg, TensorType):
        return random_tensor(arg, seed)
    if isinstance(arg, tuple) and arg and isinstance(arg[0], TensorType):
        return [made(item, seed + i) for i, item in enumerate(arg)]
    return list(arg) if isinstance(arg, tuple) else arg


@pytest.mark.parametrize("op", CALLS)
def test_writes_what_the_operator_returns(op: str) -> None:
    args = [made(arg, 10 * i) for i, arg in enumerate(CALLS[op])]
    want = ops.resolve(op)(*args)
    out = torch.full_like(want, float("nan"))
    write = writer(op)
    assert write is not None
    write([out], *args)
    torch.testing.assert_close(out, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("aten.adaptive_max_pool2d.default", ([3, 3],)),
        ("aten.max.dim", (1,)),
        ("aten.max_pool2d_with_indices.default", ([2, 2],)),
    ],
)
def test_results_that_nobody_reads_have_their_own_dtype(op: str, args: tuple[object, ...]) -> None:
    x = torch.randn(2, 3, 8, 8)
    found, indices = ops.resolve(op)(x, *args)
    write = writer(op)
    assert write is not None
    for want, results in ((found, [None, torch.int64]), (indices, [torch.float32, None])):
        out = torch.zeros_like(want)
        write([out if result is None else result for result in results], x, *args)
        assert torch.equal(out, want)


def test_max_pool_in_channels_last() -> None:
    x = torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last)
    want = torch.nn.functional.max_pool2d(x, 3, 2)
    out = torch.full_like(want, float("nan"))
    write = writer("aten.max_pool2d.default")
    assert write is not None
    write([out], x, [3, 3], [2, 2])
    assert torch.equal(out, want) and out.stride() == want.stride()


def test_convolutions_and_attention_allocate() -> None:
    assert writer("aten.convolution.default") is None
    assert writer("aten.scaled_dot_product_attention.default") is None


@pytest.mark.parametrize("name", ["_fft_r2c", "_fft_c2c", "_fft_c2r", "narrow_copy"])
def test_what_a_gpu_cannot_write_allocates(name: str) -> None:
    """On a GPU `out=` of transforms makes NaN of infinities, and `narrow_copy` has none."""
    assert writer(f"aten.{name}.default") is None


def test_losses_allocate() -> None:
    """Some make what they are given larger, and write beyond it."""
    text = """graph g {
      input %x: f32[4,4]
      input %y: f32[4,4]
      %l: f32[] = aten.binary_cross_entropy.default(%x, %y)
      return %l
    }"""
    (node,) = parse_graph(text).nodes
    assert not can_write(node) and writer(node.op) is None


def test_overloads_that_only_copy_do_not_count() -> None:
    """relu.out computes elsewhere and copies; clamp_min.out has a kernel of its own."""
    assert native_out("aten.relu.default") is None
    assert native_out("aten.clamp_min.default") is not None


def test_linear_needs_contiguous_memory() -> None:
    dense, turned = TensorType((4, 8), torch.float32), TensorType((4, 8), torch.float32, (1, 4))
    node = Node("y", "aten.linear.default", (Ref("x"), Ref("w")), (), (dense,))
    assert can_write(node)
    assert not can_write(Node("y", node.op, node.args, (), (turned,)))
    assert type_of(torch.empty(4, 8)) == dense


@pytest.mark.parametrize(("features", "width"), [(0, 4), (4, 0)])
def test_linear_of_no_features(features: int, width: int) -> None:
    x, w = torch.randn(2, features), torch.randn(width, features)
    out, write = torch.full((2, width), float("nan")), writer("aten.linear.default")
    assert write is not None
    write([out], x, w, torch.ones(width))
    assert torch.equal(out, torch.ones(2, width))


F32 = torch.float32
A, B = TensorType((4, 6), F32), TensorType((6, 3), F32)
BATCHED = TensorType((2, 4, 6), F32), TensorType((2, 6, 3), F32)
LAID: dict[str, tuple[object, ...]] = {
    "aten.mm.default": (A, B),
    "aten.addmm.default": (TensorType((3,), F32), A, B),
    "aten.bmm.default": BATCHED,
    "aten.baddbmm.default": (TensorType((2, 4, 3), F32), *BATCHED),
    "aten.linear.default": (BATCHED[0], TensorType((3, 6), F32), TensorType((3,), F32)),
    "aten.mean.dim": (X, (-1, -2), True),
    "aten.adaptive_avg_pool2d.default": (X, (1, 1)),
}


def otherwise(type: TensorType) -> Iterator[TensorType]:
    """The type with its axes in memory in each order."""
    for order in itertools.permutations(range(len(type.shape))):
        strides = torch.empty([type.shape[i] for i in order]).stride()
        placed = dict(zip(order, strides, strict=True))
        yield replace(type, strides=tuple(placed[i] for i in range(len(order))))


@pytest.mark.parametrize("op", LAID)
def test_strides_are_told_as_torch_infers_them(op: str) -> None:
    """Also where no type is inferred, for torch imports its compiler for that."""
    given, answers = LAID[op], set[bool]()
    first = next(arg for arg in given if isinstance(arg, TensorType) and len(arg.shape) > 1)
    for laid in otherwise(first):
        types = [laid if arg is first else arg for arg in given]
        table = {f"v{i}": t for i, t in enumerate(types) if isinstance(t, TensorType)}
        args: Any = tuple(Ref(f"v{i}") if f"v{i}" in table else t for i, t in enumerate(types))
        (found,) = ops.infer(op, args, (), table)
        for asked in otherwise(found):
            node = Node("y", op, args, (), (asked,))
            if can_write(node):
                there = ops.same_layout(found, asked)
                assert writes_there(node, table) == there
                answers.add(there)
    linear = op == "aten.linear.default"  # which can write to contiguous memory alone
    assert answers == ({True} if linear else {True, False})

"""Rules of result types: what they answer is what torch's meta kernels answer, or nothing."""

from __future__ import annotations

import pytest

from anabranch.ir import ops
from anabranch.ir.shapes import known_type
from anabranch.ir.text import parse_node, parse_type

TABLE = {
    name: parse_type(text)
    for name, text in {
        "x": "f32[2,6,9,8]",
        "y": "f32[6,1,8]",
        "h": "f16[2,6,9,8]",
        "i": "i64[2,3]",
        "b": "b1[2,6,9,8]",
        "w": "f32[4,3,3,3]",
        "w4": "f32[4]",
        "r": "f32[5,7]",
        "l": "f32[3,7]",
        "l3": "f32[3]",
        "m": "f32[7,3]",
        "p": "f32[2,5,7]",
        "q": "f32[2,7,3]",
        "n": "f32[8]",
        "k": "f32[2,6,5,8]",
        "v": "f32[2,6,5,4]",
        "mask": "b1[9,5]",
        "none": "f32[2,0]",
    }.items()
}
KNOWN = [
    *("relu.default(%x)", "relu.default(%none)", "gelu.default(%x, approximate='tanh')"),
    *(
        "add.Tensor(%x, %y, alpha=2)",
        "mul.Tensor(%y, 2.0)",
        "div.Tensor_mode(%x, 3, rounding_mode='floor')",
    ),
    *(
        "lt.Tensor(%x, %y)",
        "where.self(%b, %x, %y)",
        "masked_fill.Scalar(%x, %b, 0)",
        "clone.default(%x)",
    ),
    "convolution.default(%x, %w, %w4, [2, 1], [1, 0], [1, 2], False, [0, 0], 2)",
    "conv2d.default(%x, %w, None, [1], [1], [1], 2)",
    "max_pool2d.default(%x, [3, 3], [2, 2], [1, 1], [1, 1], True)",
    *("avg_pool2d.default(%x, [3, 2], [], [1, 1])", "avg_pool2d.default(%x, [2], [3], [1], True)"),
    *(
        "adaptive_avg_pool2d.default(%x, [1, 3])",
        "linear.default(%r, %l, %l3)",
        "mm.default(%r, %m)",
    ),
    *("addmm.default(%l3, %r, %m)", "bmm.default(%p, %q)", "baddbmm.default(%l3, %p, %q)"),
    *("cat.default([%x, %k], 2)", "cat.default([%x, %x], -1)", "stack.default([%x, %x], 1)"),
    *("mean.dim(%x, [-1, 1], True)", "sum.dim_IntList(%x, [0])", "amax.default(%x, [1])"),
    *("softmax.int(%x, -1)", "layer_norm.default(%x, [8], %n, %n)", "embedding.default(%r, %i)"),
    "scaled_dot_product_attention.default(%x, %k, %v, %mask)",
]
UNSURE = [
    *("add.Tensor(%x, %h)", "add.Tensor(%x, %i)", "relu.default(%i)", "add.Tensor(%x, %w)"),
    *(
        "where.self(%x, %x, %x)",
        "sum.dim_IntList(%x, [9])",
        "mm.default(%r, %l)",
        "mm.default(%p, %q)",
    ),
    *(
        "cat.default([%x, %k], 1)",
        "linear.default(%r, %m)",
        "layer_norm.default(%x, [9], None, None)",
    ),
    "convolution.default(%x, %w, %w4, [0, 1], [1, 0], [1, 2], False, [0, 0], 2)",
    "convolution.default(%x, %w, %w4, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)",
    "convolution.default(%x, %w, %w4, [1, 1], [1, 1], [1, 1], False, [0, 0], 0)",
    "max_pool2d.default(%x, [30, 30])",
    "scaled_dot_product_attention.default(%x, %k, %k, %x)",
    *("softmax.int(%x, 4)", "mean.dim(%x, [1], dtype=torch.float64)", "nonsense.default(%x)"),
]


@pytest.mark.parametrize("call", KNOWN)
def test_an_answer_is_torchs(call: str) -> None:
    node = parse_node(f"%z: f32[1] = aten.{call}")
    found, (asked,) = known_type(node, TABLE), ops.infer(node.op, node.args, node.kwargs, TABLE)
    assert found is not None and (found.shape, found.dtype) == (asked.shape, asked.dtype)


@pytest.mark.parametrize("call", UNSURE)
def test_what_is_no_such_call_has_no_answer(call: str) -> None:
    assert known_type(parse_node(f"%z: f32[1] = aten.{call}"), TABLE) is None

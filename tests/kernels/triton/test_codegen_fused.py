"""Fused bodies of random shapes, layouts and types: prologues, epilogues, several results, results
with gaps between their rows, as in a slice of a concatenation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph, Node
from anabranch.ir.ops import channels_last_strides
from anabranch.ir.types import DTYPE_NAMES, TensorType, contiguous_strides
from anabranch.kernels.triton.codegen import variants

FLOATS = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
SIZES = st.sampled_from([1, 2, 3, 5, 7, 8, 11, 16])


@st.composite
def typed(draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype) -> TensorType:
    """NCHW or NHWC, dense or with gaps after each row of the outermost dimension but one."""
    strides = contiguous_strides(shape)
    if len(shape) == 4 and draw(st.booleans()):
        strides = channels_last_strides(shape)
    gap = draw(st.sampled_from([1, 1, 2]))
    fastest = min(strides) if strides else 1
    return TensorType(shape, dtype, tuple(s * gap if s > fastest else s for s in strides))


def with_results(graph: Graph, types: dict[str, TensorType]) -> Graph:
    """The graph with other layouts for some of its values."""

    def changed(node: Node) -> Node:
        return replace(node, types=(types.get(node.name, node.type), *node.types[1:]))

    return replace(graph, nodes=tuple(map(changed, graph.nodes)))


@given(st.data(), FLOATS)
@settings(max_examples=12)
def test_pointwise_chains(data: st.DataObject, dtype: torch.dtype) -> None:
    n, c, h, w = (data.draw(SIZES) for _ in range(4))
    x, y, out = (data.draw(typed((n, c, h, w), dtype)) for _ in range(3))
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      input %y: {y.text}
      const %b: {name}[{c},1,1] = b
      %sum: {x.text} = aten.add.Tensor(%x, %b)
      %mul: {x.text} = aten.mul.Tensor(%sum, %y)
      %r: {x.text} = aten.gelu.default(%mul)
      %s: b1[{n},{c},{h},{w}] = aten.gt.Tensor(%x, %y)
      return %r, %s
    }}""")
    graph = with_results(graph, {"r": out})
    check(graph, [*variants(graph, gpu(1))[:1], "pointwise:128.w4"])


@given(st.data(), FLOATS)
@settings(max_examples=12)
def test_rows_with_neighbours(data: st.DataObject, dtype: torch.dtype) -> None:
    n, c = data.draw(SIZES), data.draw(st.sampled_from([2, 3, 17, 64, 130]))
    x, out = (data.draw(typed((n, 3, c), dtype)) for _ in range(2))
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      input %y: {name}[3,{c}]
      const %w: {name}[{c}] = w
      const %b: {name}[{c}] = b
      %sum: {x.text} = aten.add.Tensor(%x, %y)
      %norm: {name}[{n},3,{c}] = aten.layer_norm.default(%sum, [{c}], %w, %b)
      %r: {name}[{n},3,{c}] = aten.silu.default(%norm)
      %top: {name}[{n},3,1] = aten.amax.default(%sum, [-1], True)
      return %r, %top
    }}""")
    graph = with_results(graph, {"r": out})
    check(graph, [*variants(graph, gpu(1))[:1], "rows:8x32.w4"])


@given(st.data(), FLOATS)
@settings(max_examples=8)
def test_softmax_of_any_axis(data: st.DataObject, dtype: torch.dtype) -> None:
    shape = tuple(data.draw(SIZES) for _ in range(3))
    axis = data.draw(st.integers(0, 2))
    if shape[axis] == 1:
        return
    x = data.draw(typed(shape, dtype))
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      %half: {x.text} = aten.div.Tensor(%x, 2.0)
      %r: {DTYPE_NAMES[dtype]}[{",".join(map(str, shape))}] = aten._softmax.default(%half, {axis}, False)
      return %r
    }}""")  # noqa: E501
    check(graph, [*variants(graph, gpu(1))[:1], "rows:4x4.w4"])


@given(st.data(), FLOATS)
@settings(max_examples=8)
def test_global_average_pool(data: st.DataObject, dtype: torch.dtype) -> None:
    n, c, h, w = data.draw(SIZES), data.draw(SIZES), data.draw(SIZES), 5
    x = data.draw(typed((n, c, h, w), dtype))
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      %relu: {x.text} = aten.relu.default(%x)
      %r: {name}[{n},{c}] = aten.mean.dim(%relu, [-1, -2])
      return %r
    }}""")
    check(graph, [*variants(graph, gpu(1))[:1], "rows:8x8.w4"])


@given(st.data(), FLOATS)
@settings(max_examples=15)
def test_depthwise_convolutions(data: st.DataObject, dtype: torch.dtype) -> None:
    """Relu -> depthwise convolution (bias or none) -> + residual -> relu."""
    kernel, stride, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    n, c = data.draw(st.integers(1, 2)), data.draw(st.sampled_from([3, 8, 13]))
    padding = data.draw(st.integers(0, 2))
    h, w = (data.draw(st.integers(dilation * (kernel - 1) + 1, 9)) for _ in range(2))
    p, q = ((m + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1 for m in (h, w))
    if kernel == 1 or p * q == 1:
        return  # nothing slides: that is for another template
    x = data.draw(typed((n, c, h, w), dtype))
    out, residual = (data.draw(typed((n, c, p, q), dtype)) for _ in range(2))
    name, bias = DTYPE_NAMES[dtype], data.draw(st.sampled_from(["None", "%b"]))
    weight = data.draw(st.sampled_from(["", f"{{1,1,{kernel * c},{c}}}"]))
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      input %y: {residual.text}
      const %w: {name}[{c},1,{kernel},{kernel}]{weight} = w
      const %b: {name}[{c}] = b
      %relu: {x.text} = aten.relu.default(%x)
      %conv: {out.text} = aten.convolution.default(%relu, %w, {bias}, [{stride}, {stride}], [{padding}, {padding}], [{dilation}, {dilation}], False, [0, 0], {c})
      %sum: {out.text} = aten.add.Tensor(%conv, %y)
      %r: {out.text} = aten.relu.default(%sum)
      return %r
    }}""")  # noqa: E501
    found = [v for v in variants(graph, gpu(132)) if v.template == "window"]
    together = data.draw(st.sampled_from([1, 2, 4]))
    check(graph, [*found[:1], f"window:4x8u{together}.w1"])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers(dtype: torch.dtype) -> None:
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {name}[5,7]
      input %y: {name}[7]
      %sum: {name}[5,7] = aten.add.Tensor(%x, %y, alpha=3)
      %mul: {name}[5,7] = aten.mul.Tensor(%sum, 2)
      %r: {name}[5,7] = aten.clamp.default(%mul, 1, 5)
      %eq: b1[5,7] = aten.eq.Scalar(%r, 2)
      return %r, %eq
    }}""")
    check(graph, variants(graph, gpu(1)))


def test_views_inside_a_body() -> None:
    """Channel shuffle: view, transpose, view again, joined with another half."""
    graph = read("""
    graph g {
      input %x: f32[2,6,3,4]
      input %y: f32[2,6,3,4]
      %v: f32[2,2,3,3,4] = aten.view.default(%x, [2, 2, 3, 3, 4])
      %t: f32[2,3,2,3,4]{72,12,36,4,1} = aten.transpose.int(%v, 1, 2)
      %u: f32[2,6,3,4] = aten.reshape.default(%t, [2, 6, 3, 4])
      %a: f32[2,2,3,4]{72,12,4,1}, %a.1: f32[2,2,3,4]{72,12,4,1}, %a.2: f32[2,2,3,4]{72,12,4,1} = aten.split.Tensor(%y, 2, 1)
      %cat: f32[2,8,3,4] = aten.cat.default([%a.1, %u], 1)
      %r: f32[2,8,3,4] = aten.relu.default(%cat)
      return %r
    }""")  # noqa: E501
    check(graph, variants(graph, gpu(1)))


def test_pools_that_are_added() -> None:
    """Two windows of one size in one kernel, with what is added to them."""
    graph = read("""
    graph g {
      input %x: f16[1,16,7,7]{784,1,112,16}
      input %y: f16[1,16,7,7]{784,1,112,16}
      %a: f16[1,16,7,7]{784,1,112,16} = aten.avg_pool2d.default(%x, [3, 3], [1, 1], [1, 1], False, False)
      %m: f16[1,16,7,7]{784,1,112,16} = aten.max_pool2d.default(%y, [3, 3], [1, 1], [1, 1])
      %s: f16[1,16,7,7]{784,1,112,16} = aten.add.Tensor(%a, %m)
      return %s
    }""")  # noqa: E501
    check(graph, variants(graph, gpu(4)))


@pytest.mark.parametrize("op", ["aten.add.Tensor", "aten.maximum.default"])
def test_a_prologue_of_two_values(op: str) -> None:
    """Padding is 0 after the prologue, whatever the prologue makes of 0; the tap in the middle of
    the window is never outside."""
    graph = read(f"""
    graph g {{
      input %x: f32[1,8,5,5]{{200,1,40,8}}
      input %y: f32[1,8,5,5]{{200,1,40,8}}
      const %w: f32[8,1,3,3] = w
      %s: f32[1,8,5,5]{{200,1,40,8}} = {op}(%x, %y)
      %t: f32[1,8,5,5]{{200,1,40,8}} = aten.add.Scalar(%s, 1.0)
      %c: f32[1,8,5,5]{{200,1,40,8}} = aten.convolution.default(%t, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8)
      %d: f32[1,8,5,5]{{200,1,40,8}} = aten.convolution.default(%s, %w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 8)
      %r: f32[1,8,5,5]{{200,1,40,8}} = aten.add.Tensor(%c, %d)
      return %r
    }}""")  # noqa: E501
    check(graph, variants(graph, gpu(4))[:3])


def test_what_is_not_a_number_stays_so() -> None:
    x = torch.tensor([[1.0, float("nan"), -2.0, 3.0], [0.0, -1.0, float("inf"), 2.0]])
    graph = read("""
    graph g {
      input %x: f32[2,4]
      %r: f32[2,4] = aten.relu.default(%x)
      %m: f32[2,1] = aten.amax.default(%r, [1], True)
      %c: f32[2,4] = aten.clamp.default(%x, -1.0, 1.0)
      return %r, %m, %c
    }""")
    check(graph, ["rows:1x4.w1", "rows:2x2.w1"], [x])


@given(st.data(), FLOATS)
@settings(max_examples=10)
def test_group_norms(data: st.DataObject, dtype: torch.dtype) -> None:
    """X + a number for each channel -> group norm -> silu, in any layout on both sides."""
    groups, each = data.draw(st.sampled_from([1, 2, 5])), data.draw(st.sampled_from([1, 3, 4]))
    n, h, w = data.draw(st.integers(1, 2)), data.draw(SIZES), data.draw(SIZES)
    c = groups * each
    if each * h * w == 1:
        return  # a norm of one number
    x, out = (data.draw(typed((n, c, h, w), dtype)) for _ in range(2))
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {x.text}
      input %t: {name}[{n},{c},1,1]
      const %w: {name}[{c}] = w
      const %b: {name}[{c}] = b
      %sum: {x.text} = aten.add.Tensor(%x, %t)
      %norm: {out.text} = aten.group_norm.default(%sum, {groups}, %w, %b)
      %r: {out.text} = aten.silu.default(%norm)
      return %r
    }}""")
    check(graph, [*variants(graph, gpu(1))[:1], "rows:2x16.w4"])

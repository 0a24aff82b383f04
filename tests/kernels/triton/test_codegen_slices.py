"""Kernels of every template that write a slice of a join, and kernels that read one: the values are
right, and nothing is written between the elements (the interpreter looks)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check

from anabranch.ir.graph import Graph, Input
from anabranch.ir.types import TensorType
from anabranch.kernels.triton.codegen import variants

NHWC, NCHW = (4800, 1, 480, 48), (4800, 100, 10, 1)
"""Strides of a whole of 48 channels, of which a part has 16."""
BODIES = {
    "pointwise": """
      input %x: f32[1,16,10,10]{1600,1,160,16}
      %r: f32[1,16,10,10]{1600,1,160,16} = aten.relu.default(%x)
      return %r""",
    "window": """
      input %x: f32[1,16,10,10]{1600,1,160,16}
      %r: f32[1,16,10,10]{1600,1,160,16} = aten.max_pool2d.default(%x, [3, 3], [1, 1], [1, 1])
      return %r""",
    "rows": """
      input %x: f32[1,16,10,10]{1600,1,160,16}
      %r: f32[1,16,10,10]{1600,1,160,16} = aten._softmax.default(%x, 1, False)
      return %r""",
    "contraction": """
      input %x: f32[1,16,10,10]{1600,1,160,16}
      const %w: f32[16,16,3,3]{144,1,48,16} = w
      const %b: f32[16] = b
      %c: f32[1,16,10,10]{1600,1,160,16} = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
      %r: f32[1,16,10,10]{1600,1,160,16} = aten.relu.default(%c)
      return %r""",  # noqa: E501
}


def written_as(body: Graph, strides: tuple[int, ...]) -> Graph:
    """With the result as a slice."""
    last = body.nodes[-1]
    result = replace(last, types=(TensorType(last.type.shape, last.type.dtype, strides),))
    return replace(body, nodes=(*body.nodes[:-1], result))


def read_as(body: Graph, strides: tuple[int, ...]) -> Graph:
    """With what it reads as a slice."""
    (x,) = body.inputs
    return replace(body, inputs=(Input(x.name, replace(x.type, strides=strides)),))


@pytest.mark.parametrize("strides", [NHWC, NCHW])
@pytest.mark.parametrize("template", BODIES)
def test_slices(template: str, strides: tuple[int, ...]) -> None:
    body = read("graph g {" + BODIES[template] + "\n}")
    for slice in (written_as(body, strides), read_as(body, strides)):
        offered = [v for v in variants(slice, gpu()) if v.template == template]
        check(slice, offered[:2])

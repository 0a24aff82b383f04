"""Gradients of convolutions as generated products: of the weight, and with what stands around."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import check
from tests.kernels.triton.test_codegen_compiled import SPILLED, compiled

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Ref
from anabranch.kernels.dfg import lower
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of

CL = torch.channels_last


def call(
    *x: int, to: int, kernel: int, stride: int = 1, padding: int = 0, dilation: int = 1,
    groups: int = 1, last: bool = False,
) -> tuple[Graph, list[torch.Tensor]]:  # fmt: skip
    """The gradient of one weight, of images or lines."""
    rank = len(x) - 2
    image, weight = torch.randn(x), torch.randn(to, x[1] // groups, *[kernel] * rank)
    window = ([stride] * rank, [padding] * rank, [dilation] * rank)
    grad = torch.ops.aten.convolution(image, weight, None, *window, False, [0] * rank, groups)
    grad = torch.randn_like(grad)
    if last:
        grad, image = (t.contiguous(memory_format=CL) for t in (grad, image))
    given = (grad, image, list(weight.shape), *window, groups)
    return body("anabranch.conv_weight_grad.default", given)


@pytest.mark.parametrize(
    "given",
    [
        dict(x=(2, 8, 6, 6), to=16, kernel=3, padding=1),
        dict(x=(2, 8, 7, 7), to=16, kernel=3, padding=1, stride=2, last=True),
        dict(x=(2, 8, 6, 6), to=16, kernel=1, last=True),
        dict(x=(2, 8, 11), to=16, kernel=3, dilation=2, padding=1),
        dict(x=(2, 8, 6, 6), to=8, kernel=3, groups=2, last=True),
        dict(x=(2, 8, 6, 6), to=8, kernel=3, groups=8),
    ],
    ids=["plain", "strided", "1x1", "dilated lines", "grouped", "depthwise"],
)
def test_gradients_of_weights(given: dict[str, object]) -> None:
    x = given.pop("x")
    graph, tensors = call(*x, **given)  # type: ignore[misc, arg-type]
    found = variants(graph, gpu(132))
    kinds = {str(variant).partition(":")[0]: variant for variant in found}
    check(graph, list(kinds.values()), tensors)


def test_a_wide_product_of_half_types_is_added_up_by_tensor_cores_and_not_rounded() -> None:
    grad, x = torch.randn(40, 48).half(), torch.randn(40, 24).half()
    graph, tensors = body("anabranch.wide_mm.default", (grad.t(), x))
    (variant, *_) = variants(graph, gpu(132))
    check(graph, [variant], tensors)
    text = program(graph, variant).text
    assert "tl.dot(" in text and "ieee" not in text, "factors are halves"


def test_the_depth_of_a_weight_gradient_is_every_pixel_of_every_image() -> None:
    graph, tensors = call(4, 16, 12, 12, to=16, kernel=3, padding=1, last=True)
    found = contraction_of(lower(graph))
    assert isinstance(found, Contraction)
    assert (found.m, found.n, found.k) == (16, 9 * 16, 4 * 12 * 12)
    split = [one for one in variants(graph, gpu(132)) if ".k4." in str(one)]
    check(graph, split[:1], tensors)
    assert (
        ops.flops(graph.nodes[0], {n.name: n.type for n in graph.inputs}) == 2 * 4 * 144 * 144 * 16
    )


UPDATE = """
    graph update {{
      input %w: f32[64,32,3,3]{{288,1,96,32}}
      input %g: f16[{n},64,{h},{h}]{{{g},1,{l},64}}
      input %x: f16[{n},32,{h},{h}]{{{x},1,{k},32}}
      %dw: f16[64,32,3,3]{{288,1,96,32}} = anabranch.conv_weight_grad.default(%g, %x, [64, 32, 3, 3], [1, 1], [1, 1], [1, 1], 1)
      %wide: f32[64,32,3,3]{{288,1,96,32}} = aten._to_copy.default(%dw, dtype=torch.float32)
      %new: f32[64,32,3,3]{{288,1,96,32}} = aten.add.Tensor(%w, %wide, alpha=-0.01)
      return %new
    }}"""  # noqa: E501
"""The step that a weight takes, as the epilogue of its gradient."""


def update(n: int, h: int) -> Graph:
    return read(UPDATE.format(n=n, h=h, g=64 * h * h, l=64 * h, x=32 * h * h, k=32 * h))


def test_the_update_of_a_weight_is_its_epilogue() -> None:
    graph = update(1, 4)
    check(graph, [v for v in variants(graph, gpu(132)) if str(v).startswith("contraction")][:1])


def test_the_gradient_of_a_weight_compiles_for_tensor_cores(tmp_path: Path) -> None:
    found = compiled(program(update(2, 28), "contraction:64x64x64.k4.w4.s3"), 90, tmp_path)
    stack, local = map(int, re.findall(r"(?:STACK|LOCAL):(\d+)", found["usage"]))
    assert stack <= SPILLED and not local, found["usage"]
    assert "mma" in found["ptx"] and "cp.async" in found["ptx"]


def test_the_gradient_of_an_activation_is_read_into_the_product() -> None:
    """Of what the gradient is made elementwise: the activation behind the convolution."""
    graph, tensors = call(2, 8, 6, 6, to=16, kernel=3, padding=1)
    (node,) = graph.nodes
    types = {v.name: v.type for v in graph.inputs}
    y = torch.randn(2, 16, 6, 6)
    types["y"] = types["a0"]
    masked = ops.make_node(
        "masked", "aten.threshold_backward.default", (Ref("a0"), Ref("y"), 0), types
    )
    types["masked"] = masked.type
    made = ops.make_node("made", node.op, (Ref("masked"), *node.args[1:]), types)
    inputs = (*graph.inputs, type(graph.inputs[0])("y", types["y"]))
    graph = Graph("g", inputs, (), (masked, made), graph.outputs)
    check(graph, variants(graph, gpu(132))[:1], [*tensors, y])

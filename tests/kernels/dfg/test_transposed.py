"""Transposed convolutions of any stride, kernel, padding and groups, with what follows them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import check, run

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, types
from anabranch.ir.refused import Refused
from anabranch.ir.types import DTYPE_NAMES
from anabranch.kernels.dfg import lower
from anabranch.kernels.triton.codegen import program, variants
from anabranch.kernels.triton.contraction_axes import Contraction, contraction_of


def call(
    *x: int, to: int, kernel: int, stride: int, padding: int, dilation: int = 1, groups: int = 1
) -> tuple[Graph, list[torch.Tensor]]:
    """One transposed convolution of images or lines, with a bias."""
    rank = len(x) - 2
    weight = torch.randn(x[1], to // groups, *[kernel] * rank)
    more = next(
        k
        for k in range(stride)
        if not (stride * (x[2] - 1) + dilation * (kernel - 1) + 1 - 2 * padding + k) % stride
    )
    return body(
        "aten.convolution.default",
        (
            *(torch.randn(x), weight, torch.randn(to), [stride] * rank, [padding] * rank),
            *([dilation] * rank, True, [more] * rank, groups),
        ),
    )


def axes_of(graph: Graph) -> Contraction:
    found = contraction_of(lower(graph))
    assert isinstance(found, Contraction), found
    return found


def test_strides_as_large_as_the_kernel_are_one_product() -> None:
    graph, tensors = call(1, 16, 5, 5, to=8, kernel=2, stride=2, padding=0)
    found = axes_of(graph)
    assert (found.m, found.n, found.k, found.batches) in ((25, 32, 16, 1), (32, 25, 16, 1))
    check(graph, variants(graph, gpu(132))[:2], tensors)


def test_larger_kernels_are_a_stack_of_products() -> None:
    graph, tensors = call(1, 16, 5, 5, to=8, kernel=4, stride=2, padding=1)
    found = axes_of(graph)
    assert found.batches == 4 and found.k == 16 * 4 and {found.m, found.n} == {25, 8}
    check(graph, variants(graph, gpu(132))[:2], tensors)


@given(st.data())
@settings(max_examples=15)
def test_any_window(data: st.DataObject) -> None:
    stride, kernel = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    dilation = data.draw(st.integers(1, 2)) if stride == 1 else 1
    padding = data.draw(st.integers(0, max(kernel - 1, 0)))
    groups, rank = data.draw(st.sampled_from([1, 1, 2])), data.draw(st.integers(1, 2))
    n, c, k = data.draw(st.integers(1, 2)), *(data.draw(st.sampled_from([2, 3, 8])) for _ in "ck")
    x = (n, c * groups, *(data.draw(st.integers(3, 6)) for _ in range(rank)))
    if (kernel == 1 and stride > 1) or len(set(x[2:])) > 1:
        return
    if stride * (x[2] - 1) + dilation * (kernel - 1) + 1 <= 2 * padding:
        return
    to = k * groups
    graph, tensors = call(
        *x, to=to, kernel=kernel, stride=stride, padding=padding, dilation=dilation, groups=groups
    )
    check(graph, variants(graph, gpu(132))[:1], tensors)


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 3, 2), (64, 3, 2), (64, 4, 3)])
def test_an_infinity_reaches_no_more_than_its_window(
    channels: int, kernel: int, stride: int
) -> None:
    """Results of which a stride does not divide the window have fewer taps than others: what no
    tap of theirs reaches is not multiplied by zero."""
    graph, (x, weight, bias) = call(
        1, channels, 5, 5, to=16, kernel=kernel, stride=stride, padding=1
    )
    x[0, 0, 2, 2] = torch.inf
    values = {v.name: t for v, t in zip(graph.inputs, (x, weight, bias), strict=True)}
    (want,) = eval_graph(graph, [x, weight, bias])
    assert not want.isnan().any()
    for variant in variants(graph, gpu(132))[:2]:
        made = run(
            program(graph, variant), values, {r.name: types(graph)[r.name] for r in graph.outputs}
        )
        torch.testing.assert_close(made[graph.outputs[0].name], want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kernel", [2, 4])
def test_each_channel_by_itself(kernel: int) -> None:
    """As bilinear upsampling with learned weights; a stride as large as the kernel sums nothing."""
    padding = (kernel - 2) // 2
    graph, tensors = call(1, 6, 4, 4, to=6, kernel=kernel, stride=2, padding=padding, groups=6)
    found = variants(graph, gpu(132))
    assert found[0].template == ("pointwise" if kernel == 2 else "window")
    check(graph, found[:2], tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_with_what_follows(dtype: torch.dtype) -> None:
    name = DTYPE_NAMES[dtype]
    graph = read(f"""
    graph g {{
      input %x: {name}[2,8,3,3]{{72,1,24,8}}
      input %y: {name}[2,4,6,6]{{144,1,24,4}}
      const %w: {name}[8,4,4,4] = w
      const %b: {name}[4] = b
      %conv: {name}[2,4,6,6]{{144,1,24,4}} = aten.convolution.default(%x, %w, %b, [2, 2], [1, 1], [1, 1], True, [0, 0], 1)
      %sum: {name}[2,4,6,6]{{144,1,24,4}} = aten.add.Tensor(%conv, %y)
      %r: {name}[2,4,6,6]{{144,1,24,4}} = aten.relu.default(%sum)
      return %r
    }}""")  # noqa: E501
    check(graph, [*variants(graph, gpu(132))[:2], "contraction:16x16x16.k2.w4.s2"])


def test_what_has_no_lowering() -> None:
    both, _ = call(1, 4, 4, to=4, kernel=3, stride=2, padding=1, dilation=2)
    assert lower(both) == Refused("%made has both a stride and a dilation")
    odd = body(
        "aten.convolution.default",
        (*(torch.randn(1, 4, 4), torch.randn(4, 4, 3), None, [2], [1], [1], True, [0], 1),),
    )[0]
    assert lower(odd) == Refused("a transposed convolution makes 7 results in strides of 2")


@pytest.mark.parametrize(
    ("image", "window"),
    [
        ((9, 7), ((3, 2), (1, 1), (1, 0), (2, 1))),
        ((8, 5), ((3, 3), (1, 1), (1, 1), (2, 2))),
        ((7, 11), ((2, 3), (1, 1), (0, 2), (3, 4))),
        ((9, 9), ((2, 2), (3, 2), (1, 0), (1, 1))),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_patches(
    image: tuple[int, int], window: tuple[tuple[int, int], ...], dtype: torch.dtype
) -> None:
    """Patches that overlap, that just touch, and that leave pixels out."""
    size, dilation, padding, stride = window
    patches = torch.nn.functional.unfold(torch.randn(2, 3, *image), size, dilation, padding, stride)
    x = torch.randn_like(patches).to(dtype)
    graph, tensors = body("aten.col2im.default", (x, image, size, dilation, padding, stride))
    check(graph, variants(graph, gpu(132))[:3], tensors)


def test_sums_of_patches_without_a_lowering() -> None:
    x = torch.randn(1, 4 * 3, 4)
    both = body("aten.col2im.default", (x, [6, 6], [2, 2], [2, 2], [0, 0], [2, 3]))[0]
    assert lower(both) == Refused("%made has both a stride and a dilation")

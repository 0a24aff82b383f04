"""Gradients of pooling as sums over the windows of a pixel, and the places of maxima."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu
from tests.kernels.triton.interpreter import check

from anabranch.kernels.triton.codegen import variants

aten = torch.ops.aten
CL = torch.channels_last
MAX = {
    "overlapping": ((2, 3, 9, 8), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "apart": ((1, 2, 6, 8), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "with gaps": ((1, 2, 9, 9), [2, 2], [3, 3], [0, 0], [1, 1], False),
    "dilated": ((1, 2, 9, 9), [2, 3], [1, 1], [1, 1], [2, 1], False),
    "beyond the end": ((1, 2, 8, 8), [3, 3], [2, 2], [0, 0], [1, 1], True),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", MAX)
def test_maxima(name: str, last: bool) -> None:
    """Of small whole numbers, many of which are alike: the first of a window counts."""
    shape, *window = MAX[name]
    x = torch.randint(-2, 2, shape).float()
    x = x.contiguous(memory_format=CL) if last else x
    graph, tensors = body("aten.max_pool2d_with_indices.default", (x, *window))
    assert len(graph.nodes[0].types) == 2
    both = type(graph)(*_with_all_results(graph))
    check(both, variants(both, gpu(132))[:2], tensors)
    value, places = aten.max_pool2d_with_indices(x, *window)
    grad = torch.randn_like(value)
    given = (grad, x, *window, places)
    graph, tensors = body("aten.max_pool2d_with_indices_backward.default", given)
    check(graph, variants(graph, gpu(132))[:2], tensors)


def test_the_place_of_the_last_number_that_is_none() -> None:
    """Where several of a window are NaN, ATen names the last, for each is more than what was."""
    shape, *window = MAX["overlapping"]
    x = torch.randint(-2, 2, shape).float()
    x[torch.rand(shape) < 0.2] = float("nan")
    graph, tensors = body("aten.max_pool2d_with_indices.default", (x, *window))
    both = type(graph)(*_with_all_results(graph))
    check(both, variants(both, gpu(132))[:2], tensors)


def _with_all_results(graph: Any) -> tuple[Any, ...]:
    (node,) = graph.nodes
    ref = type(graph.outputs[0])
    return graph.name, graph.inputs, (), graph.nodes, tuple(map(ref, node.results))


@pytest.mark.parametrize(
    "shape, window",
    [
        ((2, 3, 8, 9), ([3, 3], [2, 2], [1, 1], False, True, None)),
        ((2, 3, 8, 9), ([3, 3], [2, 2], [1, 1], True, False, None)),
        ((1, 2, 8, 8), ([2, 4], [], [0, 0], False, True, None)),
        ((1, 2, 7, 7), ([3, 2], [1, 2], [0, 0], False, True, 5)),
    ],
)
def test_averages(shape: tuple[int, ...], window: tuple[Any, ...]) -> None:
    x = torch.randn(shape)
    grad = torch.randn_like(aten.avg_pool2d(x, *window))
    graph, tensors = body("aten.avg_pool2d_backward.default", (grad, x, *window))
    check(graph, variants(graph, gpu(132))[:2], tensors)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (4, 3), (7, 5)])
def test_as_many_windows_as_asked(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, 6, 8)
    grad = torch.randn(2, 3, *size)
    graph, tensors = body("aten._adaptive_avg_pool2d_backward.default", (grad, x))
    check(graph, variants(graph, gpu(132))[:2], tensors)
    _, places = aten.adaptive_max_pool2d(x, size)
    given = (grad, x, places)
    graph, tensors = body("aten.adaptive_max_pool2d_backward.default", given)
    check(graph, variants(graph, gpu(132))[:2], tensors)

"""Channels of zeros: read along to the next convolution, and cut away where they count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.rewrite.graphs import captured, equal, kinds, read
from torch import Tensor, nn
from torch.nn import functional as F

from anabranch.ir.graph import Graph, types
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite.apply import apply_all
from anabranch.rewrite.passes.zero_channels import zeros
from anabranch.rewrite.rules import channel_padding
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace

Between = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """Convolutions to six channels, of which four are a vector, with something between them."""

    def __init__(self, between: Between, kept: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.other = nn.Conv2d(3, 6, 1, bias=False)
        self.depth = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.last = nn.Conv2d(kept, 8, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self.depth(self.first(x)) + self.other(x)))
        return y


def simple(graph: Graph) -> Graph:
    return simplify(graph, Stepper(Trace()), Options(), "cuda")


def wider(model: nn.Module) -> tuple[Graph, Graph]:
    """Its graph, and the one of wider pixels."""
    before = simple(captured(model, torch.randn(2, 3, 9, 9)))
    return before, equal(before, simple(apply_all(before, channel_padding.RULES)))


def channels(graph: Graph) -> list[int]:
    return [node.type.shape[1] for node in graph.nodes if len(node.type.shape) == 4]


THROUGH: dict[str, Between] = {
    "nothing": lambda x: x,
    "activations": lambda x: F.silu(torch.sigmoid(x) - F.hardtanh(x)),
    "numbers": lambda x: (x * 3 + 1) / 2,
    "one for all channels": lambda x: x * torch.tensor([[2.0]]),
    "one for each channel": lambda x: x + torch.arange(6.0).view(6, 1, 1),
    "one for each pixel": lambda x: x * x.mean((2, 3), keepdim=True).sum(1, keepdim=True),
    "a gate": lambda x: x * torch.sigmoid(F.adaptive_avg_pool2d(x, 1)),
    "pools": lambda x: F.max_pool2d(x, 3, 1, 1) + F.avg_pool2d(x, 3, 1, 1),
    "rows and columns": lambda x: F.interpolate(F.pad(x, (1, 0, 0, 2)), scale_factor=2.0),
}


@pytest.mark.parametrize("name", THROUGH)
def test_read_along_to_the_next_convolution(name: str) -> None:
    before, after = wider(Net(THROUGH[name]))
    assert 6 in channels(before)
    if name != "one for each pixel":  # a mean of the channels reads those there are
        assert 6 not in channels(after) and "slice" not in kinds(after)
    assert 8 in channels(after)


def test_concatenations_are_of_whole_parts() -> None:
    def between(x: Tensor) -> Tensor:
        return torch.relu(torch.cat([x, F.max_pool2d(x, 3, 1, 1), x[:, :4] * 2, x], 1))

    before, after = wider(Net(between, 22))
    assert 22 in channels(before)
    # Four channels of the six are read as before, and so are the six.
    assert 28 in channels(after) and 22 not in channels(after)
    assert kinds(after).count("slice") == 2


def test_a_concatenation_that_is_returned_is_of_what_it_was() -> None:
    class Both(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            y = torch.cat([self.first(x), self.other(x)], 1)
            return y, self.last(torch.relu(y))

    before, after = wider(Both(torch.relu, 12))
    assert kinds(after).count("cat") == 2 and channels(after).count(16) == 2
    assert before.outputs[0].name in {node.name for node in after.nodes}


class Sliced(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, :6]


STAYS: dict[str, Between] = {
    "softmax": lambda x: x.softmax(1),
    "by channels": lambda x: 1 / (x.abs() + 1),
    "channels are padded": lambda x: F.pad(x, (0, 0, 0, 0, 1, 1))[:, 1:7],
    "turned": lambda x: x.transpose(2, 3).flip(1),
    "times infinity": lambda x: F.hardtanh(x * float("inf")),
    "by zero": lambda x: F.hardtanh(x / 0.0),
    "times infinities": lambda x: torch.sigmoid(x * torch.full((1, 1, 9, 9), float("inf"))),
    "near the end of fp16": lambda x: (x + 300) * 2500,
}


@pytest.mark.parametrize("name", STAYS)
def test_cut_away_where_others_count(name: str) -> None:
    _, after = wider(Net(STAYS[name]))
    assert "slice" in kinds(after)


class Of(nn.Module):
    """A function of some layers and inputs."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*self.layers, *inputs)


LINES = nn.Conv1d(3, 6, 1), nn.Conv1d(6, 8, 1)
OTHER_AXES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "a pool of lines takes them for images": (
        Of(lambda a, b, x: b(F.avg_pool2d(a(x) + 1, 3, 1, 1)), *LINES),
        (torch.randn(2, 3, 9),),
    ),
    "the largest of them": (
        Of(lambda a, b, x: b(F.max_pool2d(-a(x).abs() - 1, 3, 1, 1)), *LINES),
        (torch.randn(2, 3, 9),),
    ),
    "as many images as channels": (
        Of(
            lambda a, b, x: b(a(x) * torch.tensor([2.0, 3.0]).view(2, 1, 1, 1, 1)),
            *(nn.Conv2d(3, 6, 3), nn.Conv3d(6, 8, 3)),
        ),
        (torch.randn(6, 3, 9, 9),),
    ),
    "images and lines": (
        Of(
            lambda a, b, c, x, y: c(a(x) + b(y)),
            *(nn.Conv2d(3, 6, 1), nn.Conv1d(3, 6, 1), nn.Conv2d(6, 8, 1)),
        ),
        (torch.randn(2, 3, 6, 9), torch.randn(1, 3, 9)),
    ),
    "lines": (
        Of(lambda a, b, x: b(F.pad(F.silu(a(x)), (1, 2))), *LINES),
        (torch.randn(2, 3, 9),),
    ),
}


@pytest.mark.parametrize("name", OTHER_AXES)
def test_what_has_other_axes_than_images(name: str) -> None:
    model, inputs = OTHER_AXES[name]
    before = simple(captured(model, *inputs))
    equal(before, simple(apply_all(before, channel_padding.RULES)))


PLACED: dict[str, Between] = {
    "read by strides": lambda x: x.as_strided((12, 9, 9), (81, 9, 1), 0) * 1,
    "a view of it is returned": lambda x: x.transpose(2, 3),
    "returned as rows": lambda x: x.view(2, -1),
}


@pytest.mark.parametrize("name", PLACED)
def test_elements_stay_where_somebody_counts_on_them(name: str) -> None:
    """Of a network that has zeros at its end, and cuts them away."""
    layer = nn.Conv2d(3, 8, 1)
    with torch.no_grad():
        layer.weight[6:], layer.bias[6:] = 0.0, 0.0  # type: ignore[index]
    model = Of(lambda a, x: PLACED[name](torch.relu(a(x)[:, :6])), layer)
    before = captured(model, torch.randn(2, 3, 9, 9))
    after = equal(before, simplify(before, Stepper(Trace()), Options(), "cpu"))
    assert types(after)[after.outputs[0].name] == types(before)[before.outputs[0].name]


TEXT = """
graph g {
  input %x: f32[1,3,5,5]
  input %given: f32[1,8,5,5]
  const %w: f32[8,3,1,1] = w
  const %v: f32[4,6,1,1] = v
  %c: f32[1,8,5,5] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  %d: f32[1,8,5,5] = aten.exp.default(%c)
  %s: f32[1,6,5,5]{200,25,5,1} = aten.slice.Tensor(%c, 1, 0, 6)
  %y: f32[1,4,5,5] = aten.convolution.default(%s, %v, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
  return %y
}"""  # noqa: E501


def ending(graph: Graph, rows: int) -> Graph:
    """The graph, the weight of its first convolution with zeros from that row on."""
    w, *rest = graph.constants
    assert w.value is not None
    value = w.value.clone()
    value[rows:] = 0
    return replace(graph, constants=(replace(w, value=value), *rest))


def test_only_of_what_is_known_to_be_zeros() -> None:
    graph = read(TEXT)
    assert zeros(graph, Trace()) is graph, "the last two channels are no zeros"
    assert zeros(ending(graph, 7), Trace()).nodes == ending(graph, 7).nodes
    after = equal(ending(graph, 6), zeros(ending(graph, 6), Trace()))
    assert kinds(after) == ["convolution", "constant_pad_nd", "convolution"]
    for other in ("%d", "%given"):  # may be anything, whatever the weights of %c are
        graph = ending(read(TEXT.replace("(%c, 1", f"({other}, 1")), 6)
        assert zeros(graph, Trace()) is graph


def test_slices_that_leave_out_a_vector_or_begin_later_stay() -> None:
    for bounds, shape in (("0, 4", 4), ("2, 8", 6)):
        text = TEXT.replace("1, 0, 6)", f"1, {bounds})")
        text = text.replace("f32[1,6,5,5]{", f"f32[1,{shape},5,5]{{")
        graph = ending(read(text.replace("f32[4,6,1,1]", f"f32[4,{shape},1,1]")), shape)
        assert zeros(graph, Trace()) is graph

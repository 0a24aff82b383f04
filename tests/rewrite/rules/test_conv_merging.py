"""Convolutions of one input that a wider view makes one: with dilated kernels."""

from __future__ import annotations

import torch
from tests.rewrite.graphs import captured, equal
from torch import Tensor, nn

from anabranch.ir.graph import Graph
from anabranch.ir.pass_runner import Stepper
from anabranch.options import Options
from anabranch.rewrite.apply import apply
from anabranch.rewrite.match import matches
from anabranch.rewrite.rules import ALL
from anabranch.rewrite.rules.conv_windows import ConvWindow, together
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Trace


class Branches(nn.Module):
    """Convolutions of one input, an activation behind each, concatenated."""

    def __init__(self, *convolutions: nn.Module) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([convolution(x).relu() for convolution in self.convolutions], 1)


def conv(n: int, k: int, dilation: int = 1) -> nn.Module:
    padding = (k // 2) * dilation
    return nn.Conv2d(8, n, k, padding=padding, dilation=dilation)


def convolutions(graph: Graph) -> int:
    return sum(node.op == "aten.convolution.default" for node in graph.nodes)


def test_dilated_ones_become_one() -> None:
    model = Branches(conv(8, 1), conv(8, 3, dilation=2))
    graph = captured(model, torch.rand(2, 8, 9, 9))
    (match, rule), *_ = (
        (match, rule)
        for rule in ALL
        if rule.name.startswith("cat(relu(conv(x, w, b)), relu(")
        for match in matches(graph, rule)
    )
    after = equal(graph, apply(graph, rule, match), tolerance=1e-9)
    assert (convolutions(graph), convolutions(after)) == (2, 1)
    simple = simplify(after, Stepper(Trace()), Options())
    assert convolutions(simple) == 1 and len(simple.nodes) < len(graph.nodes) + 8


def test_one_tap_may_have_any_dilation() -> None:
    one = ConvWindow((1, 1), (0, 0), (1, 1))
    wide = ConvWindow((1, 1), (2, 2), (2, 2))
    both = together((9, 9), [((1, 1), one), ((3, 3), wide)])
    assert both == (wide, [((1, 1), (1, 1)), ((0, 0), (0, 0))])
    assert together((9, 9), [((3, 3), wide), ((1, 1), one)]) == (wide, both[1][::-1])
    three = ConvWindow((1, 1), (1, 1), (1, 1))
    assert "is no part" in str(together((9, 9), [((3, 3), three), ((3, 3), wide)]))
    shifted = ConvWindow((1, 1), (0, 1), (1, 1))
    assert "less a multiple" in str(together((9, 9), [((1, 1), shifted), ((3, 3), wide)]))
    along = ConvWindow((1, 1), (0, 2), (5, 2))
    assert together((9, 9), [((1, 3), along), ((3, 3), wide)]) == (
        wide,
        [((1, 1), (0, 0)), ((0, 0), (0, 0))],
    )

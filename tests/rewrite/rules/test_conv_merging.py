"""Convolutions of one input that a wider view makes one: with groups, and with dilated kernels."""

from __future__ import annotations

import pytest
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


def conv(n: int, k: int, groups: int = 1, dilation: int = 1) -> nn.Module:
    padding = (k // 2) * dilation
    return nn.Conv2d(8, n, k, padding=padding, groups=groups, dilation=dilation)


def convolutions(graph: Graph) -> int:
    return sum(node.op == "aten.convolution.default" for node in graph.nodes)


GROUPS = "cat(relu(conv(x, w, b)) of g groups, ...)"

CASES = {
    "groups": (GROUPS, [conv(8, 3, groups=4) for _ in range(3)]),
    "sizes": (GROUPS, [conv(8, 3, groups=4), conv(8, 5, groups=4)]),
    "channels": (GROUPS, [conv(8, 3, groups=2), conv(16, 3, groups=2)]),
    "one tap": (GROUPS, [conv(8, 1, groups=4) for _ in range(2)]),
    "depthwise, two channels each": (GROUPS, [conv(16, 3, groups=8) for _ in range(3)]),
    "dilated": ("cat(relu(conv(x, w, b)), relu(", [conv(8, 1), conv(8, 3, dilation=2)]),
}


@pytest.mark.parametrize("case", CASES)
def test_all_become_one(case: str) -> None:
    left, members = CASES[case]
    model = Branches(*members)
    graph = captured(model, torch.rand(2, 8, 9, 9))
    (match, rule), *_ = (
        (match, rule)
        for rule in ALL
        if rule.name.startswith(left)
        for match in matches(graph, rule)
    )
    after = equal(graph, apply(graph, rule, match), tolerance=1e-9)
    assert (convolutions(graph), convolutions(after)) == (len(members), 1)
    simple = simplify(after, Stepper(Trace()), Options())
    assert convolutions(simple) == 1 and len(simple.nodes) < len(graph.nodes) + 8


def test_a_merged_depthwise_convolution_merges_once_more() -> None:
    """Two give one of two channels a group, which is one of several groups like the third."""
    graph = captured(Branches(*(conv(8, 3, groups=8) for _ in range(3))), torch.rand(1, 8, 6, 6))
    (rule,) = (r for r in ALL if r.name.startswith("conv(x, w, b), conv(x, v, c) of g groups"))
    for left in (2, 1):
        graph = equal(graph, apply(graph, rule, next(matches(graph, rule))), tolerance=1e-9)
        assert convolutions(graph) == left


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

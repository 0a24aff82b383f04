"""What an activation gave stands for what it read, to the bit."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.activation_results import activation_results
from anabranch.trace import Trace

CLIP = ("hardtanh.default(%z, 0.0, 6.0)", "hardtanh_backward.default(%d, %z, 0.0, 6.0)")
LEAKY = ("leaky_relu.default(%z, 0.1)", "leaky_relu_backward.default(%d, %z, 0.1, False)")


def layer(forward: str, backward: str, first: bool = True) -> Graph:
    lines = [f"%y: f32[64] = aten.{forward}", f"%g: f32[64] = aten.{backward}"]
    body = "\n".join(f"      {line}" for line in (lines if first else lines[::-1]))
    return parse_graph(
        f"graph g {{\n      input %z: f32[64]\n      input %d: f32[64]\n{body}\n"
        "      return %y, %g\n    }"
    )


@pytest.mark.parametrize("pair", [CLIP, LEAKY], ids=["hardtanh", "leaky relu"])
def test_a_gradient_reads_the_result(pair: tuple[str, str]) -> None:
    graph = layer(*pair)
    made = activation_results(graph, Trace())
    verify_graph(made)
    assert made.nodes[-1].uses == ("d", "y"), "z need not be kept"
    z = torch.randn(64) * 4
    z[:8] = torch.tensor([0.0, -0.0, 6.0, 1e-45, -1e-45, torch.inf, -torch.inf, torch.nan])
    inputs = [z, torch.randn(64)]
    for found, want in zip(eval_graph(made, inputs), eval_graph(graph, inputs), strict=True):
        assert torch.equal(found.nan_to_num(9.0), want.nan_to_num(9.0))
    assert activation_results(made, Trace()) is made


@pytest.mark.parametrize(
    "pair",
    [
        (CLIP[0], "hardtanh_backward.default(%d, %z, 0.0, 5.0)"),
        ("leaky_relu.default(%z, -0.1)", "leaky_relu_backward.default(%d, %z, -0.1, False)"),
        ("relu.default(%z)", CLIP[1]),
    ],
    ids=["other bounds", "a slope that turns signs", "another activation"],
)
def test_what_another_function_gave_does_not_stand_for_it(pair: tuple[str, str]) -> None:
    graph = layer(*pair)
    assert activation_results(graph, Trace()) is graph
    late = layer(*CLIP, first=False)
    assert activation_results(late, Trace()) is late, "it is not there yet"

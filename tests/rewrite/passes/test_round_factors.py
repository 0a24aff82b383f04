"""Constant factors in tf32: rounded once, to nearest, where nobody reads them otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.kernels.triton.bodies import gpu
from tests.rewrite.graphs import error, read

from anabranch.ir.graph import Graph, Ref
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.verify import verify_graph
from anabranch.kernels.triton.codegen import program, variants
from anabranch.options import Options
from anabranch.rewrite import simplify
from anabranch.rewrite.passes.round_factors import ERROR, nearest, round_factors
from anabranch.trace import Trace

NET = """
graph g {
  input %x: f32[2,8,6,6]
  const %w: f32[16,8,3,3] = w
  const %b: f32[16] = b
  const %v: f32[10,16] = v
  %c: f32[2,16,6,6] = aten.convolution.default(%x, %w, %b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
  %m: f32[2,16] = aten.mean.dim(%c, [2, 3])
  %y: f32[2,10] = aten.linear.default(%m, %v, None)
  return %y
}"""


def bits(value: torch.Tensor) -> set[int]:
    return set((value.contiguous().view(torch.int32) & 0x1FFF).flatten().tolist())


def test_factors_are_rounded_and_biases_are_not() -> None:
    graph = read(NET)
    after = round_factors(graph, Trace())
    verify_graph(after)
    w, b, v = after.constants
    assert w.value is not None and v.value is not None and bits(w.value) == bits(v.value) == {0}
    assert b is graph.constants[1] and w.digest != graph.constants[0].digest
    assert 0 < error(graph, after) < 2 * ERROR
    assert round_factors(after, Trace()) is after


def test_to_the_nearest_and_without_bias() -> None:
    value = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    off = (nearest(value) - value) / value
    cut = ((value.view(torch.int32) & -0x2000).view(torch.float32) - value) / value
    assert off.abs().max() <= ERROR and abs(float(off.mean())) < 1e-6
    assert float(cut.mean()) < -2e-4  # what is cut off is too small on the whole
    odd = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.4028e38])
    assert torch.equal(nearest(odd)[:2], odd[:2]) and nearest(odd)[2].isnan()
    assert nearest(odd[3:5]).view(torch.int32).tolist() == odd[3:5].view(torch.int32).tolist()


def test_strides_stay() -> None:
    value = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    assert nearest(value).stride() == value.stride()


@pytest.mark.parametrize(
    "change",
    [
        ("return %y", "%r: f32[16,8,3,3] = aten.relu.default(%w)\n  return %y, %r"),
        ("return %y", "return %y, %w"),
        ("f32", "f16"),
    ],
)
def test_what_others_read_stays(change: tuple[str, str]) -> None:
    graph = read(NET.replace(*change))
    after = round_factors(graph, Trace())
    assert after.constants[0] is graph.constants[0]


TIED = """
graph g {
  input %i: i64[3]
  const %e: f32[11,8] = e
  %x: f32[3,8] = aten.embedding.default(%e, %i)
  %t: f32[8,11] {1,8} = aten.t.default(%e)
  %y: f32[3,11] = aten.mm.default(%x, %t)
  %z: f32[3,11] = aten.relu.default(%y)
  return %z
}"""


def test_a_tied_weight_is_read_as_a_rounded_copy() -> None:
    graph = read(TIED)
    after = round_factors(graph, Trace())
    verify_graph(after)
    e, copy = after.constants
    assert e is graph.constants[0] and copy.value is not None and bits(copy.value) == {0}
    assert [node.op.split(".")[1] for node in after.nodes] == ["embedding", "t", "t", "mm", "relu"]
    assert after.nodes[0].uses[0] == e.name and after.nodes[2].uses == (copy.name,)
    assert after.nodes[3].uses[1] == after.nodes[2].name
    assert 0 < error(graph, after) < 2 * ERROR
    assert round_factors(after, Trace()) is after


def test_a_weight_behind_a_view_is_rounded_in_place() -> None:
    text = NET.replace("const %v: f32[10,16] = v", "const %v: f32[16,10] = v")
    text = text.replace(
        "  %y: f32[2,10] =", "  %t: f32[10,16] {1,10} = aten.t.default(%v)\n  %y: f32[2,10] ="
    )
    graph = read(text.replace("(%m, %v, None)", "(%m, %t, None)"))
    after = round_factors(graph, Trace())
    verify_graph(after)
    v = after.constants[2].value
    assert v is not None and bits(v) == {0} and len(after.constants) == 3
    assert [node.name for node in after.nodes] == [node.name for node in graph.nodes]


def test_depthwise_weights_stay() -> None:
    """They are multiplied in fp32."""
    text = NET.replace("f32[16,8,3,3]", "f32[16,1,3,3]").replace("[0, 0], 1)", "[0, 0], 8)")
    graph = read(text)
    assert round_factors(graph, Trace()).constants[0] is graph.constants[0]


@pytest.mark.parametrize(
    "options, rounded",
    [
        (Options(tf32=True), True),
        (Options(), False),
        (Options(tf32=True, kernels="library"), False),
    ],
)
def test_where_it_runs(options: Options, rounded: bool) -> None:
    graph = read(NET)
    after = simplify(graph, Stepper(Trace(), check=2), options, "cuda")
    assert (bits(_weight(after)) == {0}) == rounded


def test_kernels_round_what_is_computed_and_no_constant() -> None:
    conv = _alone(read(NET))
    spec = replace(gpu(), tf32=True)
    offered = [v for v in variants(conv, spec) if str(v).endswith(".tf32")]
    assert offered
    for variant in offered:
        text = program(conv, variant).text
        dots = [line for line in text.splitlines() if "tl.dot(" in line]
        assert dots and text.count("nearest_tf32(") == 1 + len(dots)  # its definition, and x


def _alone(graph: Graph) -> Graph:
    w, b, _ = graph.constants
    node = graph.nodes[0]
    return Graph("conv", graph.inputs, (w, b), (node,), (Ref(node.name),))


def _weight(graph: Graph) -> torch.Tensor:
    value = next(c.value for c in graph.constants if len(c.type.shape) == 4)
    assert value is not None
    return value

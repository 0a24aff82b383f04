from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.text import parse_graph, text_graph
from anabranch.rewrite.passes.affine_batch_norm import affine_batch_norm
from anabranch.rewrite.passes.fold_batch_norm import fold_batch_norm
from anabranch.trace import Trace

NORM = "aten.batch_norm.default(%c, %g, %b, %m, %v, False, 0.1, 1e-05, True)"
TEXT = f"""
graph g {{
  input %x: f16[1,4,5,5]
  const %w: f16[4,4,1,1] = w
  const %g: f16[4] = g
  const %b: f16[4] = b
  const %m: f16[4] = m
  const %v: f16[4] = v
  %c: f16[1,4,5,5] = aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)    # net.py:1
  %n: f16[1,4,5,5] = {NORM}    # net.py:2
  return %n
}}"""  # noqa: E501


def folded(graph: Graph, trace: Trace, exact: bool = False) -> Graph:
    """Both passes, as they stand one behind the other."""
    return affine_batch_norm(fold_batch_norm(graph, trace, exact), trace)


def test_one_graph_before_and_after() -> None:
    """Folded in single precision, cast back; the convolution keeps its name and both origins."""
    after = equal(read(TEXT), folded(read(TEXT), Trace()), tolerance=2e-3)
    lines = [line.partition("    #")[0] for line in text_graph(after).splitlines()]
    assert lines[7:-2] == [
        "  %to_copy: f32[4] = aten._to_copy.default(%v, dtype=torch.float32)",
        "  %to_copy_1: f32[4] = aten._to_copy.default(%m, dtype=torch.float32)",
        "  %add: f32[4] = aten.add.Tensor(%to_copy, 1e-05)",
        "  %rsqrt: f32[4] = aten.rsqrt.default(%add)",
        "  %to_copy_2: f32[4] = aten._to_copy.default(%g, dtype=torch.float32)",
        "  %mul: f32[4] = aten.mul.Tensor(%rsqrt, %to_copy_2)",
        "  %mul_1: f32[4] = aten.mul.Tensor(%to_copy_1, %mul)",
        "  %to_copy_3: f32[4] = aten._to_copy.default(%b, dtype=torch.float32)",
        "  %sub: f32[4] = aten.sub.Tensor(%to_copy_3, %mul_1)",
        "  %to_copy_4: f32[4,4,1,1] = aten._to_copy.default(%w, dtype=torch.float32)",
        "  %reshape: f32[4,1,1,1] = aten.reshape.default(%mul, [4, 1, 1, 1])",
        "  %w_folded: f32[4,4,1,1] = aten.mul.Tensor(%to_copy_4, %reshape)",
        "  %w_folded_1: f16[4,4,1,1] = aten._to_copy.default(%w_folded, dtype=torch.float16)",
        "  %c_bias: f16[4] = aten._to_copy.default(%sub, dtype=torch.float16)",
        "  %c: f16[1,4,5,5] = aten.convolution.default(%x, %w_folded_1, %c_bias, [1, 1], [0, 0], "
        "[1, 1], False, [0, 0], 1)",
    ]
    assert after.nodes[-1].origin == "net.py:1 + net.py:2"


def test_a_norm_without_a_bias_adds_zero() -> None:
    """The library's kernel does, so that no -0.0 comes out where the mean is 0."""
    graph = parse_graph(
        f"""
graph g {{
  input %c: f32[2,4,1,1]
  const %m: f32[4] = m
  const %v: f32[4] = v
  %n: f32[2,4,1,1] = {NORM.replace("%g, %b", "None, None")}
  return %n
}}"""
    )
    values = (torch.zeros(4), torch.ones(4))
    held = (replace(c, value=v) for c, v in zip(graph.constants, values, strict=True))
    graph = replace(graph, constants=tuple(held))
    x = torch.full((2, 4, 1, 1), -0.0)
    (before,), (after,) = (eval_graph(g, [x]) for g in (graph, folded(graph, Trace())))
    assert not before.signbit().any() and not after.signbit().any()


def test_exactly_no_weight_of_half_precision_changes() -> None:
    """The map is taken in single precision behind the convolution, whose weight is the model's."""
    trace = Trace()
    after = equal(read(TEXT), folded(read(TEXT), trace, exact=True), tolerance=1e-12)
    assert kinds(after)[0] == "convolution" and after.nodes[0].args[1] == Ref("w")
    assert kinds(after)[-2:] == ["addcmul", "_to_copy"]
    assert [node.type.dtype for node in after.nodes[-2:]] == [torch.float32, torch.float16]
    assert [event.why for event in trace.events] == ["a weight of half precision would be rounded"]
    wide = read(TEXT.replace("f16", "f32"))
    assert folded(wide, Trace(), exact=True) == folded(wide, Trace())


def refusals(text: str) -> tuple[list[str], list[str]]:
    trace = Trace()
    after = folded(read(text), trace)
    said = [f"{event.what}: {event.why}" for event in trace.events if event.kind == "refused"]
    return kinds(after), said


def test_statistics_of_the_batch_and_inputs_stay() -> None:
    after, said = refusals(TEXT.replace("False, 0.1", "True, 0.1"))
    assert after == ["convolution", "batch_norm"]
    assert said == ["map %n by constants: it normalises by the statistics of the batch"]
    after, said = refusals(TEXT.replace("const %m: f16[4] = m", "input %m: f16[4]"))
    assert said == ["map %n by constants: its running_mean %m is not constant"]


def test_a_weight_that_the_caller_gives_takes_no_factor() -> None:
    after, said = refusals(TEXT.replace("const %w: f16[4,4,1,1] = w", "input %w: f16[4,4,1,1]"))
    assert said == ["fold %n into %c: its weight %w is not constant"]
    assert after[0] == "convolution" and after[-2:] == ["addcmul", "_to_copy"]


def test_an_affine_map_of_its_own_is_rounded_once() -> None:
    """Factor and term stay in single precision: what rounds is the result, as in the model."""
    text = TEXT.replace("const %w: f16[4,4,1,1] = w", "input %w: f16[4,4,1,1]")
    after = equal(read(text), folded(read(text), Trace()), tolerance=1e-12)
    assert [node.type.dtype for node in after.nodes[-2:]] == [torch.float32, torch.float16]


def test_a_value_joined_twice_takes_no_factor_twice() -> None:
    text = TEXT.replace("%n:", "%k: f16[1,8,5,5] = aten.cat.default([%c, %c], 1)\n  %n:")
    text = text.replace("default(%c, %g", "default(%k, %g").replace("%n: f16[1,4,", "%n: f16[1,8,")
    for name in "gbmv":
        text = text.replace(f"%{name}: f16[4]", f"%{name}: f16[8]")
    _, said = refusals(text)
    assert said == ["fold %n into %k: it joins a value twice"]
    equal(read(text), folded(read(text), Trace()), tolerance=2e-3)


MOVED = """
graph g {{
  input %x: f32[2,3,6]
  const %w: f32[4,6] = w
  const %u: f32[4,3,1] = u
  const %g: f32[4] = g
  const %b: f32[4] = b
  const %m: f32[4] = m
  const %v: f32[4] = v
  {}
  %n: f32{} = aten.batch_norm.default(%c, %g, %b, %m, %v, False, 0.1, 1e-05, True)
  %r: f32{} = aten.relu.default(%n)
  return %r
}}"""
LINEAR = "%y: f32[2,3,4] = aten.linear.default(%x, %w)"
CONVOLVED = "%y: f32[2,4,6] = aten.convolution.default(%x, %u, None, [1], [0], [1], False, [0], 1)"
WAYS = {
    "rows together": ((LINEAR, "%c: f32[6,4] = aten.reshape.default(%y, [6, 4])"), "[6,4]"),
    "turned": ((LINEAR, "%c: f32[2,4,3]{12,1,4} = aten.transpose.int(%y, 1, 2)"), "[2,4,3]"),
    "turned, and copied": (
        (
            LINEAR,
            "%t: f32[2,4,3]{12,1,4} = aten.permute.default(%y, [0, -1, 1])",
            "%k: f32[2,4,3] = aten.clone.default(%t, memory_format=torch.contiguous_format)",
            "%c: f32[2,4,3,1] = aten.reshape.default(%k, [2, 4, 3, 1])",
        ),
        "[2,4,3,1]",
    ),
    "pixels in two axes": (
        (CONVOLVED, "%c: f32[2,4,2,3] = aten.reshape.default(%y, [2, 4, 2, 3])"),
        "[2,4,2,3]",
    ),
}
OTHERWISE = {
    "elsewhere": (
        (CONVOLVED, "%c: f32[12,4] = aten.reshape.default(%y, [12, 4])"),
        "[12,4]",
        "",
    ),
    "pixels": (
        (
            CONVOLVED,
            "%t: f32[2,6,4]{24,1,6} = aten.transpose.int(%y, 1, 2)",
            "%c: f32[2,4,6] = aten.reshape.default(%t, [2, 4, 6])",
        ),
        "[2,4,6]",
        "",
    ),
    "rows": (
        (
            "%q: f32[2,4,6] = aten.reshape.default(%z, [2, 4, 6])",
            "%c: f32[2,4,4] = aten.linear.default(%q, %w)",
        ),
        "[2,4,4]",
        "the channels of the norm are not the columns of the linear",
    ),
    "read as it was": (
        (LINEAR, "%c: f32[6,4] = aten.reshape.default(%y, [6, 4])"),
        "[6,4]",
        "%y is also read elsewhere (1 more)",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_through_what_moves_whole_channels(way: str) -> None:
    lines, shape = WAYS[way]
    text = MOVED.format("\n  ".join(lines), shape, shape)
    after = equal(read(text), folded(read(text), Trace()), tolerance=1e-12)
    moves = kinds(read(text))[: len(lines)]
    assert [node.name for node in after.nodes[-len(lines) - 1 : -1]] == [
        line[1 : line.index(":")] for line in lines
    ]
    assert kinds(after)[-len(lines) - 1 :] == [*moves, "relu"]
    assert "addcmul" not in kinds(after)


def test_a_norm_behind_a_moved_norm() -> None:
    """The first is in the convolution, the second stays a map of its own."""
    lines = (
        CONVOLVED,
        "%f: f32[2,4,6] = aten.batch_norm.default(%y, %g, %b, %m, %v, False, 0.1, 1e-05, True)",
        "%c: f32[2,4,2,3] = aten.reshape.default(%f, [2, 4, 2, 3])",
    )
    text = MOVED.format("\n  ".join(lines), "[2,4,2,3]", "[2,4,2,3]")
    after = equal(read(text), folded(read(text), Trace()), tolerance=1e-12)
    assert "batch_norm" not in kinds(after)
    assert [kind for kind in kinds(after) if kind in ("convolution", "addcmul", "relu")] == [
        *("convolution", "addcmul", "relu")
    ]


@pytest.mark.parametrize("way", OTHERWISE)
def test_not_where_channels_are_not_those_of_the_weights(way: str) -> None:
    lines, shape, why = OTHERWISE[way]
    text = MOVED.format("\n  ".join(lines), shape, shape)
    text = text.replace("  const %w", "  input %z: f32[2,2,12]\n  const %w", 1)
    if way == "read as it was":
        text = text.replace("return %r", "return %r, %y")
    trace = Trace()
    after = equal(read(text), folded(read(text), trace), tolerance=1e-12)
    assert kinds(after)[-2:] == ["addcmul", "relu"]
    said = [event.why for event in trace.events if event.kind == "refused"]
    assert said == [why] * bool(why)

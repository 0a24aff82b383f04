"""Calls whose kernels would read beyond their operands are told from those that models make."""

from __future__ import annotations

import pytest

from anabranch.artifact.argument_checks import why_not
from anabranch.ir.graph import types
from anabranch.ir.text import parse_graph

VALUES = """
  input %x: f32[2,16,8,8]
  input %p: f32[2,16,4,4]
  input %q: f64[2,16,4,4]
  input %c: f32[16]
  input %d: f32[3]
  input %z: c64[2,5]
  input %s: f32[9,8]
  input %y0: f32[16,8,8]
  input %r: f32[3,8]
  input %h: f16[3,8]
  input %at: i64[3]
  input %m: b1[9]
"""
NORM = "aten._native_batch_norm_legit_no_training.default(%x, {}, None, %c, %c, 0.1, 1e-05)"
GROUPS = "aten.native_group_norm.default(%x, {}, None, 2, 16, {}, {}, 1e-05)"
AVERAGES = "aten.avg_pool2d_backward.default(%p, %x, {}, [2, 2], [0, 0], False, True, None)"
SIZED = "aten.upsample_nearest2d.vec(%x, None, [{}, 2.0])"


@pytest.mark.parametrize(
    ("type", "call", "sound"),
    [
        ("f32[2,16,8,8]", NORM.format("%c"), True),
        ("f32[2,16,8,8]", NORM.format("%d"), False),  # a weight for three of sixteen channels
        ("f32[2,16,8,8]", GROUPS.format("%c", 64, 4), True),
        ("f32[2,16,8,8]", GROUPS.format("%c", 64, 5), False),  # channels that make no groups
        ("f32[2,16,8,8]", GROUPS.format("%c", 65, 4), False),
        ("f32[2,16,16,16]", SIZED.format("2.0"), True),
        ("f32[2,16,16,16]", SIZED.format("1e-300"), False),
        ("f32[2,16,8,8]", AVERAGES.format([2, 2]), True),
        ("f32[2,16,8,8]", AVERAGES.format([4, 4]), False),  # which has three places in a row
        ("f32[2,16,8,8]", AVERAGES.format([0, 0]), False),
        ("f32[2,16,8,8]", AVERAGES.replace("%p", "%q").format([2, 2]), False),  # other numbers
        ("f32[]", "aten.mse_loss.default(%x, %x, 2)", True),
        ("f32[]", "aten.mse_loss.default(%x, %x, 3)", False),
        ("f32[2,16,8,8]", "aten.relu.default(%x)", True),
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 0, -3, 99)", True),
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 0, 1, 9, 3)", True),
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 0, 7, 9)", False),  # one row too many
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 0, 1, 9, 4)", False),
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 0, 2, 9, -1)", False),
        ("f32[9,8]", "aten.slice_scatter.default(%s, %r, 2, 0, 3)", False),
        ("f32[2,16,8,8]", "aten.select_scatter.default(%x, %y0, 0, -1)", True),
        ("f32[2,16,8,8]", "aten.select_scatter.default(%x, %y0, 0, 2)", False),
        ("f32[9,8]", "aten.select_scatter.default(%s, %r, 0, 1)", False),
        ("f32[9,8]", "aten.index_copy.default(%s, 0, %at, %r)", True),
        ("f32[9,8]", "aten.index_copy.default(%s, 0, %c, %r)", False),  # places with fractions
        ("f32[9,8]", "aten.index_copy.default(%s, 0, %at, %h)", False),
        ("f32[9,8]", "aten.index_put.default(%s, [%at], %r)", True),
        ("f32[9,8]", "aten.index_put.default(%s, [%m], %r)", True),
        ("f32[9,8]", "aten.index_put.default(%s, [%at, %at], %r)", False),
        ("f32[9,8]", "aten.index_put.default(%s, [%at, %at, %at], %r)", False),
        ("f32[9,8]", "aten.index_put.default(%s, [%at], %h)", False),
    ],
)
def test_a_call_fits_its_operands_or_is_refused(type: str, call: str, sound: bool) -> None:
    result = f"%y: {type}, %y.1: f32[0], %y.2: f32[0]" if "norm" in call else f"%y: {type}"
    graph = parse_graph(f"graph g {{{VALUES}  {result} = {call}\n  return %y\n}}")
    assert bool(why_not(graph.nodes[0], types(graph))) is not sound

"""States that hold no negative number, whatever calls are given."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.never_negative import never_negative
from anabranch.ir.text import parse_graph

MOMENTS = """
graph adam {
  input %g: f32[4]
  state %m: f32[4] -> %m1
  state %v: f32[4] -> %v1
  state %top: f32[4] -> %top1
  %a: f32[4] = aten.mul.Tensor(%m, 0.9)
  %b: f32[4] = aten.mul.Tensor(%g, 0.1)
  %m1: f32[4] = aten.add.Tensor(%a, %b)
  %c: f32[4] = aten.mul.Tensor(%v, 0.999)
  %v1: f32[4] = aten.addcmul.default(%c, %g, %g, value=SCALE)
  %top1: f32[4] = aten.maximum.default(%top, %v1)
  return %m1, %v1, %top1
}"""


@pytest.mark.parametrize(
    ("scale", "first", "expected"),
    [
        ("0.001", 0.0, {"v", "top"}),
        ("-0.001", 0.0, {"top"}),  # the largest of what it was, which was not negative, and another
        ("0.001", -1.0, set()),
    ],
)
def test_moments_of_adam(scale: str, first: float, expected: set[str]) -> None:
    graph = parse_graph(MOMENTS.replace("SCALE", scale))
    held = {"m": torch.zeros(4), "v": torch.zeros(4), "top": torch.ones(4)}
    held["v"][2] = held["top"][1] = first
    assert never_negative(graph, held) == expected


def test_types_that_torch_does_not_compare_are_passed_over() -> None:
    text = """
graph cache {
  input %x: f8e4m3[2]
  state %k: f8e4m3[2] -> %x
  return %x
}"""
    held = {"k": torch.zeros(2).to(torch.float8_e4m3fn)}
    assert never_negative(parse_graph(text), held) == frozenset()


def test_states_that_need_each_other() -> None:
    """Each is shown with what is assumed of the other; a difference breaks both."""
    text = """
graph two {{
  state %a: f32[2] -> %b1
  state %b: f32[2] -> %a1
  %b1: f32[2] = aten.add.Tensor(%b, 1)
  %a1: f32[2] = aten.{op}.Tensor(%a, %b)
  return %b1, %a1
}}"""
    held = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert never_negative(parse_graph(text.format(op="mul")), held) == {"a", "b"}
    assert never_negative(parse_graph(text.format(op="sub")), held) == frozenset()


def test_what_is_filled_is_as_its_number_is() -> None:
    """And not as the tensor whose shape it takes."""
    text = """
graph filled {
  state %a: f32[2] -> %b
  %b: f32[2] = aten.full_like.default(%a, -1.0)
  return %b
}"""
    assert never_negative(parse_graph(text), {"a": torch.zeros(2)}) == frozenset()

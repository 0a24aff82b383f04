"""Equality by random inputs: what is equal is found equal, and what is not is not."""

from __future__ import annotations

import pytest
import torch
from tests.rewrite.graphs import read

from anabranch.ir.graph import Graph
from anabranch.ir.types import TensorType
from anabranch.rewrite.prove import MOST_DRAWN, different, draw, integral, opened


def graph(*lines: str) -> Graph:
    head = "  input %x: f32[3,4]\n  input %y: f32[3,4]\n  const %w: f32[4] = w\n"
    body = "".join(f"  %{line}\n" for line in lines)
    return read(f"graph g {{\n{head}{body}  return %out\n}}")


SUM = graph("a: f32[3,4] = aten.add.Tensor(%x, %y)", "out: f32[3,4] = aten.mul.Tensor(%a, %w)")
SPREAD = graph(
    "a: f32[3,4] = aten.mul.Tensor(%x, %w)",
    "b: f32[3,4] = aten.mul.Tensor(%y, %w)",
    "out: f32[3,4] = aten.add.Tensor(%a, %b)",
)


def test_distributivity_is_exact_over_integers() -> None:
    assert integral(SUM) and integral(SPREAD)
    assert different(SUM, SPREAD) is None
    assert different(opened(SUM), opened(SPREAD)) is None


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (graph("out: f32[3,4] = aten.mul.Tensor(%x, %w)"), "result 0 differs by"),
        (graph("out: f32[3] = aten.sum.dim_IntList(%x, [1])"), "shape (3,), not (3, 4)"),
    ],
)
def test_unequal_graphs(wrong: Graph, why: str) -> None:
    assert why in str(different(SUM, wrong))


def test_a_small_factor_is_no_rounding() -> None:
    """Where numbers are not whole, what reordering explains is far below what a rule gets wrong."""
    first = graph(
        "a: f32[3,4] = aten.sigmoid.default(%x)", "out: f32[3,4] = aten.add.Tensor(%a, 0)"
    )
    second = graph(
        "a: f32[3,4] = aten.sigmoid.default(%x)", "out: f32[3,4] = aten.mul.Tensor(%a, 1.000001)"
    )
    assert not integral(first)
    assert "differs" in str(different(first, second))


def test_not_a_number_is_no_equality() -> None:
    nan = graph("a: f32[3,4] = aten.sub.Tensor(%x, %x)", "out: f32[3,4] = aten.div.Tensor(%a, %a)")
    assert "differs" in str(different(nan, nan))


def test_other_inputs_are_another_function() -> None:
    fewer = read("graph g {\n  input %x: f32[3,4]\n  return %x\n}")
    assert str(different(SUM, fewer)) == "they do not take the same inputs"


def test_what_holds_for_whole_numbers_only() -> None:
    """x*x is never less than x, unless x is between zero and one."""
    square = graph("out: f32[3,4] = aten.mul.Tensor(%x, %x)")
    largest = graph(
        "a: f32[3,4] = aten.mul.Tensor(%x, %x)", "out: f32[3,4] = aten.maximum.default(%a, %x)"
    )
    assert integral(square) and integral(largest)
    assert "on trial 3" in str(different(square, largest))


WHOLE = {
    "aten.addcmul.default(%x, %y, %w)": True,
    "aten.rsub.Tensor(%x, %y)": True,
    "aten.hardtanh.default(%x, 0, 6)": True,
    "aten.hardtanh.default(%x, -0.5, 0.5)": False,
    "aten.leaky_relu.default(%x)": False,
    "aten.mean.default(%x)": False,
}


@pytest.mark.parametrize("call", WHOLE)
def test_what_stays_whole(call: str) -> None:
    """Such operators give whole numbers for whole numbers, and others are not held to it."""
    one = graph(f"out: f32[{'' if 'mean' in call else '3,4'}] = {call}")
    assert integral(one) == WHOLE[call]


def test_a_large_tensor_repeats_what_was_drawn_for_it_and_is_no_other_when_moved() -> None:
    dice = torch.Generator().manual_seed(0)
    drawn = draw(TensorType((2048, 1500), torch.float32), dice)
    assert drawn.shape == (2048, 1500) and drawn.dtype == torch.float64
    assert torch.equal(drawn.flatten()[:5], drawn.flatten()[MOST_DRAWN : MOST_DRAWN + 5])
    for other in (drawn.roll(1, 0), drawn.roll(1, 1), drawn.flip(0), drawn.flip(1)):
        assert (other != drawn).float().mean() > 0.99
    whole = draw(TensorType((2048, 1500), torch.float16), dice, exact=True)
    assert whole.abs().max() == 3 and torch.equal(whole, whole.round())
    assert draw(TensorType((), torch.int64), dice).shape == ()

"""Domains: which numbers operators may read, and inputs that lie in them."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.domains import understood
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import legal, random_inputs
from anabranch.ir.text import parse_graph


def graph(*lines: str, more: str = "") -> Graph:
    return parse_graph(
        "graph g {\n  input %i: i64[40]\n  input %x: f32[40]\n  input %t: f32[6]\n"
        + more
        + "".join(f"  {line}\n" for line in lines)
        + "  return %out\n}"
    )


@pytest.mark.parametrize(
    "line",
    [
        "%out: f32[6] = aten.scatter_add.default(%t, 0, %i, %x)",
        "%out: f32[40] = aten.index.Tensor(%t, [%i])",
        "%out: f32[40] = aten.take.default(%t, %i)",
        "%out: f32[6] = aten.index_put.default(%t, [%i], %x, True)",
        "%out: f32[6] = aten.index_add.default(%t, 0, %i, %x)",
        "%out: i64[40] = aten.pow.Tensor_Tensor(%i, %i)",
        "%out: i64[40] = aten.bitwise_left_shift.Tensor(%i, %i)",
    ],
)
@pytest.mark.parametrize("numbers", ["plain", "finite", "special"])
def test_indices_reach_to_both_ends_and_no_further(line: str, numbers: str) -> None:
    body = graph(line)
    for seed in range(5):
        inputs = random_inputs(body, seed, numbers=numbers)  # type: ignore[arg-type]
        assert legal(body, inputs)
        eval_graph(body, inputs)
    if "%t" in line:
        assert inputs[0].max() == 5


@pytest.mark.parametrize("op", ["floor_divide.default", "remainder.Tensor", "fmod.Tensor"])
def test_integers_are_never_divided_by_zero(op: str) -> None:
    body = graph(
        "%j: i64[40] = aten.clone.default(%k)",
        f"%out: i64[40] = aten.{op}(%i, %j)",
        more="  input %k: i64[40]\n",
    )
    drawn = [random_inputs(body, seed, numbers="finite") for seed in range(5)]
    for inputs in drawn:
        eval_graph(body, inputs)
    tops = torch.cat([inputs[0] for inputs in drawn])
    assert tops.min() < 0 and tops.abs().max() > 1 << 20, "negative and large ones are drawn"


def test_what_is_overwritten_is_overwritten_once() -> None:
    body = parse_graph("""
graph g {
  input %t: f32[9]
  input %i: i64[7]
  input %x: f32[7]
  %out: f32[9] = aten.scatter.src(%t, 0, %i, %x)
  return %out
}""")
    _, i, _ = random_inputs(body, 3)
    assert len(set(i.tolist())) == 7


def test_finite_numbers_have_zeros_of_both_signs_and_denormals() -> None:
    body = graph("%out: f32[40] = aten.neg.default(%x)")
    x = torch.cat([random_inputs(body, seed, numbers="finite")[1] for seed in range(40)])
    zeros = x[x == 0]
    tiny = torch.finfo(torch.float32).smallest_normal
    assert x.isfinite().all() and {True, False} == set(zeros.signbit().tolist())
    assert ((x != 0) & (x.abs() < tiny)).any() and (x == x.round()).sum() > len(zeros)
    special = torch.cat([random_inputs(body, seed, numbers="special")[1] for seed in range(40)])
    assert (
        special.isnan().any() and special.isinf().any() and special.isfinite().float().mean() > 0.8
    )


@pytest.mark.parametrize(
    ("line", "known"),
    [
        ("%out: f32[40] = aten.add.Tensor(%x, %i)", True),
        ("%out: f32[6] = aten.scatter_add.default(%t, 0, %i, %x)", True),
        ("%out: f32[40] = aten.masked_scatter.default(%x, %m, %t)", False),
        ("%out: f32[40] = aten.repeat_interleave.Tensor(%i)", False),
    ],
)
def test_of_what_the_tables_lack_nobody_knows(line: str, known: bool) -> None:
    """As many elements as the mask has must be there: on a GPU it is the end if they are not."""
    assert understood(graph(line, more="  input %m: b1[40]\n")) is known


def test_rows_that_gradients_are_added_to_are_rows_of_the_table() -> None:
    body = parse_graph("""
    graph g {
      input %g: f32[40,3]
      input %i: i64[40]
      %out: f32[6,3] = aten.embedding_dense_backward.default(%g, %i, 6, -1, False)
      return %out
    }""")
    assert understood(body)
    for seed in range(5):
        inputs = random_inputs(body, seed)
        assert legal(body, inputs) and inputs[1].min() >= 0 and inputs[1].max() < 6


def test_places_of_maxima_are_only_those_that_a_pooling_gave() -> None:
    """Others lie in no window of their result, or in no memory."""
    body = parse_graph("""
    graph g {
      input %g: f32[1,1,2,2]
      input %x: f32[1,1,4,4]
      input %i: i64[1,1,2,2]
      %out: f32[1,1,4,4] = aten.max_pool2d_with_indices_backward.default(%g, %x, [2, 2], [2, 2], [0, 0], [1, 1], False, %i)
      return %out
    }""")  # noqa: E501
    assert not understood(body)

"""The oracle in higher precision, also where a user's operator has none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import anabranch
from anabranch.ir.eval import eval_graph
from anabranch.ir.text import parse_graph
from anabranch.ir.types import type_of


@torch.library.custom_op("anabranch_eval::single", mutates_args=())
def single(x: Tensor) -> Tensor:
    assert x.dtype == torch.float32, "for float32 alone"
    return x * 2


def test_an_operator_without_a_higher_precision_runs_in_its_own() -> None:
    graph = parse_graph("""
graph single {
  input %x: f32[3]
  %double: f32[3] = anabranch_eval.single.default(%x)
  %out: f32[3] = aten.add.Tensor(%double, %x)
  return %out
}""")
    x = torch.randn(3)
    (out,) = eval_graph(graph, [x], precision=torch.float64)
    assert out.dtype == torch.float64
    torch.testing.assert_close(out, 3 * x.double())


@pytest.mark.parametrize(
    ("source", "target", "shape"),
    [
        (torch.int32, torch.float32, "f32[4]"),  # bits that are numbers
        (torch.float16, torch.int16, "i16[4]"),
        (torch.float16, torch.float32, "f32[2]"),  # two in one
        (torch.float64, torch.float32, "f32[8]"),
    ],
)
def test_bits_are_those_of_the_models_own_numbers(
    source: torch.dtype, target: torch.dtype, shape: str
) -> None:
    x = (torch.rand(4) * 1e4).to(source)
    graph = parse_graph(f"""
graph bits {{
  input %x: {type_of(x).text}
  %bits: {shape} = aten.view.dtype(%x, {target})
  return %bits
}}""")
    (out,) = eval_graph(graph, [x], precision=torch.float64)
    torch.testing.assert_close(out, x.view(target).to(out.dtype), rtol=0, atol=0)


@pytest.mark.parametrize("source", [torch.int32, torch.float16])
def test_a_model_that_reads_bits_is_compiled(source: torch.dtype) -> None:
    def model(x: Tensor) -> Tensor:
        return x.to(source).view(torch.float32) * 2

    x = 1e4 * torch.rand(4, 6)
    fast = anabranch.compile(model, (x,), target="cpu", cache_dir=None, search="none")
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=0, equal_nan=True)

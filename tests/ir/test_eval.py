"""The oracle in higher precision, also where a user's operator has none."""

from __future__ import annotations

import torch
from torch import Tensor

from anabranch.ir.eval import eval_graph
from anabranch.ir.text import parse_graph


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

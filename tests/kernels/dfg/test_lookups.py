"""Lookups by tensors of indices: what lies outside of a table is seen, and not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels.triton.bodies import body, gpu, read
from tests.kernels.triton.interpreter import run
from torch import Tensor

from anabranch.ir.graph import Graph, types
from anabranch.kernels.triton.codegen import program, variants

X = torch.randn(4, 5)
WHOLE = torch.arange(20, dtype=torch.int32).reshape(4, 5)
NAN, LEAST = torch.full((5,), torch.nan), torch.full((5,), torch.iinfo(torch.int32).min)
ROWS, COLS = torch.tensor([0, 4, -1, 3]), torch.tensor([[0], [5], [-1], [4]])
FAR = torch.tensor([0, 4, -5, -1, 1 << 40])
CALLS: dict[str, tuple[str, tuple[Any, ...], Tensor]] = {
    # an operator, what it is called with, and what it gives
    "embedding": ("aten.embedding.default", (X, ROWS), torch.stack([X[0], NAN, NAN, X[3]])),
    "rows": ("aten.index_select.default", (X, 0, ROWS), torch.stack([X[0], NAN, NAN, X[3]])),
    "whole numbers": (
        "aten.index_select.default",
        (WHOLE, 0, ROWS),
        torch.stack([WHOLE[0], LEAST, LEAST, WHOLE[3]]).int(),
    ),
    "gather": (
        "aten.gather.default",
        (X, 1, COLS),
        torch.stack([X[0, 0], NAN[0], NAN[0], X[3, 4]])[:, None],
    ),
    "from the end": (
        "aten.index.Tensor",
        (X, [FAR]),
        torch.stack([X[0], NAN, NAN, X[3], NAN]),
    ),
    "two indices": (
        "aten.index.Tensor",
        (X, [ROWS, ROWS]),
        torch.stack([X[0, 0], NAN[0], X[-1, -1], X[3, 3]]),
    ),
}


def launched(graph: Graph, variant: Any, tensors: list[Tensor]) -> Tensor:
    values = {v.name: x for v, x in zip(graph.inputs, tensors, strict=True)}
    wanted = {ref.name: types(graph)[ref.name] for ref in graph.outputs}
    (made,) = run(program(graph, variant), values, wanted, frozenset(values)).values()
    return made


@pytest.mark.parametrize("name", CALLS)
def test_a_row_that_the_table_has_not_is_nan_or_the_least_integer(name: str) -> None:
    op, args, wanted = CALLS[name]
    graph, tensors = body(op, args)
    for variant in variants(graph, gpu(132))[:2]:
        made = launched(graph, variant, tensors)
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)


def test_rows_whose_numbers_are_known_are_not_asked() -> None:
    graph = read("""graph g {
      input %x: f32[8,5]
      %i: i64[4] = aten.arange.start_step(0, 4)
      %made: f32[4,5] = aten.index_select.default(%x, 0, %i)
      return %made
    }""")
    x, variant = torch.randn(8, 5), variants(graph, gpu(132))[0]
    assert torch.equal(launched(graph, variant, [x]), x[:4])
    assert "nan" not in program(graph, variant).text

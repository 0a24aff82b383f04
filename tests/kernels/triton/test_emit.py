"""Expressions in the middle of somebody else's kernel: axes spelled, masks, what is held."""

from __future__ import annotations

import torch

from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType
from anabranch.kernels.dfg import Dfg, lower
from anabranch.kernels.dfg.expr import BufferLoad
from anabranch.kernels.dfg.index_expr import axis
from anabranch.kernels.dfg.lower import held
from anabranch.kernels.triton.emit import emit, fresh, identifier
from anabranch.kernels.triton.statements import Assign, printed

EPILOGUE = parse_graph("""
graph g {
  input %x: f16[128,64]
  input %r: f16[128,256]
  const %w: f16[64,256] = w
  const %b: f16[256] = b
  %mm: f16[128,256] = aten.mm.default(%x, %w)
  %sum: f16[128,256] = aten.add.Tensor(%mm, %b)
  %res: f16[128,256] = aten.add.Tensor(%sum, %r)
  %out: f16[128,256] = aten.relu.default(%res)
  return %out
}""")


def test_an_epilogue_around_an_accumulator() -> None:
    """A load is masked by just the axes that it depends on, so its mask has its shape."""
    dfg = lower(EPILOGUE, {"mm": held("acc", TensorType((128, 256), torch.float16))})
    assert isinstance(dfg, Dfg)
    n, c = dfg.axes
    taken = {"acc", "row", "col", "b"}
    statements, name = emit(
        dfg.stores[0].expr, {n: "row", c: "col"}, {n: "row_in", c: "col_in"}, taken=taken
    )
    assert list(printed(statements)) == [
        "b_1 = tl.load(b_ptr + col, mask=col_in, other=0.0).to(tl.float32)",
        "sum_ = acc + b_1",
        "r = tl.load(r_ptr + (256 * row + col), mask=row_in & col_in, other=0.0).to(tl.float32)",
        "res = sum_ + r",
        "out = tl.maximum(res, 0.0, tl.PropagateNan.ALL)",
    ]
    assert name == "out" and {"b_1", "out"} <= taken


def test_a_plain_value_is_one_statement() -> None:
    i = axis("i", 8)
    plain = BufferLoad("x", TensorType((8,), torch.float32), (i,))
    assert emit(plain, {i.terms[0][0]: "offset + lane"}) == (  # type: ignore[dict-item]
        [Assign(("x",), "tl.load(x_ptr + (offset + lane))")],
        "x",
    )


def test_identifiers() -> None:
    assert identifier("conv.1") == "conv_1" and identifier("1x") == "v1x"
    taken: set[str] = set()
    assert [fresh("sum", taken) for _ in range(2)] == ["sum_", "sum_1"]

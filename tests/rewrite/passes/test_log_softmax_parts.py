"""Log-softmaxes that a loss and its gradient read are computed of the logits, once for each."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.log_softmax_parts import log_softmax_parts
from anabranch.trace import Trace


def loss(dtype: str = "bf16", pick: str = "1", also: str = "exp", more: str = "") -> Graph:
    wide = "%x: f32[256,1024] = aten._to_copy.default(%l, dtype=torch.float32)"
    end = "256,1" if pick == "1" else "1,1024"
    lines = [
        wide if dtype != "f32" else "%x: f32[256,1024] = aten.neg.default(%l)",
        "%p: f32[256,1024] = aten._log_softmax.default(%x, 1, False)",
        f"%g: f32[{end}] = aten.gather.default(%p, {pick}, %t)",
        f"%e: f32[256,1024] = aten.{also}.default(%p)"
        if also
        else "%e: f32[256,1024] = aten.neg.default(%x)",
    ]
    body = "\n".join(f"  {line}" for line in lines)
    inputs = f"  input %l: {dtype}[256,1024]\n  input %t: i64[{end}]\n"
    return parse_graph(f"graph g {{\n{inputs}{body}\n  return %g, %e{more}\n}}")


def test_the_loss_picks_logits_and_the_gradient_reads_them() -> None:
    graph = loss()
    made = log_softmax_parts(graph, Trace())
    verify_graph(made)
    kinds = [node.op.split(".")[1] for node in made.nodes]
    assert "_log_softmax" not in kinds and kinds.count("_to_copy") == 1
    late = [node for node in made.nodes if node.op == "aten.sub.Tensor" and "l" in node.uses]
    assert len(late) == 1, "the gradient begins with the logits themselves"
    logits = (torch.randn(256, 1024) * 8).bfloat16()
    logits[0, 3], logits[1] = -torch.inf, 300.0
    inputs = [logits, torch.randint(1024, (256, 1))]
    truth = eval_graph(graph, inputs, precision=torch.float64)
    for found, want in zip(eval_graph(made, inputs), truth, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-6)
    assert log_softmax_parts(made, Trace()) is made


@pytest.mark.parametrize(
    "graph",
    [loss(dtype="f32"), loss(pick="0"), loss(also=""), loss(more=", %p")],
    ids=["fp32 logits", "another axis", "a loss alone", "returned"],
)
def test_what_nobody_would_compute_again_stays(graph: Graph) -> None:
    assert log_softmax_parts(graph, Trace()) is graph

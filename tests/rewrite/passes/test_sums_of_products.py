"""A sum of products becomes one product along all depths, as exact as adding up in fp32."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.sums_of_products import sums_of_products
from anabranch.trace import Trace

STEPS = 5


def summed(
    dtype: str = "bf16", columns: int = 32, more: str = "", also: str = "", stacked: bool = False
) -> Graph:
    """g_1^T h_1 + ... + g_5^T h_5, as the gradient of a recurrent weight is summed up, backwards;
    `more`: a line before the end, whose value `also` is returned; `stacked`: the g are stacked
    afterwards."""
    n, steps = columns, range(1, STEPS + 1)
    lines = [f"  input %g_{i}: {dtype}[4,{n}]" for i in steps]
    lines += [f"  input %h_{i}: {dtype}[4,24]" for i in steps]
    lines += [f"  %d_{i}: {dtype}[4,{n}] = aten.neg.default(%g_{i})" for i in steps]
    for i in reversed(steps):
        lines.append(f"  %t_{i}: {dtype}[{n},4]{{1,{n}}} = aten.t.default(%d_{i})")
        lines.append(f"  %m_{i}: {dtype}[{n},24] = aten.mm.default(%t_{i}, %h_{i})")
        lines.append(f"  %w_{i}: f32[{n},24] = aten._to_copy.default(%m_{i}, dtype=torch.float32)")
        if i < STEPS:
            before = f"s_{i + 1}" if i + 1 < STEPS else f"w_{STEPS}"
            lines.append(f"  %s_{i}: f32[{n},24] = aten.add.Tensor(%{before}, %w_{i})")
    lines += [more] if more else []
    outputs = ["%s_1", also] if also else ["%s_1"]
    if stacked:
        parts = ", ".join(f"%d_{i}" for i in steps)
        lines.append(f"  %all: {dtype}[{STEPS},4,{n}] = aten.stack.default([{parts}])")
        outputs.append("%all")
    return parse_graph("\n".join(["graph sum {", *lines, f"  return {', '.join(outputs)}", "}"]))


def ops_of(graph: Graph) -> list[str]:
    return [node.op.split(".")[1] for node in graph.nodes if node.op != "aten.neg.default"]


def test_one_product_that_is_not_rounded_takes_the_place_of_the_sum() -> None:
    graph = summed()
    made = sums_of_products(graph, Trace())
    verify_graph(made)
    assert ops_of(made) == ["cat", "t", "cat", "wide_mm"]
    inputs = [torch.randn(v.type.shape).bfloat16() for v in graph.inputs]
    (exact,) = eval_graph(graph, inputs, precision=torch.float64)
    (found,), (before,) = eval_graph(made, inputs), eval_graph(graph, inputs)
    torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)
    assert (before - exact).norm() > 100 * (found - exact).norm(), "each term was rounded"


def test_factors_are_joined_as_they_are_stacked_anyway() -> None:
    graph = summed(stacked=True)
    made = sums_of_products(graph, Trace())
    verify_graph(made)
    assert ops_of(made) == ["cat", "reshape", "reshape", "t", "cat", "wide_mm"]
    inputs = [torch.randn(v.type.shape).bfloat16() for v in graph.inputs]
    for found, want in zip(eval_graph(made, inputs), eval_graph(graph, inputs), strict=True):
        torch.testing.assert_close(found, want, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("columns", [3, 8])
def test_small_results_stay_as_they_are(columns: int) -> None:
    """Where a result is hardly larger than its factors, nothing is saved."""
    graph = summed(columns=columns)
    assert sums_of_products(graph, Trace()) is graph


def test_terms_that_somebody_else_reads_are_added() -> None:
    graph = summed(more="  %o: bf16[32,24] = aten.abs.default(%m_3)", also="%o")
    made = sums_of_products(graph, Trace())
    verify_graph(made)
    assert ops_of(made).count("mm") == 1 and {"wide_mm", "add"} < {*ops_of(made)}
    inputs = [torch.randn(v.type.shape).bfloat16() for v in graph.inputs]
    for found, want in zip(eval_graph(made, inputs), eval_graph(graph, inputs), strict=True):
        torch.testing.assert_close(found, want, atol=0.05, rtol=0.05)

"""Products of all steps of a sequence are computed in pieces: two chains of steps overlap."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, producers
from anabranch.ir.text import parse_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.sequence_pieces import sequence_pieces
from anabranch.trace import Trace

STEPS = 16


def layers(join: str = "cat", read: str = "slice", late: bool = False, chain: bool = True) -> Graph:
    """Two recurrent layers, the second of which reads a product of all steps of the first; `late`:
    the last step comes first, as in a backward pass. `chain`: the second layer is one."""
    lines = ["input %x: f32[2,4]", "input %w: f32[4,4]", "input %v: f32[4,6]"]
    before, parts = "x", list[str]()
    for i in range(STEPS):
        lines.append(f"%m{i}: f32[2,4] = aten.mm.default(%{before}, %w)")
        lines.append(f"%h{i}: f32[2,4] = aten.tanh.default(%m{i})")
        lines.append(f"%c{i}: f32[1,2,4] = aten.reshape.default(%h{i}, [1, 2, 4])")
        before = f"h{i}"
        parts.append(f"%c{i}" if join == "cat" else f"%h{i}")
    order = parts[::-1] if late else parts
    axis = ", 0" if join == "cat" else ""
    lines.append(f"%j: f32[16,2,4] = aten.{join}.default([{', '.join(order)}]{axis})")
    lines.append("%r: f32[32,4] = aten.reshape.default(%j, [32, 4])")
    lines.append("%p: f32[32,6] = aten.mm.default(%r, %v)")
    lines.append("%s: f32[16,2,6] = aten.reshape.default(%p, [16, 2, 6])")
    if read == "unbind":
        names = ", ".join(f"%{_step(read, i)}: f32[2,6]" for i in range(STEPS))
        lines.append(f"{names} = aten.unbind.int(%s)")
    for at in range(STEPS)[:: -1 if late else 1]:
        if read == "slice":
            lines.append(f"%t{at}: f32[1,2,6] = aten.slice.Tensor(%s, 0, {at}, {at + 1})")
            lines.append(f"%s{at}: f32[2,6] = aten.reshape.default(%t{at}, [2, 6])")
        elif read == "select":
            lines.append(f"%s{at}: f32[2,6] = aten.select.int(%s, 0, {at})")
    before = ""
    for at in range(STEPS)[:: -1 if late else 1]:
        step = _step(read, at)
        other = before if before and chain else step
        lines.append(f"%k{at}: f32[2,6] = aten.mul.Tensor(%{step}, %{other})")
        lines.append(f"%e{at}: f32[2,6] = aten.tanh.default(%k{at})")
        before = f"e{at}"
    body = "\n".join(f"  {line}" for line in lines)
    return parse_graph(f"graph g {{\n{body}\n  return %{before}, %j\n}}")


def _step(read: str, at: int) -> str:
    return f"s{at}" if read != "unbind" else f"u.{at}" if at else "u"


def needs(graph: Graph, name: str) -> set[str]:
    """The values that one is made of."""
    makers, found, stack = producers(graph), set[str](), [name]
    while stack:
        one = stack.pop()
        if one not in found:
            found.add(one)
            stack += makers[one].uses if one in makers else ()
    return found


@pytest.mark.parametrize("read", ["slice", "select", "unbind"])
@pytest.mark.parametrize("join", ["cat", "stack"])
@pytest.mark.parametrize("late", [False, True])
def test_a_step_waits_for_its_piece_alone(join: str, read: str, late: bool) -> None:
    graph = layers(join, read, late)
    made = sequence_pieces(graph, Trace())
    verify_graph(made)
    inputs = [torch.randn(value.type.shape) for value in graph.inputs]
    for found, want in zip(eval_graph(made, inputs), eval_graph(graph, inputs), strict=True):
        torch.testing.assert_close(found, want)
    first = "k15" if late else "k0"
    assert f"h{STEPS - 1}" in needs(graph, first)
    assert "h1" in needs(made, first) and "h2" not in needs(made, first)


def test_steps_that_are_no_chain_stay_together() -> None:
    for graph in (layers(chain=False), layers(read="slice", late=True, chain=False)):
        assert sequence_pieces(graph, Trace()) is graph

"""Graphs for the tests: from text with random constants, from modules, and random ones."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from tests.networks import as_trained
from torch import nn

from anabranch.frontend.from_torch import capture
from anabranch.ir import ops
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph, Input, Node, Ref
from anabranch.ir.inputs import random_inputs, random_tensor
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType
from anabranch.ir.verify import verify_graph


def read(text: str) -> Graph:
    """A graph from its text, with positive random constants."""
    graph = parse_graph(text)
    constants = [
        replace(c, value=random_tensor(c.type, seed=i).abs() + 0.5)
        for i, c in enumerate(graph.constants)
    ]
    return replace(graph, constants=tuple(constants))


def captured(model: nn.Module, *args: torch.Tensor) -> Graph:
    """A module in eval mode as a graph, batch norms with statistics as after training."""
    as_trained(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return capture(model.eval(), args).graph


def error(before: Graph, after: Graph, seed: int = 0) -> float:
    """The largest difference of any output in double precision, relative to its largest value."""
    inputs = random_inputs(before, seed)
    new = eval_graph(after, inputs, precision=torch.float64)
    return worst(_results(before, seed, inputs), new)


_LAST: list[tuple[Graph, int, Sequence[torch.Tensor]]] = []
"""Of one graph with one seed the results: many rules are tried on the same graph."""


def _results(graph: Graph, seed: int, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    if not _LAST or _LAST[0][0] is not graph or _LAST[0][1] != seed:
        _LAST[:] = [(graph, seed, eval_graph(graph, inputs, precision=torch.float64))]
    return _LAST[0][2]


def worst(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> float:
    found = 0.0
    for a, b in zip(old, new, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        if a.numel() and not torch.equal(a, b):
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())  # infinities of one sign are the same, too
            scale = a[a.isfinite()].abs().max().item() if a.isfinite().any() else 1.0
            off = torch.where(same, 0.0, (a - b).abs()).nan_to_num(torch.inf).max().item()
            found = max(found, off / (scale or 1.0))
    return found


def equal(before: Graph, after: Graph, tolerance: float = 1e-6) -> Graph:
    """`after`, if it is a sound graph of the same signature and the same numbers as `before`."""
    verify_graph(after, infer=True)
    assert after.inputs == before.inputs
    assert error(before, after) <= tolerance
    return after


def kinds(graph: Graph) -> list[str]:
    """The operators in order, without namespace and overload."""
    return [ops.packet_name(node.op).rpartition(".")[2] for node in graph.nodes]


UNARY = (
    *(("aten.relu.default", ()), ("aten.sigmoid.default", ()), ("aten.neg.default", ())),
    *(("aten.clone.default", ()), ("aten.dropout.default", (0.5, False))),
    *(("aten.add.Tensor", (0,)), ("aten.mul.Tensor", (1.0,)), ("aten.mul.Tensor", (2,))),
    *(("aten.transpose.int", (0, 1)), ("aten.permute.default", ((1, 0),)), ("aten.t.default", ())),
    *(("aten.view.default", ((4, 4),)), ("aten.flatten.using_ints", (0, 0))),
    *(("aten.expand.default", ((4, 4),)), ("aten.slice.Tensor", (0, 0, 9))),
    *(("aten.alias.default", ()), ("aten._softmax.default", (1, False))),
)
BINARY = ("aten.add.Tensor", "aten.mul.Tensor", "aten.mm.default", "aten.maximum.default")


def drawn(seed: int, size: int = 14) -> Graph:
    """A random graph on 4x4 matrices with inputs, weights, repeats, dead ends and views."""
    dice = random.Random(seed)
    square = TensorType((4, 4), torch.float32)
    inputs = tuple(Input(name, square) for name in ("x", "y"))
    text = "const %w: f32[4,4] = w\nconst %v: f32[4,4] = v\nconst %u: f32[4,4] = w"
    constants = read(text).constants
    constants = (*constants[:2], replace(constants[2], value=constants[0].value))
    table = dict.fromkeys(("x", "y", "w", "v", "u"), square)
    nodes: list[Node] = []
    for i in range(size):
        names = list(table)
        a, b = (Ref(dice.choice(names[-5:])) for _ in range(2))
        try:
            if dice.random() < 0.4:
                made = ops.make_node(f"n{i}", dice.choice(BINARY), (a, b), table)
            elif dice.random() < 0.1:
                made = ops.make_node(f"n{i}", "aten.full.default", ((4, 4), 0.5), table)
            else:
                op, args = dice.choice(UNARY)
                made = ops.make_node(f"n{i}", op, (a, *args), table)
        except RuntimeError:  # a view that these strides do not allow
            continue
        nodes.append(made)
        table[made.name] = made.type
    outputs = [Ref(name) for name in list(table)[-2:]]
    return Graph("drawn", inputs, constants, tuple(nodes), tuple(outputs))

"""Nodes that compute constants of small constants, done once and for all while a file is read.

Exporters leave whole chains of them where a shape is known. They must be known in Python, for what
they say is often the shape or the axis of another node. Floats that are weights are left alone:
they may be loaded anew.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.graph import OnnxFile, OnnxGraph, OnnxNode
from anabranch.frontend.onnx.host import MOST_HOST, host, tensors_of
from anabranch.frontend.onnx.host_operators import HOST_OPERATORS
from anabranch.frontend.onnx.interpret import Surface, run_graph

FILLING = ("ConstantOfShape", "Expand", "Range", "Tile")
"""Operators whose results are as large as their inputs say: a small file can say terabytes."""
FOLDABLE = {
    *HOST_OPERATORS,
    *FILLING,
    *("ArgMax", "ArgMin", "CastLike", "Clip", "CumSum", "GatherElements", "GatherND", "IsInf"),
    *("IsNaN", "Pow", "ReduceMean", "Reciprocal", "Round", "ScatterElements", "ScatterND", "Sign"),
    *("Exp", "Log", "Tanh", "TopK", "Trilu", "Unique", "Xor"),
}
"""No others: their results have not many more numbers than their inputs."""


def folded(file: OnnxFile) -> OnnxFile:
    """The file without nodes of its outermost graph whose results are known, in 32 bits where these
    are floats, whatever floats of the file become."""
    constants = {
        name: tensor
        for name, tensor in (*file.tensors.items(), *file.scalars.items())
        if tensor.numel() <= MOST_HOST
        and (name in file.scalars or tensor.dtype in (torch.int64, torch.int32, torch.bool))
    }
    computed: dict[str, Tensor] = {}
    nodes = []
    for node in file.graph.nodes:
        results = _results(node, constants) if _constant(node, constants) else None
        if results is None:
            nodes.append(node)
        else:
            constants |= results
            computed |= results
    graph = replace(file.graph, nodes=tuple(nodes))
    return replace(file, graph=graph, scalars={**file.scalars, **computed})


def _constant(node: OnnxNode, constants: dict[str, Tensor]) -> bool:
    return (
        bool(node.inputs)
        and not node.domain
        and node.op in FOLDABLE
        and all(name in constants for name in node.inputs if name)
        and (node.op not in FILLING or _filled(node, constants) <= MOST_HOST)
    )


def _filled(node: OnnxNode, constants: dict[str, Tensor]) -> float:
    """At most so many numbers a result has that its inputs give the size of."""
    operands = [constants[name] for name in node.inputs if name]
    counts = [operand.numel() for operand in operands]
    if not operands or (node.op == "Range" and (len(operands) != 3 or not all(counts))):
        return math.inf  # whoever runs it will be told
    if node.op == "Range":
        start, limit, delta = (float(operand.reshape(-1)[0]) for operand in operands)
        return abs((limit - start) / delta) if delta else math.inf
    sizes = [abs(int(size)) for size in operands[-1].reshape(-1).tolist()]
    return math.prod(sizes) * (max(1, operands[0].numel()) if len(operands) > 1 else 1)


def _results(node: OnnxNode, constants: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Its results by name; None if they are large, no tensors, or cannot be computed."""
    alone = OnnxGraph("constants", (), tuple(name for name in node.outputs if name), (node,))
    operands = {
        name: host(constants[name].tolist(), constants[name].dtype) for name in node.inputs if name
    }
    cpu = torch.device("cpu")
    try:
        outputs = run_graph(
            replace(alone, nodes=(replace(node, unused=()),)),
            (),
            operands,
            Surface(operands, cpu, torch.float32),
        )
        tensors = tensors_of(outputs, cpu)
    except (OnnxError, RuntimeError, ValueError, TypeError, IndexError, KeyError):
        return None  # whoever runs it will be told
    if not all(isinstance(tensor, Tensor) and tensor.numel() <= MOST_HOST for tensor in tensors):
        return None
    return dict(zip(alone.outputs, tensors, strict=True))

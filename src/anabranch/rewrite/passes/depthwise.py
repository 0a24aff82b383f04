"""Weights of depthwise convolutions with their channels side by side in memory.

    const w: f16[168,1,5,5]                  const w: f16[168,1,5,5]{1,168,840,168}
    c = convolution(x, w, ...)        ->     c = convolution(x, w, ...)      groups 168, x in NHWC

A generated kernel computes neighbouring channels in one thread and reads a vector of weights for
each tap; as PyTorch lays them out, it would read them one by one (compiled for 5x5: 25 vector
loads instead of 200 narrow ones, and no barrier). Libraries copy such weights back at each call, so
this is for graphs whose depthwise convolutions are generated, and runs after `layout`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Constant, Derivation, Graph, Node, Ref, users
from anabranch.ir.key import digest_text
from anabranch.ir.recipe import bare
from anabranch.ir.types import TensorType, type_of
from anabranch.trace import Trace


def depthwise(graph: Graph, trace: Trace) -> Graph:
    """The graph with such weights, where nothing else reads them and results are in NHWC."""
    readers = users(graph)
    constants = tuple(_arranged(c, readers.get(c.name, [])) for c in graph.constants)
    if all(new is old for new, old in zip(constants, graph.constants, strict=True)):
        return graph
    return replace(graph, constants=constants)


def _arranged(weight: Constant, readers: list[Node]) -> Constant:
    if weight.value is None or not readers or not all(_reads(n, weight) for n in readers):
        return weight
    value = side_by_side(weight.value)
    if value.stride() == weight.type.strides:
        return weight
    digest = digest_text(f"channels side by side {weight.digest}")
    same = Node(weight.name, "aten.alias.default", (Ref(weight.name),), (), (weight.type,))
    derived = Derivation(same, 0, {weight.name: bare(weight)})  # and laid out as the type says
    return Constant(weight.name, type_of(value), digest, value, derived)


def side_by_side(weight: torch.Tensor) -> torch.Tensor:
    """The same weight in the memory order height, width, channel."""
    return weight.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)


def is_side_by_side(type: TensorType) -> bool:
    """Whether a weight of one input channel a group lies in that order."""
    if len(type.shape) != 4 or type.shape[1] != 1:
        return False
    channels, _, _, width = type.shape
    return type.strides == (1, channels, width * channels, channels)


def _reads(node: Node, weight: Constant) -> bool:
    """Whether the node is a depthwise convolution in NHWC that has this weight."""
    if node.op != "aten.convolution.default" or len(weight.type.shape) != 4:
        return False
    arguments = ops.arguments(node)
    alone = arguments["groups"] == weight.type.shape[0] and weight.type.shape[1] == 1
    plain = alone and not arguments["transposed"] and arguments["groups"] != 1
    return plain and arguments["weight"] == Ref(weight.name) and ops.channels_last(node.type)

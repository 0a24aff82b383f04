"""Nodes of older operator sets as the newest has them, so that one function serves them all.

    Squeeze-11 {axes: (0,)}     ->  Squeeze(x, axes)          what was an attribute is an input
    Upsample-9 (x, scales)      ->  Resize(x, , scales)       what was renamed has its new name
    Softmax-11 {axis: 1}        ->  Softmax {axis: 1, flatten: 1}    of all axes from one on

What only gained types or attributes needs nothing. A node keeps its version, for the few functions
whose meaning changed and that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.graph import OnnxFile, OnnxGraph, OnnxNode

NEWEST_OPSET = 28
"""The newest that the operators here were written for."""

NodeChange = Callable[[OnnxNode, "Constants"], OnnxNode]


class Constants:
    """Tensors that nodes read for what were attributes."""

    def __init__(self, taken: Mapping[str, Tensor]) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._taken = taken

    def name(self, node: OnnxNode, key: str, value: Any) -> str:
        """The name of a new constant."""
        stem = f"{node.outputs[0]}.{key}" if node.outputs else key
        name, number = stem, 0
        while name in self.tensors or name in self._taken:
            number += 1
            name = f"{stem}_{number}"
        floating = isinstance(value, float) or (
            isinstance(value, tuple) and any(isinstance(item, float) for item in value)
        )
        self.tensors[name] = torch.tensor(value, dtype=torch.float32 if floating else torch.int64)
        return name


def modern(file: OnnxFile) -> OnnxFile:
    """The file with all its nodes as the newest set of operators has them."""
    constants = Constants({**file.tensors, **file.scalars})
    graph = _modern(file.graph, constants)
    return replace(file, graph=graph, scalars={**file.scalars, **constants.tensors})


def check_opset(name: str, version: int) -> None:
    """OnnxError for a set of operators that is newer than this program."""
    if not 1 <= version <= NEWEST_OPSET:
        raise OnnxError(
            f"{name} is of opset {version}",
            f"opsets 1 to {NEWEST_OPSET} are known here",
            "export it with an older opset, or use a newer Anabranch",
        )


def _modern(graph: OnnxGraph, constants: Constants) -> OnnxGraph:
    return replace(graph, nodes=tuple(_modern_node(node, constants) for node in graph.nodes))


def _modern_node(node: OnnxNode, constants: Constants) -> OnnxNode:
    attributes = {
        key: _modern(value, constants) if isinstance(value, OnnxGraph) else value
        for key, value in node.attributes.items()
    }
    node = replace(node, attributes=attributes)
    if node.domain:
        return node
    for before, change in CHANGES.get(node.op, ()):
        if node.version < before:
            node = change(node, constants)
    return node


def to_inputs(*keys: str, first: int = 1, at: Sequence[int] = ()) -> NodeChange:
    """A change: attributes become inputs, in order from the place `first` on, or at places."""

    def change(node: OnnxNode, constants: Constants) -> OnnxNode:
        inputs, attributes = list(node.inputs), dict(node.attributes)
        for number, key in enumerate(keys):
            place = at[number] if at else first + number
            if (value := attributes.pop(key, None)) is None:
                continue
            while len(inputs) <= place:
                inputs.append("")
            inputs[place] = constants.name(node, key, value)
        return replace(node, inputs=tuple(inputs), attributes=attributes)

    return change


def with_attributes(**defaults: Any) -> NodeChange:
    """A change: what was always so is said, unless the node says otherwise."""

    def change(node: OnnxNode, constants: Constants) -> OnnxNode:
        return replace(node, attributes={**defaults, **node.attributes})

    return change


def renamed(op: str, *changes: NodeChange) -> NodeChange:
    """A change: another name, and what comes with it."""

    def change(node: OnnxNode, constants: Constants) -> OnnxNode:
        node = replace(node, op=op)
        for step in changes:
            node = step(node, constants)
        return node

    return change


def scales_third(node: OnnxNode, constants: Constants) -> OnnxNode:
    """A change: Resize has regions before its scales."""
    if len(node.inputs) != 2:
        return node
    return replace(node, inputs=(node.inputs[0], "", node.inputs[1]))


def windows_clipped(node: OnnxNode, constants: Constants) -> OnnxNode:
    """A change: `clip` of numbers that were given as attributes of any number type."""
    limits = {key: float(node.attributes[key]) for key in ("min", "max") if key in node.attributes}
    return to_inputs("min", "max")(replace(node, attributes=limits), constants)


ASYMMETRIC = with_attributes(coordinate_transformation_mode="asymmetric", nearest_mode="floor")
FLATTENED = with_attributes(flatten=1, axis=1)
REDUCED = ((18, to_inputs("axes")),)
CHANGES: Mapping[str, Sequence[tuple[int, NodeChange]]] = {
    "Clip": ((11, windows_clipped),),
    "DFT": ((20, with_attributes(axis=1)), (20, to_inputs("axis", first=2))),
    "Dropout": ((12, to_inputs("ratio")),),
    "Hardmax": ((13, FLATTENED),),
    "LogSoftmax": ((13, FLATTENED),),
    "Pad": ((11, to_inputs("pads", "value")),),
    "ReduceL1": REDUCED,
    "ReduceL2": REDUCED,
    "ReduceLogSum": REDUCED,
    "ReduceLogSumExp": REDUCED,
    "ReduceMax": REDUCED,
    "ReduceMean": REDUCED,
    "ReduceMin": REDUCED,
    "ReduceProd": REDUCED,
    "ReduceSum": ((13, to_inputs("axes")),),
    "ReduceSumSquare": REDUCED,
    "Reshape": ((5, to_inputs("shape")),),
    "Resize": ((11, scales_third), (11, ASYMMETRIC)),
    "RoiAlign": ((16, with_attributes(coordinate_transformation_mode="output_half_pixel")),),
    "Scatter": ((99, renamed("ScatterElements")),),
    "Slice": ((10, to_inputs("starts", "ends", "axes")),),
    "Softmax": ((13, FLATTENED),),
    "Split": ((13, to_inputs("split")),),
    "Squeeze": ((13, to_inputs("axes")),),
    "TopK": ((10, to_inputs("k")),),
    "Unsqueeze": ((13, to_inputs("axes")),),
    "Upsample": (
        (9, to_inputs("scales")),
        (99, renamed("Resize", scales_third, ASYMMETRIC)),
    ),
}
"""By operator: below which version, and what changes."""

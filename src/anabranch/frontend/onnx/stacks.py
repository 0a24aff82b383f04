"""Layers of a recurrence that exporters write one by one, as the one call that torch makes.

    GRU --Transpose, Reshape--> GRU     ->     anabranch.GRU of two layers
    GRU --Squeeze--> GRU                       the same

A library runs layers of one call beside each other. Layers are joined that say the same but for
their weights, and of whose sequence nobody else reads anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.frontend.onnx.graph import OnnxNode
from anabranch.frontend.onnx.matches import OWN_DOMAIN, Matches

WEIGHTS = {"GRU": 4, "LSTM": 5}
"""How many inputs of each layer a stack takes: weights, biases, and states before it."""
SAID = {"direction", "hidden_size", "input_forget", "linear_before_reset", "layout"}
AS_HEADS = (0, 2, 1, 3)


def stacked(nodes: Sequence[OnnxNode], matches: Matches) -> list[OnnxNode]:
    """The nodes with each chain of layers as one node, at the place of its last."""
    below: dict[str, tuple[OnnxNode, tuple[int, ...]]] = {}
    for node in nodes:
        if (link := _layer_below(node, matches)) is not None:
            below[node.outputs[0]] = link
    inner = {lower.outputs[0] for lower, _ in below.values()}
    joined: dict[str, OnnxNode] = {}
    gone: set[str] = set()
    for node in nodes:
        name = node.outputs[0] if node.outputs else ""
        if name not in below or name in inner:
            continue
        layers, sizes = [node], list[int]()
        while (link := below.get(layers[0].outputs[0])) is not None:
            layers.insert(0, link[0])
            sizes += link[1]
        joined[name] = _joined(layers, sizes)
        gone.update(layer.outputs[0] for layer in layers[:-1])
    return [
        joined.get(node.outputs[0] if node.outputs else "", node)
        for node in nodes
        if not node.outputs or node.outputs[0] not in gone
    ]


def _layer_below(node: OnnxNode, matches: Matches) -> tuple[OnnxNode, tuple[int, ...]] | None:
    """The layer whose sequence a layer reads, and the sizes that it was given between them."""
    if not _plain(node):
        return None
    moved = matches.only(node.inputs[0], "Squeeze", "Reshape")
    if (
        moved is None
        or len(moved.inputs) < 2
        or (sizes := matches.numbers(moved.inputs[1])) is None
    ):
        return None
    name = moved.inputs[0]
    if moved.op == "Reshape":
        turned = matches.only(name, "Transpose")
        if turned is None or turned.attributes.get("perm") != AS_HEADS or len(sizes) != 3:
            return None
        name = turned.inputs[0]
    elif sizes != [1]:
        return None
    lower = matches.only(name, node.op)
    if lower is None or not _plain(lower) or lower.outputs[0] != name:
        return None
    same = dict(lower.attributes) == dict(node.attributes)
    if not same or bool(_input_at(lower, 3)) != bool(_input_at(node, 3)):
        return None
    return lower, tuple(sizes[:2]) if moved.op == "Reshape" else ()


def _plain(node: OnnxNode) -> bool:
    """Whether a layer is one that torch has: forwards or both ways, without lengths."""
    if node.domain or node.op not in WEIGHTS or not set(node.attributes) <= SAID:
        return False
    after = node.op == "LSTM" or node.attributes.get("linear_before_reset") == 1
    ways = node.attributes.get("direction", "forward") in ("forward", "bidirectional")
    said = node.attributes.get("layout", 0) or node.attributes.get("input_forget", 0)
    unusual = _input_at(node, 4) or _input_at(node, 7) or said
    return bool(after and ways and not unusual)


def _input_at(node: OnnxNode, place: int) -> str:
    return node.inputs[place] if place < len(node.inputs) else ""


def _joined(layers: Sequence[OnnxNode], sizes: Sequence[int]) -> OnnxNode:
    last = layers[-1]
    places = (1, 2, 3, 5, 6)[: WEIGHTS[last.op]]
    inputs = [layers[0].inputs[0]]
    outputs = [last.outputs[0]]
    for layer in layers:
        inputs += [_input_at(layer, place) for place in places]
        states = [*layer.outputs[1:], "", ""]
        outputs += states[: WEIGHTS[last.op] - 3]
    attributes = {**last.attributes, "layers": len(layers), "sizes": tuple(sizes)}
    return replace(
        last,
        domain=OWN_DOMAIN,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        attributes=attributes,
    )

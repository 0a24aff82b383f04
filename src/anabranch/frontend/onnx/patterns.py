"""Operators that exporters spell out, as the one that torch's own modules call.

    Div sqrt(2), Erf, Add 1, Mul x, Mul 0.5                       ->  Gelu
    Sigmoid, Mul x                                                ->  Swish, which torch calls silu
    Softplus, Tanh, Mul x                                         ->  Mish
    Reshape, InstanceNormalization, Reshape, Mul, Add             ->  anabranch.GroupNorm
    MatMul with a matrix of weights, Add a row of weights         ->  Gemm, a linear layer
    ReduceMean, Sub, Pow 2, ReduceMean, Add, Sqrt, Div, Mul, Add  ->  LayerNormalization
    MatMul, Add mask, Softmax, MatMul                             ->  anabranch.Attention
    layers of a recurrence, one after another                     ->  one of several layers (stacks)

A file and the model that it was exported from then become one graph, for which there are rules and
kernels. What is found is replaced at its last node; nodes that nobody reads any more are left out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from anabranch.frontend.onnx.check_graph import read_by
from anabranch.frontend.onnx.graph import OnnxFile, OnnxGraph, OnnxNode
from anabranch.frontend.onnx.matches import OWN_DOMAIN, Matches
from anabranch.frontend.onnx.stacks import stacked

NEWEST = 28
Scales = list[tuple[str, bool]]
"""Names of numbers, and whether they divide."""


@dataclass(frozen=True, slots=True)
class AttentionKeys:
    """The keys of an attention before their last two axes changed places: the value, numbers that
    scale it, the order that its axes were given in the same move, and the names of the shapes with
    joined axes before and with axes apart after it."""

    name: str
    scales: Scales
    order: tuple[int, ...] = ()
    shapes: tuple[str, str] = ("", "")


def with_patterns(file: OnnxFile) -> OnnxFile:
    """The file with what is spelled out in one node."""
    constants = {**file.tensors, **file.scalars}
    graph = without_identities(file.graph, {})
    return replace(file, graph=_replaced(graph, constants))


def without_identities(graph: OnnxGraph, same_as: Mapping[str, str]) -> OnnxGraph:
    """The graph whose nodes read what an Identity passes on: exporters put one before each further
    use of equal weights. Those that make an output stay. `same_as`: of the graphs around it, names
    and whose value they have."""
    own = {*graph.constants, *(value.name for value in graph.inputs)}
    own |= {name for node in graph.nodes for name in node.outputs}
    names = {name: other for name, other in same_as.items() if not {name, other} & own}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(names.get(name, name) for name in node.inputs)
        passes_on = node.op == "Identity" and not node.domain and len(node.outputs) == 1
        if passes_on and node.outputs[0] not in graph.outputs:
            names[node.outputs[0]] = inputs[0]
            continue
        attributes = {
            key: without_identities(value, names) if isinstance(value, OnnxGraph) else value
            for key, value in node.attributes.items()
        }
        nodes.append(replace(node, inputs=inputs, attributes=attributes))
    outputs = tuple(names.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def _replaced(graph: OnnxGraph, constants: Mapping[str, Tensor]) -> OnnxGraph:
    nodes = [
        replace(
            node,
            attributes={
                key: _replaced(value, constants) if isinstance(value, OnnxGraph) else value
                for key, value in node.attributes.items()
            },
        )
        for node in graph.nodes
    ]
    for find in PATTERNS:
        matches = Matches(nodes, graph.outputs, constants)
        nodes = _used([find(matches, node) or node for node in nodes], graph.outputs)
    nodes = _used(stacked(nodes, Matches(nodes, graph.outputs, constants)), graph.outputs)
    return replace(graph, nodes=tuple(nodes))


def _used(nodes: Sequence[OnnxNode], outputs: Sequence[str]) -> list[OnnxNode]:
    """The nodes of which somebody reads a result."""
    read = Counter(outputs)
    kept = []
    for node in reversed(nodes):
        if any(read[name] for name in node.outputs):
            read.update(read_by(node))
            kept.append(node)
    return kept[::-1]


def _node_like(
    root: OnnxNode, op: str, inputs: Sequence[str], domain: str = "", **more: Any
) -> OnnxNode:
    return replace(
        root, op=op, domain=domain, inputs=tuple(inputs), attributes=more, version=NEWEST
    )


def gelu(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """The product x * 0.5 * (1 + erf(x / sqrt(2))), or by tanh, factors in any order."""
    if root.op != "Mul" or root.domain:
        return None
    factors = [factor for name in root.inputs for factor in matches.factors(name)]
    halves = [name for name in factors if matches.near(name, 0.5)]
    rest = [name for name in factors if name not in halves]
    if len(halves) != 1 or len(rest) != 2:
        return None
    for x, other in (rest, rest[::-1]):
        total = matches.only(other, "Add")
        parts = None if total is None else matches.apart(total)
        if parts is None or not matches.near(parts[1], 1.0):
            continue
        inner = matches.only(parts[0], "Erf", "Tanh")
        if inner is not None and inner.op == "Erf" and _by_root(matches, inner.inputs[0]) == x:
            return _node_like(root, "Gelu", [x])
        if inner is not None and inner.op == "Tanh" and _cubic(matches, inner.inputs[0], x):
            return _node_like(root, "Gelu", [x], approximate="tanh")
    return None


def silu(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """The product x * sigmoid(x)."""
    return _gated(matches, root, ("Sigmoid",), "Swish")


def mish(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """The product x * tanh(softplus(x))."""
    return _gated(matches, root, ("Tanh", "Softplus"), "Mish")


def _gated(matches: Matches, root: OnnxNode, gate: Sequence[str], op: str) -> OnnxNode | None:
    """The product of x and its gate, as `op` has it. `gate`: its operators, the last one first."""
    if root.op != "Mul" or root.domain:
        return None
    for x, name in (root.inputs, root.inputs[::-1]):
        for each in gate:
            node = matches.only(name, each)
            if node is None:
                break
            name = node.inputs[0]
        else:
            if name == x:
                return _node_like(root, op, [x])
    return None


def softplus(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """Softplus, and x itself above 20, as torch computes it anyway."""
    if root.op != "Where" or root.domain:
        return None
    above = matches.only(root.inputs[0], "Greater")
    inner = matches.only(root.inputs[2], "Softplus")
    if above is None or inner is None or not matches.near(above.inputs[1], 20.0):
        return None
    x = root.inputs[1]
    return _node_like(root, "Softplus", [x]) if above.inputs[0] == inner.inputs[0] == x else None


def group_norm(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """Norms of instances whose channels are groups of x's, scaled and shifted by channels."""
    if root.op != "Add" or root.domain:
        return None
    for product, bias in (root.inputs, root.inputs[::-1]):
        scaled = matches.only(product, "Mul") if matches.rank(bias) is not None else None
        if scaled is None:
            continue
        for normed, scale in (scaled.inputs, scaled.inputs[::-1]):
            back = matches.only(normed, "Reshape") if matches.rank(scale) is not None else None
            norm = None if back is None else matches.only(back.inputs[0], "InstanceNormalization")
            inner = None if norm is None else matches.only(norm.inputs[0], "Reshape")
            if back is None or norm is None or inner is None:
                continue
            if matches.all_are(norm.inputs[1], 1.0) and matches.all_are(norm.inputs[2], 0.0):
                inputs = [inner.inputs[0], scale, bias, inner.inputs[1], back.inputs[1]]
                epsilon = norm.attributes.get("epsilon", 1e-5)
                return _node_like(root, "GroupNorm", inputs, OWN_DOMAIN, epsilon=epsilon)
    return None


def _by_root(matches: Matches, name: str) -> str | None:
    """The x of x / sqrt(2)."""
    node = matches.only(name, "Div", "Mul")
    if node is None:
        return None
    if node.op == "Div":
        return node.inputs[0] if matches.near(node.inputs[1], math.sqrt(2)) else None
    parts = matches.apart(node)
    return parts[0] if parts is not None and matches.near(parts[1], math.sqrt(0.5)) else None


def _cubic(matches: Matches, name: str, x: str) -> bool:
    """Whether a value is sqrt(2 / pi) * (x + 0.044715 * x ** 3)."""
    outer = matches.only(name, "Mul")
    parts = None if outer is None else matches.apart(outer)
    if parts is None or not matches.near(parts[1], math.sqrt(2 / math.pi)):
        return False
    total = matches.only(parts[0], "Add")
    if total is None or x not in total.inputs:
        return False
    other = total.inputs[1 - total.inputs.index(x)]
    factors = list(matches.factors(other))
    scale = [factor for factor in factors if matches.near(factor, 0.044715)]
    rest = [factor for factor in factors if factor not in scale]
    if len(scale) != 1:
        return False
    if len(rest) == 1 and (power := matches.only(rest[0], "Pow")) is not None:
        return power.inputs[0] == x and matches.near(power.inputs[1], 3)
    return rest == [x] * 3


def linear(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """A product with a matrix of weights, and a row of weights that is added."""
    if root.op != "Add" or root.domain:
        return None
    for product, row in (root.inputs, root.inputs[::-1]):
        node = matches.only(product, "MatMul")
        if node is None or matches.rank(node.inputs[1]) != 2 or matches.rank(row) != 1:
            continue
        if (
            matches.size(row, 0) == matches.size(node.inputs[1], 1)
            and matches.rank(node.inputs[0]) is None
        ):
            return _node_like(root, "Gemm", [*node.inputs, row])
    return None


def layer_norm(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, over the last axis."""
    if root.op != "Add" or root.domain:
        return None
    for scaled, bias in (root.inputs, root.inputs[::-1]):
        product = matches.only(scaled, "Mul") if matches.rank(bias) == 1 else None
        if product is None:
            continue
        for normed, scale in (product.inputs, product.inputs[::-1]):
            ratio = matches.only(normed, "Div") if matches.rank(scale) == 1 else None
            said = None if ratio is None else _normed(matches, *ratio.inputs)
            if said is not None:
                x, epsilon = said
                inputs = [x, scale, bias]
                return _node_like(root, "LayerNormalization", inputs, axis=-1, epsilon=epsilon)
    return None


def _normed(matches: Matches, centred: str, deviation: str) -> tuple[str, float] | None:
    """What is normed, and epsilon."""
    minus, root = matches.of(centred, "Sub"), matches.only(deviation, "Sqrt")
    inner = None if root is None else matches.only(root.inputs[0], "Add")
    parts = None if inner is None else matches.apart(inner)
    if minus is None or parts is None:
        return None
    mean, variance = (
        matches.only(minus.inputs[1], "ReduceMean"),
        matches.only(parts[0], "ReduceMean"),
    )
    if mean is None or variance is None or mean.inputs[0] != minus.inputs[0]:
        return None
    if not (_over_last(matches, mean) and _over_last(matches, variance)):
        return None
    square = matches.only(variance.inputs[0], "Pow", "Mul")
    if square is None or square.inputs[0] != centred:
        return None
    twice = square.inputs[1] == centred if square.op == "Mul" else matches.near(square.inputs[1], 2)
    epsilon = matches.number(parts[1])
    return (minus.inputs[0], epsilon) if twice and epsilon is not None else None


def _over_last(matches: Matches, mean: OnnxNode) -> bool:
    axes = matches.numbers(mean.inputs[1]) if len(mean.inputs) > 1 else None
    return axes == [-1] and mean.attributes.get("keepdims", 1) == 1


def attention(matches: Matches, root: OnnxNode) -> OnnxNode | None:
    """softmax(q k^T * scale + mask) v, whoever has the scale."""
    if root.op != "MatMul" or root.domain:
        return None
    soft = _softmax(matches, root.inputs[0])
    if soft is None:
        return None
    scores, mask = soft.inputs[0], ""
    total = matches.only(scores, "Add")
    if total is not None:
        for addend, other in (total.inputs, total.inputs[::-1]):
            if matches.only(_scaled(matches, addend)[0], "MatMul") is not None:
                scores, mask = addend, other
                break
    inner, scales = _scaled(matches, scores)
    product = matches.only(inner, "MatMul")
    if product is None:
        return None
    q, by_q = _scaled(matches, product.inputs[0])
    turned, by_k = _scaled(matches, product.inputs[1])
    keys = _turned_back(matches, turned)
    if keys is None:
        return None
    scales = [*scales, *by_q, *by_k, *keys.scales]
    inputs = [q, keys.name, root.inputs[1], mask, *keys.shapes, *(name for name, _ in scales)]
    divide = tuple(int(divides) for _, divides in scales)
    said = {"divide": divide, "key_order": keys.order, "axis": soft.attributes.get("axis", -1)}
    return _node_like(root, "Attention", inputs, OWN_DOMAIN, **said)


def _softmax(matches: Matches, name: str) -> OnnxNode | None:
    """A softmax over what may be the last axis, also where rows without a number are set to
    zero."""
    chosen = matches.only(name, "Where")
    if chosen is not None and matches.near(chosen.inputs[1], 0.0):
        asked = matches.only(chosen.inputs[0], "IsNaN")
        if asked is None or asked.inputs[0] != chosen.inputs[2]:
            return None
        soft = matches.of(chosen.inputs[2], "Softmax")
    else:
        soft = matches.only(name, "Softmax")
    last = soft is not None and soft.attributes.get("axis", -1) in (-1, 3)
    return soft if last and soft is not None and not soft.attributes.get("flatten") else None


def _scaled(matches: Matches, name: str) -> tuple[str, Scales]:
    """A value without the number that it was multiplied with, or divided by; and that number."""
    node = matches.only(name, "Mul", "Div")
    if node is None:
        return name, []
    a, b = node.inputs
    if matches.is_number(b):
        return a, [(b, node.op == "Div")]
    return (b, [(a, False)]) if node.op == "Mul" and matches.is_number(a) else (name, [])


def _turned_back(matches: Matches, name: str) -> AttentionKeys | None:
    """The value before its last two axes changed places. Some exporters join the leading axes
    first, and take them apart afterwards."""
    node = matches.only(name, "Transpose", "Reshape")
    if node is not None and node.op == "Reshape":
        inner = matches.only(node.inputs[0], "Transpose")
        joined = None if inner is None else matches.only(inner.inputs[0], "Reshape")
        if inner is None or joined is None or inner.attributes.get("perm") != (0, 2, 1):
            return None
        shapes = joined.inputs[1], node.inputs[1]
        return AttentionKeys(*_scaled(matches, joined.inputs[0]), shapes=shapes)
    order = None if node is None else node.attributes.get("perm")
    if node is None or order is None or len(order) < 2:
        return None
    moved = (*order[:-2], order[-1], order[-2])
    if order[-2] < order[-1]:  # the last two are as they were
        return None
    kept = moved == tuple(range(len(moved)))
    return AttentionKeys(*_scaled(matches, node.inputs[0]), order=() if kept else moved)


PATTERNS: Sequence[Callable[[Matches, OnnxNode], OnnxNode | None]] = (
    gelu,
    silu,
    mish,
    softplus,
    layer_norm,
    group_norm,
    attention,
    linear,
)
"""In this order: each sees what those before it left."""

"""Values whose rounding decides something: what must be computed as exactly as eager does it.

    %div = a / b          4.0, or 3.9999998 by an approximate division
    %floor = floor(%div)  4 or 3

An operator *decides* where its result jumps: it rounds, compares, or answers places. Its operand,
and everything that this is computed of element by element, is *strict*: kernels round each step as
eager does (no approximate quotient or root, no product and sum rounded once), and the reference
computes it in the model's own precision. Contractions and normalisations end this: they round in an
order of their own. A narrowing cast is the model's own rounding, in kernels and in the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref, types
from anabranch.ir.types import TensorType

CONVERT = "aten._to_copy.default"
EXACT_JUMPS = frozenset(
    f"aten.{name}"
    for name in (
        *("floor", "ceil", "trunc", "round", "frac", "sign", "sgn", "heaviside", "threshold"),
        *("floor_divide", "remainder", "fmod", "hardshrink"),
    )
)
"""Operators that round or compare and answer in floats, with one right result for what they
read."""
JUMPS = EXACT_JUMPS | frozenset(
    f"aten.{name}"
    for name in (
        *("fake_quantize_per_tensor_affine", "fake_quantize_per_channel_affine", "bincount"),
        *("searchsorted", "bucketize", "histc", "special_round", "angle", "atan2"),
    )
)
"""All that rounds or compares, and answers in floats."""
ROUNDING_OPS = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "rsub", "mul", "div", "sqrt", "rsqrt", "reciprocal", "square", "pow"),
        *("addcmul", "addcdiv", "lerp", "exp", "exp2", "log", "log2", "sigmoid", "tanh"),
        *("_to_copy", "remainder", "fmod", "floor_divide"),
    )
)
"""What computes another number where it is spelled in another way."""
REDUCTIONS = frozenset(
    f"aten.{name}"
    for name in (
        *("sum", "mean", "prod", "amax", "amin", "aminmax", "max", "min", "cumsum", "cumprod"),
        *("cummax", "cummin", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "argsort"),
        *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices", "adaptive_max_pool2d", "logsumexp"),
        *("var", "std", "var_mean", "linalg_vector_norm", "norm", "scatter", "scatter_add"),
        *("index_put", "masked_scatter", "as_strided", "unfold", "nansum"),
    )
)
"""Operators whose result the rounding of an element reaches, though they are not pointwise."""
GRADIENTS = frozenset(
    f"aten.{name}_backward"
    for name in (
        *("max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
"""Operators that ask for the places of maxima and pass a gradient on to them. Which of two elements
that are nearly the same has it is eager's rounding: to compute them as exactly would gain
nothing."""


def strict_values(graph: Graph) -> frozenset[str]:
    """The floating values of the graph that must be what eager computes, bit for bit where nothing
    is summed: those that a deciding operator reads, those marked, and what they are made of."""
    if not any(node.strict or _may_decide(node) for node in graph.nodes):
        return frozenset()
    table = types(graph)
    readers = (node for node in graph.nodes if ops.packet_name(node.op) not in GRADIENTS)
    read = {name for node in readers for name in node.uses}
    read |= {ref.name for ref in graph.outputs}
    strict: set[str] = set()
    for node in reversed(graph.nodes):
        strict.update(node.results if node.strict and node.op != CONVERT else ())
        carries = not strict.isdisjoint(node.results) and _carries(node)
        if carries or decides(node, table, read.__contains__):
            strict.update(node.uses)
    return frozenset(name for name in strict if not _whole(table[name]))


def fixed_nodes(graph: Graph) -> frozenset[str]:
    """The nodes that round, element by element, what must be as eager has it."""
    strict = strict_values(graph)
    return frozenset(
        node.name
        for node in graph.nodes
        if ops.packet_name(node.op) in ROUNDING_OPS and not strict.isdisjoint(node.results)
    )


def marked(graph: Graph) -> Graph:
    """The graph with its strict nodes marked, so that a part of it knows what is decided elsewhere;
    the same one if there are none."""
    strict = strict_values(graph)
    if not strict:
        return graph
    nodes = tuple(
        replace(node, strict=True)
        if not node.strict
        and not strict.isdisjoint(node.results)
        and (_carries(node) or node.types[0].dtype.is_complex)
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def divides_by_number(node: Node) -> bool:
    """Whether the call divides by a Python number, which eager does on a GPU by multiplying with
    its inverse: 147 / 49.0 there is the product of 147 and the fp32 number next to 1 / 49."""
    return ops.packet_name(node.op) == "aten.div" and isinstance(
        ops.arguments(node).get("other"), int | float
    )


def rounds(node: Node, types: Mapping[str, TensorType]) -> bool:
    """Whether it is a cast that gives up digits or range, which the model asked for: one that a
    rewrite has put where a half type ends is not marked, and no more than storing that."""
    return node.strict and loses(node.op, node.args, node.type, types)


def loses(op: str, args: Sequence[Arg], type: TensorType, types: Mapping[str, TensorType]) -> bool:
    """Whether the call is a cast that gives up digits or range."""
    if op != CONVERT or not args or not isinstance(args[0], Ref):
        return False
    return narrower(type.dtype, types[args[0].name].dtype)


def narrower(new: torch.dtype, old: torch.dtype) -> bool:
    """Whether some numbers of the old floating dtype are none of the new one."""
    if new == old or not (new.is_floating_point and old.is_floating_point):
        return False
    if 1 in (new.itemsize, old.itemsize):  # torch promotes no eight bits
        return new.itemsize == 1
    return torch.promote_types(new, old) != new


def decides(
    node: Node, types: Mapping[str, TensorType], read: Callable[[str], bool] = lambda name: True
) -> bool:
    """Whether its result jumps where what it reads is a little larger or smaller. `read`: whether
    somebody wants a result; places that nobody asks for decide nothing."""
    if not _may_decide(node) or all(_whole(types[name]) for name in node.uses):
        return False
    pairs = zip(node.results, node.types, strict=True)
    return _jumps(node) or any(read(name) for name, type in pairs if _whole(type))


def _may_decide(node: Node) -> bool:
    return _jumps(node) or any(map(_whole, node.types))


def _whole(type: TensorType) -> bool:
    return not (type.dtype.is_floating_point or type.dtype.is_complex)


def _jumps(node: Node) -> bool:
    name = ops.packet_name(node.op)
    if name in JUMPS or "quantize" in name or node.op == "aten.view.dtype":
        return True
    if name == "aten.div":
        return _named(node, "rounding_mode") is not None
    if name == "aten.grid_sampler_2d" or name == "aten.grid_sampler_3d":  # nearest; reflection
        return _named(node, "interpolation_mode") == 1 or _named(node, "padding_mode") == 2
    return False


def _named(node: Node, name: str) -> Arg:
    return ops.arguments(node).get(name)


def _carries(node: Node) -> bool:
    """Whether the result's bits are those of what it reads, by one rounding an element."""
    if ops.draws(node):
        return False
    return ops.kind_of(node) in ("pointwise", "move", "view") or (
        ops.packet_name(node.op) in REDUCTIONS
    )

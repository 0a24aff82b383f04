"""Batch normalisation in eval mode is an affine map per channel; it joins what stands before it.

    bn(x) = x*s + t      with  s = gamma / sqrt(var + eps),  t = beta - mean*s

    conv = convolution(x, w, b)            conv = convolution(x, w*s, b*s + t)
    bn   = batch_norm(conv)         ->
    relu = relu(bn)                        relu = relu(conv)

The new weights are nodes on constants, computed in at least single precision and cast back, which
constant folding then evaluates. A norm of a concatenation of convolutions goes into each of them.
What only moves whole channels may stand between:

    y = linear(x, w)              [1,196,256]     y = linear(x, w*s, t)
    z = reshape(y, [196, 256])              ->    z = reshape(y, [196, 256])
    bn = batch_norm(z)
Where nothing stands before it that could take the factor, it is left to `affine_batch_norm`.

Weights of half precision are rounded once more when they take the factor, which a short network
may show beside the model. `exact`: there, the affine map stays pointwise. A convolution that grows
beyond the largest number is an infinity before its norm, and none once it has the factor: this is
one of `special.PASSES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anabranch.ir import ops
from anabranch.ir.axis_order import PERMUTE, TRANSPOSE, order_of
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.ir.refused import Refused
from anabranch.rewrite.build import Builder, join_origins, rewrite
from anabranch.rewrite.passes.affine_batch_norm import (
    BATCH_NORM,
    affine,
    cast,
    not_constant,
    raised,
    reshaped,
)
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace


def fold_batch_norm(graph: Graph, trace: Trace, exact: bool = False) -> Graph:
    """The graph without batch norms of constant statistics behind what can take their factor.
    `exact`: no weight is rounded to half precision."""
    readers, producer_of = users(graph), producers(graph)
    returned = [ref.name for ref in graph.outputs]
    others = {
        name: len(readers.get(name, ())) - 1 + returned.count(name)
        for name in {*readers, *returned}
    }

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op != BATCH_NORM:
            return None
        arguments = ops.arguments(builder.renamed(node))
        source, views, axis = _source(node, producer_of, builder)
        parts = _parts(source) if source is not None else ()
        before = [builder.facts.producers.get(builder.substitute(name)) for name in parts]
        held = [node for node in before if node is not None and node.op in FACTORS]
        if source is None or not held or len(held) < len(parts) or not_constant(builder, arguments):
            return None
        if exact and node.type.dtype.itemsize < 4:
            refuse(trace, f"fold %{node.name}", "a weight of half precision would be rounded")
            return None
        if len(set(parts)) < len(parts):
            refuse(trace, f"fold %{node.name} into %{source.name}", "it joins a value twice")
            return None
        names = *parts, source.name, *(view.name for view in views)
        for name, maker in zip(names, (*held, source, *views), strict=True):
            if why := _not_foldable(builder, maker, others[name], axis):
                refuse(trace, f"fold %{node.name} into %{maker.name}", why.sentence)
                return None
        return _into(builder, source, held, views, node, arguments)

    return rewrite(graph, visit)


def _source(
    norm: Node, producer_of: Mapping[str, Node], builder: Builder
) -> tuple[Node | None, list[Node], int]:
    """The node that makes the channels that the norm reads, the nodes that move them on the way,
    the last first, and the axis they lie along where they are made."""
    direct = producer_of.get(norm.uses[0])
    source, views, axis = direct, list[Node](), 1
    while source is not None and source.op in MOVES:
        moved = builder.facts.types[builder.substitute(source.uses[0])]
        before = _axis_before(source, moved.shape, axis)
        if before is None:
            break
        views.append(source)
        source, axis = producer_of.get(source.uses[0]), before
    if source is not None and source.op in FACTORS:
        return source, views, axis
    return direct, [], 1


def _axis_before(node: Node, shape: tuple[int, ...], axis: int) -> int | None:
    """Which axis of a move's operand, of this shape, is this one of its result; None if none is."""
    order = order_of(node)
    if order is not None:
        return order[axis]
    after = math.prod(node.type.shape[axis + 1 :])
    same = (
        d
        for d, size in enumerate(shape)
        if size == node.type.shape[axis] and math.prod(shape[d + 1 :]) == after
    )
    return next(same, None)


def _parts(node: Node) -> tuple[str, ...]:
    """The values that hold the channels of a node's result: itself, or what it concatenates."""
    axis = ops.arguments(node)["dim"] if node.op == "aten.cat.default" else None
    return node.uses if axis in (1, 1 - len(node.type.shape)) else (node.name,)


def _not_foldable(builder: Builder, node: Node, others: int, axis: int) -> Refused | None:
    """Why the affine map cannot join this node."""
    if others:
        return Refused(f"%{node.name} is also read elsewhere ({others} more)")
    if node.op not in FACTORS:
        return None
    for arg in node.args[1:3]:
        if isinstance(arg, Ref) and arg.name not in builder.facts.constant:
            return Refused(f"its weight %{arg.name} is not constant")
    if node.op == "aten.linear.default" and len(node.type.shape) != axis + 1:
        return Refused("the channels of the norm are not the columns of the linear")
    if node.op == "aten.convolution.default" and axis != 1:
        return Refused("the channels of the norm are not those of the convolution")
    return None


def _into(
    builder: Builder,
    source: Node,
    parts: list[Node],
    views: list[Node],
    norm: Node,
    arguments: dict[str, Arg],
) -> Ref:
    """What stands before the norm with the norm in its weights; all keep their names."""
    factor, term = affine(builder, arguments, norm.origin)
    if source.op != "aten.cat.default":
        between = [builder.renamed(view) for view in views]
        for view in between:
            builder.remove(view)
        result = _scaled(builder, parts[0], norm, factor, term)
        for view in reversed(between):
            kwargs = dict(view.kwargs)
            args = view.args[1:]
            result = builder.instead(view, view.op, result, *args, **kwargs)
        return result
    start, values = 0, list[Ref]()
    builder.remove(source)
    for part in parts:
        end = start + part.type.shape[1]
        s, t = (
            builder.call("aten.slice.Tensor", value, 0, start, end, origin=norm.origin)
            for value in (factor, term)
        )
        values.append(_scaled(builder, part, norm, s, t))
        start = end
    origin = join_origins((source, norm))
    return builder.call(source.op, tuple(values), 1, name=source.name, origin=origin)


def _scaled(builder: Builder, before: Node, norm: Node, factor: Ref, term: Ref) -> Ref:
    """The convolution or linear with each channel of its result scaled and shifted."""
    origin = join_origins((before, norm))
    arguments = ops.arguments(before)
    weight, bias = arguments["weight"], arguments["bias"]
    assert isinstance(weight, Ref)
    dtype = builder.facts.types[weight.name].dtype
    wide, name = raised(builder, weight, origin), f"{weight.name}_folded"
    scaled = FACTORS[before.op](builder, before, wide, factor, name)
    if bias is not None:
        wide_bias = raised(builder, bias, origin)
        product = builder.call("aten.mul.Tensor", wide_bias, factor, origin=origin)
        term = builder.call(
            "aten.add.Tensor", product, term, name=f"{before.name}_bias", origin=origin
        )
    args = (
        before.args[0],
        cast(builder, scaled, dtype, origin, name),
        cast(builder, term, dtype, origin, f"{before.name}_bias"),
        *before.args[3:],
    )
    builder.remove(before)
    return builder.call(before.op, *args, name=before.name, origin=origin)


def _scaled_convolution(builder: Builder, node: Node, weight: Ref, factor: Ref, name: str) -> Ref:
    """The weight with each output channel scaled. A transposed one is stored [in, out/groups, ...],
    the groups one after the other along the input channels."""
    shape = builder.facts.types[weight.name].shape
    ones = (1,) * (len(shape) - 2)
    if not node.args[6]:
        per_channel = reshaped(builder, factor, (shape[0], 1, *ones), node.origin)
        return builder.call("aten.mul.Tensor", weight, per_channel, name=name, origin=node.origin)
    groups = node.args[8]
    assert isinstance(groups, int)
    grouped = (groups, shape[0] // groups, *shape[1:])
    per_channel = reshaped(builder, factor, (groups, 1, shape[1], *ones), node.origin)
    apart = reshaped(builder, weight, grouped, node.origin)
    product = builder.call("aten.mul.Tensor", apart, per_channel, origin=node.origin)
    return reshaped(builder, product, shape, node.origin, name)


def _scaled_linear(builder: Builder, node: Node, weight: Ref, factor: Ref, name: str) -> Ref:
    rows = builder.facts.types[weight.name].shape[0]
    per_row = reshaped(builder, factor, (rows, 1), node.origin)
    return builder.call("aten.mul.Tensor", weight, per_row, name=name, origin=node.origin)


FACTORS = {
    "aten.convolution.default": _scaled_convolution,
    "aten.linear.default": _scaled_linear,
}
"""The operators that can take a factor for each of their output channels into their weight, and
how."""
MOVES = frozenset({PERMUTE, TRANSPOSE, "aten.reshape.default", "aten.clone.default"})
"""The operators that leave numbers as they are, and channels whole where an axis is of their
number."""

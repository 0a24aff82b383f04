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
Where nothing stands before it that could take the factor, one pointwise `addcmul(t, x, s)` is
cheaper than the library's two launches. Its factor and term stay in single precision, as in the
library's kernel: a rounded factor is off by the same for all elements of a channel, so that sums of
them do not average it.

Weights of half precision are rounded once more when they take the factor, which a short network
may show beside the model. `exact`: there, the affine map stays pointwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from anabranch.ir import ops
from anabranch.ir.axis_order import PERMUTE, TRANSPOSE, order_of
from anabranch.ir.graph import Arg, Graph, Node, Ref, producers, users
from anabranch.ir.refused import Refused
from anabranch.rewrite.build import Builder, join_origins, rewrite
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace


def fold_batch_norm(graph: Graph, trace: Trace, exact: bool = False) -> Graph:
    """The graph without batch norms whose statistics are constants. `exact`: no weight is rounded
    to half precision."""
    readers, made = users(graph), producers(graph)
    returned = [ref.name for ref in graph.outputs]
    others = {
        name: len(readers.get(name, ())) - 1 + returned.count(name)
        for name in {*readers, *returned}
    }

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op != "aten.batch_norm.default":
            return None
        given = ops.arguments(builder.renamed(node))
        if why := _not_constant(builder, given):
            refuse(trace, f"fold %{node.name}", why.sentence)
            return None
        if exact and node.type.dtype.itemsize < 4:
            refuse(trace, f"fold %{node.name}", "a weight of half precision would be rounded")
            return _pointwise(builder, node, given)
        source, views, axis = _source(node, made, builder)
        parts = _parts(source) if source is not None else ()
        before = [builder.known.producers.get(builder.substitute(name)) for name in parts]
        held = [node for node in before if node is not None and node.op in FACTORS]
        if source is None or not held or len(held) < len(parts):
            return _pointwise(builder, node, given)
        if len(set(parts)) < len(parts):
            refuse(trace, f"fold %{node.name} into %{source.name}", "it joins a value twice")
            return _pointwise(builder, node, given)
        names = *parts, source.name, *(view.name for view in views)
        for name, maker in zip(names, (*held, source, *views), strict=True):
            if why := _not_foldable(builder, maker, others[name], axis):
                refuse(trace, f"fold %{node.name} into %{maker.name}", why.sentence)
                return _pointwise(builder, node, given)
        return _into(builder, source, held, views, node, given)

    return rewrite(graph, visit)


def _source(
    norm: Node, made: Mapping[str, Node], builder: Builder
) -> tuple[Node | None, list[Node], int]:
    """What makes the channels that the norm reads, what moves them on the way, the last first, and
    the axis they lie along where they are made."""
    direct = made.get(norm.uses[0])
    source, views, axis = direct, list[Node](), 1
    while source is not None and source.op in MOVES:
        moved = builder.known.types[builder.substitute(source.uses[0])]
        before = _axis_before(source, moved.shape, axis)
        if before is None:
            break
        views.append(source)
        source, axis = made.get(source.uses[0]), before
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


def _not_constant(builder: Builder, given: dict[str, Arg]) -> Refused | None:
    """Why the norm is no constant affine map."""
    if given["training"]:
        return Refused("it normalises by the statistics of the batch")
    for key in ("weight", "bias", "running_mean", "running_var"):
        value = given[key]
        if isinstance(value, Ref) and value.name not in builder.known.constant:
            return Refused(f"its {key} %{value.name} is not constant")
    return Refused.unless(given["running_mean"] is not None, "it has no running statistics")


def _not_foldable(builder: Builder, node: Node, others: int, axis: int) -> Refused | None:
    """Why the affine map cannot join this node."""
    if others:
        return Refused(f"%{node.name} is also read elsewhere ({others} more)")
    if node.op not in FACTORS:
        return None
    for arg in node.args[1:3]:
        if isinstance(arg, Ref) and arg.name not in builder.known.constant:
            return Refused(f"its weight %{arg.name} is not constant")
    if node.op == "aten.linear.default" and len(node.type.shape) != axis + 1:
        return Refused("the channels of the norm are not the columns of the linear")
    if node.op == "aten.convolution.default" and axis != 1:
        return Refused("the channels of the norm are not those of the convolution")
    return None


def _affine(builder: Builder, given: dict[str, Arg], origin: str) -> tuple[Ref, Ref]:
    """The factor and the term of each channel, in at least single precision."""
    variance = _raised(builder, given["running_var"], origin)
    mean = _raised(builder, given["running_mean"], origin)
    safe = builder.call("aten.add.Tensor", variance, given["eps"], origin=origin)
    factor = builder.call("aten.rsqrt.default", safe, origin=origin)
    if given["weight"] is not None:
        gamma = _raised(builder, given["weight"], origin)
        factor = builder.call("aten.mul.Tensor", factor, gamma, origin=origin)
    shift = builder.call("aten.mul.Tensor", mean, factor, origin=origin)
    if given["bias"] is None:  # 0 - 0.0, for a term of -0.0 would let -0.0 through
        return factor, builder.call("aten.rsub.Scalar", shift, 0, origin=origin)
    beta = _raised(builder, given["bias"], origin)
    return factor, builder.call("aten.sub.Tensor", beta, shift, origin=origin)


def _into(
    builder: Builder,
    source: Node,
    parts: list[Node],
    views: list[Node],
    norm: Node,
    given: dict[str, Arg],
) -> Ref:
    """What stands before the norm with the norm in its weights; all keep their names."""
    factor, term = _affine(builder, given, norm.origin)
    if source.op != "aten.cat.default":
        between = [builder.renamed(view) for view in views]
        for view in between:
            builder.remove(view)
        made = _scaled(builder, parts[0], norm, factor, term)
        for view in reversed(between):
            kwargs = dict(view.kwargs)
            args = view.args[1:]
            made = builder.instead(view, view.op, made, *args, **kwargs)
        return made
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
    dtype = builder.known.types[weight.name].dtype
    wide, name = _raised(builder, weight, origin), f"{weight.name}_folded"
    scaled = FACTORS[before.op](builder, before, wide, factor, name)
    if bias is not None:
        raised = _raised(builder, bias, origin)
        product = builder.call("aten.mul.Tensor", raised, factor, origin=origin)
        term = builder.call(
            "aten.add.Tensor", product, term, name=f"{before.name}_bias", origin=origin
        )
    args = (
        before.args[0],
        _cast(builder, scaled, dtype, origin, name),
        _cast(builder, term, dtype, origin, f"{before.name}_bias"),
        *before.args[3:],
    )
    builder.remove(before)
    return builder.call(before.op, *args, name=before.name, origin=origin)


def _scaled_convolution(builder: Builder, node: Node, weight: Ref, factor: Ref, name: str) -> Ref:
    """The weight with each output channel scaled. A transposed one is stored [in, out/groups, ...],
    the groups one after the other along the input channels."""
    shape = builder.known.types[weight.name].shape
    ones = (1,) * (len(shape) - 2)
    if not node.args[6]:
        per_channel = _reshaped(builder, factor, (shape[0], 1, *ones), node.origin)
        return builder.call("aten.mul.Tensor", weight, per_channel, name=name, origin=node.origin)
    groups = node.args[8]
    assert isinstance(groups, int)
    grouped = (groups, shape[0] // groups, *shape[1:])
    per_channel = _reshaped(builder, factor, (groups, 1, shape[1], *ones), node.origin)
    apart = _reshaped(builder, weight, grouped, node.origin)
    product = builder.call("aten.mul.Tensor", apart, per_channel, origin=node.origin)
    return _reshaped(builder, product, shape, node.origin, name)


def _scaled_linear(builder: Builder, node: Node, weight: Ref, factor: Ref, name: str) -> Ref:
    rows = builder.known.types[weight.name].shape[0]
    per_row = _reshaped(builder, factor, (rows, 1), node.origin)
    return builder.call("aten.mul.Tensor", weight, per_row, name=name, origin=node.origin)


FACTORS = {
    "aten.convolution.default": _scaled_convolution,
    "aten.linear.default": _scaled_linear,
}
"""What can take a factor for each of its output channels into its weight, and how."""
MOVES = frozenset({PERMUTE, TRANSPOSE, "aten.reshape.default", "aten.clone.default"})
"""What leaves numbers as they are, and channels whole where an axis is of their number."""


def _pointwise(builder: Builder, node: Node, given: dict[str, Arg]) -> Ref:
    """x*s + t as one launch, in at least single precision; the result has the dtype of x."""
    factor, term = _affine(builder, given, node.origin)
    channel = (1, node.type.shape[1], *(1,) * (len(node.type.shape) - 2))
    s, t = (_reshaped(builder, value, channel, node.origin) for value in (factor, term))
    made = builder.instead(node, "aten.addcmul.default", t, given["input"], s)
    return _cast(builder, made, node.type.dtype, node.origin)


def _raised(builder: Builder, value: Arg, origin: str) -> Ref:
    """The value in at least single precision."""
    assert isinstance(value, Ref)
    dtype = builder.known.types[value.name].dtype
    return value if dtype.itemsize >= 4 else _cast(builder, value, torch.float32, origin)


def _cast(builder: Builder, value: Ref, dtype: torch.dtype, origin: str, name: str = "") -> Ref:
    if builder.known.types[value.name].dtype == dtype:
        return value
    return builder.call("aten._to_copy.default", value, name=name, dtype=dtype, origin=origin)


def _reshaped(
    builder: Builder, value: Ref, shape: tuple[int, ...], origin: str, name: str = ""
) -> Ref:
    return builder.call("aten.reshape.default", value, shape, name=name, origin=origin)

"""Batch norms in eval mode that stand alone are one pointwise map per channel.

    n = batch_norm(x)     ->     n = addcmul(t, x, s)
                                 with  s = gamma / sqrt(var + eps),  t = beta - mean*s

One `addcmul` is cheaper than the library's two launches, and is computed where the value is read.
Its factor and term stay in single precision, as in the library's kernel: a rounded factor is off by
the same for all elements of a channel, so that sums of them do not average it. A norm that a
convolution or linear before it can take is `fold_batch_norm`'s, which comes first.
"""

from __future__ import annotations

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Graph, Node, Ref
from anabranch.ir.refused import Refused
from anabranch.rewrite.build import Builder, rewrite
from anabranch.rewrite.refuse import refuse
from anabranch.trace import Trace

BATCH_NORM = "aten.batch_norm.default"


def affine_batch_norm(graph: Graph, trace: Trace) -> Graph:
    """The graph without batch norms whose statistics are constants."""

    def visit(builder: Builder, node: Node) -> Ref | None:
        if node.op != BATCH_NORM:
            return None
        arguments = ops.arguments(builder.renamed(node))
        if why := not_constant(builder, arguments):
            refuse(trace, f"map %{node.name} by constants", why.sentence)
            return None
        return _pointwise(builder, node, arguments)

    return rewrite(graph, visit)


def not_constant(builder: Builder, arguments: dict[str, Arg]) -> Refused | None:
    """Why a norm with these arguments is no constant affine map."""
    if arguments["training"]:
        return Refused("it normalises by the statistics of the batch")
    for key in ("weight", "bias", "running_mean", "running_var"):
        value = arguments[key]
        if isinstance(value, Ref) and value.name not in builder.facts.constant:
            return Refused(f"its {key} %{value.name} is not constant")
    return Refused.unless(arguments["running_mean"] is not None, "it has no running statistics")


def _pointwise(builder: Builder, node: Node, arguments: dict[str, Arg]) -> Ref:
    """x*s + t as one launch, in at least single precision; the result has the dtype of x."""
    factor, term = affine(builder, arguments, node.origin)
    channel = (1, node.type.shape[1], *(1,) * (len(node.type.shape) - 2))
    s, t = (reshaped(builder, value, channel, node.origin) for value in (factor, term))
    mapped = builder.instead(node, "aten.addcmul.default", t, arguments["input"], s)
    return cast(builder, mapped, node.type.dtype, node.origin)


def affine(builder: Builder, arguments: dict[str, Arg], origin: str) -> tuple[Ref, Ref]:
    """The factor and the term of each channel, in at least single precision."""
    variance = raised(builder, arguments["running_var"], origin)
    mean = raised(builder, arguments["running_mean"], origin)
    safe = builder.call("aten.add.Tensor", variance, arguments["eps"], origin=origin)
    factor = builder.call("aten.rsqrt.default", safe, origin=origin)
    if arguments["weight"] is not None:
        gamma = raised(builder, arguments["weight"], origin)
        factor = builder.call("aten.mul.Tensor", factor, gamma, origin=origin)
    shift = builder.call("aten.mul.Tensor", mean, factor, origin=origin)
    if arguments["bias"] is None:  # 0 - 0.0, for a term of -0.0 would let -0.0 through
        return factor, builder.call("aten.rsub.Scalar", shift, 0, origin=origin)
    beta = raised(builder, arguments["bias"], origin)
    return factor, builder.call("aten.sub.Tensor", beta, shift, origin=origin)


def raised(builder: Builder, value: Arg, origin: str) -> Ref:
    """The value in at least single precision."""
    assert isinstance(value, Ref)
    dtype = builder.facts.types[value.name].dtype
    return value if dtype.itemsize >= 4 else cast(builder, value, torch.float32, origin)


def cast(builder: Builder, value: Ref, dtype: torch.dtype, origin: str, name: str = "") -> Ref:
    """The value in this dtype."""
    if builder.facts.types[value.name].dtype == dtype:
        return value
    return builder.call("aten._to_copy.default", value, name=name, dtype=dtype, origin=origin)


def reshaped(
    builder: Builder, value: Ref, shape: tuple[int, ...], origin: str, name: str = ""
) -> Ref:
    """The value in this shape."""
    return builder.call("aten.reshape.default", value, shape, name=name, origin=origin)

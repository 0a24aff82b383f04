"""Means that operators compute beside variances, as means are defined.

ATen updates a running mean (Welford's algorithm): where an infinity is met before the last element,
that mean is `inf - inf`, and where it comes last it is the infinity. So which of the two a row has
is a matter of the order, which differs by device, shape and layout, and a sum over the count is as
right. The higher precision has the latter (`ir.eval`), the model's own has ATen's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.graph import Node

PLACE = 1
"""Of the mean among the results of all of these operators."""


def _var_mean(x: Tensor, args: dict[str, Any]) -> Tensor:
    axes = args.get("dim")
    return x.mean(list(range(x.dim())) if axes in (None, []) else axes, args.get("keepdim", False))


def _layer_norm(x: Tensor, args: dict[str, Any]) -> Tensor:
    return x.mean(list(range(-len(args["normalized_shape"]), 0)), keepdim=True)


def _group_norm(x: Tensor, args: dict[str, Any]) -> Tensor:
    return x.reshape(args["N"], args["group"], -1).mean(-1)


MEANS: dict[str, Callable[[Tensor, dict[str, Any]], Tensor]] = {
    "aten.var_mean": _var_mean,
    "aten.native_layer_norm": _layer_norm,
    "aten.native_group_norm": _group_norm,
}


def with_plain_mean(
    node: Node, get: Callable[[str], Any], results: Sequence[Any]
) -> tuple[Any, ...]:
    """The results of the node, what it reads being what `get` gives, with the mean as it is
    defined; as they are if none of them is one."""
    mean = MEANS.get(ops.packet_name(node.op))
    if mean is None:
        return tuple(results)
    args = {name: ops.map_refs(arg, get) for name, arg in ops.arguments(node).items()}
    x = args.get("self", args.get("input"))
    if not isinstance(x, Tensor) or not x.numel():
        return tuple(results)
    plain_mean = mean(x, args).reshape(results[PLACE].shape)
    return *results[:PLACE], plain_mean, *results[PLACE + 1 :]

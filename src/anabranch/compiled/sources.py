"""What a plan still has of the weights that it was given: a plan -> tensors by the model's names.

%linear_weight                            linear.weight, as it is
%deep_weight  alias, other strides        deep.weight, other strides
%qkv_bias     reshape                     qkv.bias, reshaped back
%conv_weight  mul(conv.weight, ...)       nobody knows conv.weight any more
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.axis_order import axis_order
from anabranch.ir.graph import Constant, Derivation, Node
from anabranch.ir.plan import Plan
from anabranch.ir.recipe import follows, leaves


def sources(plan: Plan) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The weights that lie in the plan's memory, by name: views of it, which nobody may write to;
    and the names of those that it was computed of and does not have."""
    weights: dict[str, Tensor] = {}
    read: dict[str, None] = {}
    for constant in plan.tasks.constants:
        if not follows(constant):
            continue
        read.update(dict.fromkeys(name for leaf in leaves([constant]) for name in leaf.source))
        if constant.value is not None and (source := _source(constant, constant.value)):
            leaf, value = source
            weights.update(dict.fromkeys(leaf.source, value))
    if plan.recipe is not None:
        for leaf in plan.recipe.sources:
            if leaf.name in plan.recipe.kept:
                weights.update(dict.fromkeys(leaf.source, plan.recipe.kept[leaf.name]))
    return weights, tuple(name for name in read if name not in weights)


def _source(constant: Constant, value: Tensor) -> tuple[Constant, Tensor] | None:
    """The captured constant that this one has all numbers of, and its value; None if it has not."""
    how: Constant | Derivation = constant
    while True:
        if isinstance(how, Constant):
            if how.derived is None:
                same = (value.shape, value.dtype) == (how.type.shape, how.type.dtype)
                return (how, value) if same and how.source else None
            how = how.derived
        undo = UNDO.get(ops.packet_name(how.node.op))
        if undo is None or len(how.reads) != 1:
            return None
        (before,) = how.reads.values()
        shape = before.type.shape if isinstance(before, Constant) else before.node.type.shape
        undone = undo(value, how.node, shape)
        if undone is None:
            return None
        value, how = undone, before


def _same(value: Tensor, _: Node, __: tuple[int, ...]) -> Tensor:
    return value


def _reshaped(value: Tensor, _: Node, shape: tuple[int, ...]) -> Tensor | None:
    return value.reshape(shape) if value.numel() == _count(shape) else None


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _permuted(value: Tensor, node: Node, shape: tuple[int, ...]) -> Tensor:
    order = axis_order(ops.arguments(node), len(shape))
    return value.permute([order.index(i) for i in range(len(order))])


UNDO: Mapping[str, Callable[[Tensor, Node, tuple[int, ...]], Tensor | None]] = {
    **dict.fromkeys(("aten.alias", "aten.clone", "aten.detach", "aten.contiguous"), _same),
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten"), _reshaped),
    **dict.fromkeys(("aten.unsqueeze", "aten.squeeze"), _reshaped),
    **dict.fromkeys(("aten.transpose", "aten.permute", "aten.t"), _permuted),
}
"""Moves of numbers, and how they are taken back."""

"""Norms, as the functions of torch that its own modules call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.element_types import DTYPES, FLOAT, dtype_of
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.shape import reshape

EPSILON = 1e-5


def batch_norm(
    call: OnnxCall, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor | tuple[Tensor, ...]:
    """BatchNormalization, with the statistics that it has, or with the batch's own."""
    eps = call.get("epsilon", EPSILON)
    if not call.get("training_mode", 0):
        if scale.dtype != x.dtype or mean.dtype != x.dtype:
            mean, variance = mean.to(x.dtype), variance.to(x.dtype)
            scale, bias = scale.to(x.dtype), bias.to(x.dtype)
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, eps)
    axes, old = [0, *range(2, x.dim())], call.get("momentum", 0.9)
    own_mean = x.mean(axes)
    own_variance = x.var(axes, correction=0)
    normalised = F.batch_norm(x, own_mean, own_variance, scale, bias, False, 0.0, eps)
    running = mean * old + own_mean * (1 - old), variance * old + own_variance * (1 - old)
    return normalised, *running


def layer_norm(
    call: OnnxCall, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> Tensor | tuple[Tensor, ...]:
    """LayerNormalization over all axes from one on; its mean and deviation where they are asked."""
    axis, eps = call.get("axis", -1) % x.dim(), call.get("epsilon", EPSILON)
    shape, axes = list(x.shape[axis:]), list(range(axis, x.dim()))
    same = list(scale.shape) == shape and (bias is None or list(bias.shape) == shape)
    if same and scale.dtype == x.dtype:
        normalised = F.layer_norm(x, shape, scale, bias, eps)
    else:
        normalised = F.layer_norm(x, shape, None, None, eps) * scale
        normalised = normalised if bias is None else normalised + bias
    if len(call.node.outputs) == 1:
        return normalised
    wide = x.to(DTYPES[call.get("stash_type", 1)])
    variance, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    return normalised, mean, torch.rsqrt(variance + eps)


def rms_norm(call: OnnxCall, x: Tensor, scale: Tensor) -> Tensor:
    """RMSNormalization over all axes from one on."""
    axis, eps = call.get("axis", -1) % x.dim(), call.get("epsilon", EPSILON)
    shape = list(x.shape[axis:])
    kind = dtype_of(call.get("stash_type", FLOAT), call.floats)
    if list(scale.shape) == shape and kind == x.dtype == scale.dtype:
        return F.rms_norm(x, shape, scale, eps)
    return F.rms_norm(x.to(kind), shape, None, eps).to(x.dtype) * scale


def instance_norm(call: OnnxCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """InstanceNormalization."""
    return F.instance_norm(x, None, None, scale, bias, True, 0.0, call.get("epsilon", EPSILON))


def group_norm(call: OnnxCall, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """GroupNormalization; before opset 21, with a scale and a bias for each group."""
    groups, eps = call.need("num_groups", int), call.get("epsilon", EPSILON)
    if call.node.version < 21 and scale.shape[0] != x.shape[1]:
        each = x.shape[1] // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return F.group_norm(x, groups, scale, bias, eps)


def plain_group_norm(
    call: OnnxCall, x: Tensor, scale: Tensor, bias: Tensor, inner: list[int], outer: list[int]
) -> Tensor:
    """Norms of x in the shape `inner`, (examples, groups, rest), back in the shape `outer`, as
    `patterns` finds them: torch's norm of groups where x keeps its shape, and scales are those of
    channels; else what the file says."""
    grouped, eps = reshape(call, x, inner), call.get("epsilon", EPSILON)
    channels = [1, x.shape[1], *[1] * (x.dim() - 2)]
    plain = grouped.dim() == 3 and grouped.shape[0] == x.shape[0]
    plain = plain and reshape(call, grouped, outer).shape == x.shape
    if plain and all([1] * (x.dim() - s.dim()) + list(s.shape) == channels for s in (scale, bias)):
        return F.group_norm(x, grouped.shape[1], scale.reshape(-1), bias.reshape(-1), eps)
    normed = F.instance_norm(grouped, None, None, None, None, True, 0.0, eps)
    return reshape(call, normed, outer) * scale + bias


def lrn(call: OnnxCall, x: Tensor) -> Tensor:
    """LRN, as torch's local response norm."""
    alpha, beta = call.get("alpha", 1e-4), call.get("beta", 0.75)
    size, k = call.need("size", int), call.get("bias", 1.0)
    if size % 2:
        return F.local_response_norm(x, size, alpha, beta, k)
    before = (size - 1) // 2
    squares = F.pad((x * x).movedim(1, -1), (before, size - 1 - before))
    mean = squares.unfold(-1, size, 1).sum(-1).movedim(-1, 1)
    return x / (k + alpha / size * mean) ** beta


def mean_variance(call: OnnxCall, x: Tensor) -> Tensor:
    """MeanVarianceNormalization."""
    axes = list(call.get("axes", (0, 2, 3)))
    centred = x - x.mean(axes, keepdim=True)
    return centred / ((centred * centred).mean(axes, keepdim=True).sqrt() + 1e-9)


NORMALISATION: OperatorTable = {
    "anabranch.GroupNorm": OnnxOperator(plain_group_norm, numbers=(3, 4)),
    "BatchNormalization": OnnxOperator(batch_norm),
    "GroupNormalization": OnnxOperator(group_norm),
    "InstanceNormalization": OnnxOperator(instance_norm),
    "LRN": OnnxOperator(lrn),
    "LayerNormalization": OnnxOperator(layer_norm),
    "MeanVarianceNormalization": OnnxOperator(mean_variance),
    "RMSNormalization": OnnxOperator(rms_norm),
}

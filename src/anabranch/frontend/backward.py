"""Which operators the backward and the update of a training step are written in.

`frontend.training` traces a step twice: plainly, with autograd running, and once more what came of
it as functional ATen. `prepared` stands between the two, `training_decompositions` is the table of
the second. Parts of a backward that are elementwise or sums become just that, so that they fuse as
others do; what is a contraction becomes contractions with one result each, which a schedule may
move apart:

    convolution_backward(g, x, w, ..)   ->   convolution(g, w, .., transposed=not transposed, ..)
                                             anabranch.conv_weight_grad(g, x, ..)
                                             sum(g, [0, 2, 3])
    native_layer_norm_backward          ->   sums and arithmetic
    nll_loss_backward                   ->   where(arange == target, -g / total, 0)
    _native_batch_norm_legit_functional ->   var_mean of the batch, arithmetic, new running values

Gradients of activations stay one operator each, elementwise as the activation is; of attention
there is one pair of operators, whichever library torch would take (`ir.attention_ops`); lookups,
maxima of windows and interpolation keep the backward that the library has for them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions

from anabranch.frontend.attention import PAIRS
from anabranch.frontend.batch_statistics import batch_norm, lines, pixels, sum_dtype
from anabranch.frontend.operators import decompositions
from anabranch.frontend.real_layouts import lying_as
from anabranch.ir import custom_ops, ops

aten = torch.ops.aten

DECOMPOSED = (
    *("glu_backward", "logit_backward", "native_dropout_backward"),
    *("log_sigmoid_forward", "log_sigmoid_backward"),
    *("_softmax_backward_data", "_log_softmax_backward_data"),
    *("native_group_norm_backward", "rrelu_with_noise_backward"),
    *("_fused_rms_norm", "_fused_rms_norm_backward"),
    *("nll_loss_forward", "nll_loss2d_forward"),
    *("mse_loss", "mse_loss_backward", "smooth_l1_loss"),
    *("huber_loss", "soft_margin_loss", "soft_margin_loss_backward"),
    *("binary_cross_entropy", "binary_cross_entropy_backward"),
    *("binary_cross_entropy_with_logits",),
    *("select_backward", "slice_backward", "diagonal_backward"),
)
"""Operators that torch knows as what fuses: arithmetic, sums, and writing into zeros."""

GRADIENT = "_backward.default"
"""How gradients end that `operators.decompositions` would take apart."""
SILENT = {
    # operator: what says in its schema that it writes
    "aten.native_batch_norm.default": "aten._native_batch_norm_legit.default",
    "aten.cudnn_batch_norm.default": "aten._native_batch_norm_legit.default",
}
"""Batch norms that write running statistics and do not say so, which no functional graph keeps."""


@functools.cache
def training_decompositions() -> dict[Any, Callable[..., Any]]:
    """The table by which a training step becomes functional ATen (`make_fx`)."""
    packets = [getattr(aten, name) for name in DECOMPOSED]
    kept = {op: by for op, by in decompositions().items() if not str(op).endswith(GRADIENT)}
    torchs = get_decompositions(packets)
    torchs = {op: lying_as(op, by) for op, by in torchs.items()}
    return {**kept, **torchs, **_of_lists(), **OWN_DECOMPOSITIONS}


def prepared(step: fx.GraphModule) -> fx.GraphModule:
    """The step with every write said: batch norms as what shows that it writes. Changes the module
    that it is given, and returns it."""
    for node in list(step.graph.nodes):
        if node.op == "call_function" and str(node.target) in SILENT:
            _say_what_is_written(node)
        elif node.op == "call_function" and node.target is aten.cudnn_batch_norm_backward.default:
            x, grad, weight, mean, var, saved_mean, saved_rstd, eps, _ = node.args
            node.target = aten.native_batch_norm_backward.default
            node.args = (grad, x, weight, mean, var, saved_mean, saved_rstd, True, eps)
            node.args = (*node.args, [True, True, True])
    step.graph.eliminate_dead_code()
    step.recompile()
    return step


def _say_what_is_written(node: fx.Node) -> None:
    x, weight, bias, mean, var, training, momentum, eps = node.args
    legit = aten._native_batch_norm_legit
    if mean is None and training:
        node.target, node.args = legit.no_stats, (x, weight, bias, True, momentum, eps)
    elif training:
        node.target = legit.default
    else:
        node.target = aten._native_batch_norm_legit_no_training.default
        node.args = (x, weight, bias, mean, var, momentum, eps)


def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """A contraction for each gradient that is asked for, and a sum. The gradient of x is the
    transposed convolution, of a transposed one the plain one."""
    rank = x.dim() - 2
    stride, padding, dilation, extra = (
        [*numbers] * rank if len(numbers) == 1 else [*numbers]
        for numbers in (stride, padding, dilation, output_padding)
    )
    if transposed and any(more >= by for more, by in zip(extra, stride, strict=True)):
        return NotImplemented  # the plain one has more results than x has places
    window = (stride, padding, dilation)
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        of_x = _gradient_of_image(grad, x, weight, *window, transposed, groups)
    if output_mask[1]:
        of_weight = ops.resolve(custom_ops.CONV_WEIGHT_GRAD)(
            *((x, grad) if transposed else (grad, x)), list(weight.shape), *window, groups
        )
    if output_mask[2]:
        of_bias = grad.sum([0, *range(2, rank + 2)])
    return of_x, of_weight, of_bias


def _gradient_of_image(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    groups: int,
) -> Tensor:
    window, swapped = (stride, padding, dilation), not transposed
    reach = [0] * len(stride)
    size = weight.shape[2:]
    if not transposed and groups == 1 and max(*size, *stride) == 1 and not any(padding):
        weight, swapped = weight.transpose(0, 1), False  # each place by itself: a matrix product
    elif not transposed:
        sizes = zip(x.shape[2:], grad.shape[2:], size, *window, strict=True)
        reach = [m - ((n - 1) * s - 2 * p + d * (k - 1) + 1) for m, n, k, s, p, d in sizes]
    gradient: Tensor = aten.convolution(grad, weight, None, *window, swapped, reach, groups)
    return gradient


def _sum(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of each channel, as [1, c, 1, 1], of long images line by line, as `_var_mean` has
    it."""
    among, line = lines(x)
    sums = x.sum(line, keepdim=True, dtype=dtype)
    return sums.sum(among, keepdim=True) if among else sums


def _batch_norm_of_batch(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3]


def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    saved_mean: Tensor | None,
    saved_scale: Tensor | None,
    training: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Two sums over the batch, then arithmetic. How far x is from the mean is said in one way for
    the sums and in another for the rest: as one value it would be stored between them."""
    _, shape = pixels(x)
    if training:
        assert saved_mean is not None and saved_scale is not None
        center, scale = saved_mean.view(shape), saved_scale.view(shape)
    else:
        assert mean is not None and var is not None
        center, scale = mean.view(shape), torch.rsqrt(var.to(sum_dtype(x)) + eps).view(shape)
    count = x.numel() // x.shape[1]
    total, against = _sum(grad, sum_dtype(x)), _sum(grad * (center - x), sum_dtype(x))
    factor = scale if weight is None else scale * weight.view(shape)
    of_x = of_weight = of_bias = None
    if output_mask[0] and training:
        along = against * (scale * scale) / count
        of_x = ((grad - total / count + (x - center) * along) * factor).to(x.dtype)
    elif output_mask[0]:
        of_x = (grad * factor).to(x.dtype)
    if output_mask[1]:
        of_weight = (-against * scale).view(-1).to(x.dtype if weight is None else weight.dtype)
    if output_mask[2]:
        of_bias = total.view(-1).to(x.dtype if weight is None else weight.dtype)
    return of_x, of_weight, of_bias


def _native_layer_norm(
    x: Tensor, size: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> Any:
    """Of a half type with fp32 weights, as under autocast on a CPU: its statistics are fp32 there,
    which torch's rule for tensors without values does not know."""
    weights = [each.dtype for each in (weight, bias) if each is not None]
    if x.device.type != "cpu" or all(dtype == x.dtype for dtype in weights):
        return NotImplemented
    y, mean, scale = aten.native_layer_norm.default(x.to(sum_dtype(x)), size, weight, bias, eps)
    return y.to(x.dtype), mean, scale


def _layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    size: Sequence[int],
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Sums along each row, and down the columns for weight and bias, said in another way: these are
    two kernels, each of which reads what both need."""
    rank = x.dim() - len(size)
    rows, columns = list(range(rank)), list(range(rank, x.dim()))
    wide, count = sum_dtype(x), math.prod(size)
    of_x = of_weight = of_bias = None
    if output_mask[0]:
        normal = (x - mean) * scale
        weighted = grad.to(wide) if weight is None else grad * weight.to(wide)
        total = weighted.sum(columns, keepdim=True)
        along = (weighted * normal).sum(columns, keepdim=True)
        of_x = ((weighted - total / count - normal * (along / count)) * scale).to(x.dtype)
    if output_mask[1] and weight is not None:
        against = grad * ((mean - x) * scale)
        of_weight = -(against.sum(rows) if rows else against).to(weight.dtype)
    if output_mask[2] and bias is not None:
        of_bias = (grad.sum(rows, dtype=wide) if rows else grad).to(bias.dtype)
    return of_x, of_weight, of_bias


def _native_group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    pixels: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """In the same steps on every device; torch's takes the mean and the bias together on a CPU."""
    parts = x.to(sum_dtype(x)).reshape(batch, groups, channels // groups, pixels)
    var, mean = torch.var_mean(parts, [2, 3], correction=0, keepdim=True)
    scale = torch.rsqrt(var + eps)
    normal = ((parts - mean) * scale).view(x.shape)
    shape = [1, channels, *[1] * (x.dim() - 2)]
    if weight is not None:
        normal = normal * weight.view(shape)
    if bias is not None:
        normal = normal + bias.view(shape)
    flat = (batch, groups)
    return normal.to(x.dtype), mean.view(flat).to(x.dtype), scale.view(flat).to(x.dtype)


def _nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    """Each class asks whether it is the target; torch scatters ones into zeros."""
    channel = 0 if x.dim() < 2 else 1
    shape = [-1 if d == channel else 1 for d in range(x.dim())]
    if reduction == 1:  # the mean
        grad = grad / total_weight
    target = target[0] if x.dim() == 1 and target.dim() else target
    target = target.unsqueeze(channel)
    if x.dim() > grad.dim() > 0:
        grad = grad.unsqueeze(channel)
    classes = torch.arange(x.shape[channel], device=x.device).view(shape)
    if weight is not None:
        grad = grad * weight.view(shape)
    hit = (classes == target) & (target != ignore_index)
    return torch.where(hit, -grad, 0).to(x.dtype)


def _linalg_vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """The square root of a sum of squares, as which it fuses with what made the operand; half types
    add up in fp32."""
    if ord not in (1, 2) or x.is_complex():
        return NotImplemented
    wide = torch.promote_types(dtype or x.dtype, torch.float32)
    far = x.to(wide)
    dims = list(range(x.dim())) if dim is None else list(dim)
    norm = far.abs() if ord == 1 else far * far
    norm = norm.sum(dims, keepdim) if x.dim() else norm
    return (norm if ord == 1 else norm.sqrt()).to(dtype or x.dtype)


def _of_lists() -> dict[Any, Callable[..., Any]]:
    """Operators on lists of tensors (`_foreach_add`), as which optimisers update all weights, each
    as an operator for every tensor."""
    table: dict[Any, Callable[..., Any]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.removeprefix("aten::").partition(".")
        single = name.removeprefix("_foreach_")
        single = "linalg_vector_norm" if single == "norm" else single
        pure = name.startswith("_foreach_") and not name.endswith("_") and "out" not in overload
        if full.startswith("aten::") and pure and hasattr(aten, single):
            op = getattr(getattr(aten, name), overload or "default")
            table[op] = functools.partial(_one_by_one, op, getattr(aten, single))
    return table


def _one_by_one(op: torch._ops.OpOverload, single: Any, *args: Any, **named: Any) -> Any:
    """The operator of one tensor, for each of the lists."""
    schema = op._schema.arguments
    if any(arg.name == "scalars" and str(arg.type) == "Tensor" for arg in schema):
        return NotImplemented
    named |= {arg.name: value for arg, value in zip(schema, args, strict=False)}
    listed = {arg.name for arg in schema if isinstance(arg.type, torch.ListType)}
    count = max(len(value) for name, value in named.items() if name in listed)
    results = []
    for i in range(count):
        own = {name: value[i] if name in listed else value for name, value in named.items()}
        value = own.pop("scalars", own.pop("value", None))
        first = [own.pop(arg.name) for arg in schema if arg.name in own and not arg.kwarg_only]
        if value is not None:
            own["value"] = value
        results.append(single(*first, **own))
    return results


OWN_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.convolution_backward.default: _convolution_backward,
    aten._native_batch_norm_legit_functional.default: batch_norm,
    aten._native_batch_norm_legit.no_stats: _batch_norm_of_batch,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _native_layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _native_group_norm,
    aten.nll_loss_backward.default: _nll_loss_backward,
    aten.nll_loss2d_backward.default: _nll_loss_backward,
    aten.linalg_vector_norm.default: _linalg_vector_norm,
    **PAIRS,
}
"""Ours, where torch has none or one that scatters."""

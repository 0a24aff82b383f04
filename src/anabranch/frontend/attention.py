"""Attention of a training step: torch's pairs of operators, one for each of its libraries, as the
one pair that plans have (`ir.attention_ops`).

    _scaled_dot_product_flash_attention(q, k, v)  ->  anabranch.scaled_dot_product_forward(q, k, v)
    _scaled_dot_product_flash_attention_backward  ->  anabranch.scaled_dot_product_backward(...)

Where dropout is asked for they stay as they are (`frontend.draws` has other attention recorded).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.ir import attention_ops, custom_ops

aten = torch.ops.aten
OURS = custom_ops.OPS


def _scale(q: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Any, causal: bool, scale: Any) -> Any:
    """Heads of queries that share keys read these again and again."""
    k, v = (heads.repeat_interleave(q.shape[1] // heads.shape[1], 1) for heads in (k, v))
    return OURS.scaled_dot_product_forward(q, k, v, mask, causal, _scale(q, scale))


def _attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Any,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    shared = q.shape[1] // k.shape[1]
    rk, rv = (heads.repeat_interleave(shared, 1) if shared > 1 else heads for heads in (k, v))
    operands = (grad, q, rk, rv, mask, out, lse, causal, _scale(q, scale))
    dq, dk, dv = OURS.scaled_dot_product_backward(*operands)
    if shared > 1:
        dk, dv = (gradient.unflatten(1, (-1, shared)).sum(2) for gradient in (dk, dv))
    return dq, dk, dv


def _forward(op: Any, *args: Any, **named: Any) -> Any:
    """What such an operator returns: the result and the sums, and what a library says of a dropout
    that nobody asked for."""
    said = _by_name(op, args, named)
    if said["dropout_p"] or said.get("return_debug_mask"):
        return NotImplemented
    q, k, v = said["query"], said["key"], said["value"]
    out, lse = _attention(q, k, v, _mask(said), said["is_causal"], said["scale"])
    sizes = (None, None, q.shape[2], k.shape[2])  # of sequences in a row, which these are not
    if op is aten._scaled_dot_product_flash_attention.default:
        counts = [torch.zeros(n, dtype=torch.uint64, device=q.device) for n in ((2,), ())]
        return out, lse, *sizes, *counts, q.new_zeros(0)
    counts = [torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2)]
    if op is aten._scaled_dot_product_efficient_attention.default:
        return out, lse, *counts
    if op is aten._scaled_dot_product_cudnn_attention.default:
        return out, lse.unsqueeze(-1), *sizes, *counts, q.new_zeros(0)
    return out, lse


def _backward(op: Any, *args: Any, **named: Any) -> Any:
    """The gradients of such an operator's operands."""
    said = _by_name(op, args, named)
    if said["dropout_p"]:
        return NotImplemented
    grad = said["grad_out_"] if "grad_out_" in said else said["grad_out"]
    q, k, v, out, lse = (said[name] for name in ("query", "key", "value", "out", "logsumexp"))
    lse = lse.squeeze(-1) if lse.dim() == q.dim() else lse
    mask, causal, scale = _mask(said), said["is_causal"], said["scale"]
    gradients = _attention_backward(grad, q, k, v, mask, out, lse, causal, scale)
    if "grad_input_mask" not in said:
        return gradients
    of_mask = None
    if said["grad_input_mask"][3] and mask is not None:
        of_mask = _gradient_of_scores(grad, q, k, v, mask, out, lse, causal, scale)
    return *gradients, of_mask


def _by_name(op: Any, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of a call, defaults included."""
    schema = op._schema.arguments
    said = {arg.name: arg.default_value for arg in schema}
    return {**said, **dict(zip(said, args, strict=False)), **named}


def _mask(said: Mapping[str, Any]) -> Any:
    return said.get("attn_mask", said.get("attn_bias"))


def _gradient_of_scores(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
) -> Tensor:
    """What a bias that was added to the scores gets."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = attention_ops.scores(q, k, bias, causal, _scale(q, scale))
    weights = torch.exp(scores - lse[..., None])
    of_weights = grad.to(wide) @ v.to(wide).transpose(-2, -1)
    along = (grad.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    return (weights * (of_weights - along)).to(bias.dtype)


LIBRARIES = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
PAIRS: dict[Any, Callable[..., Any]] = {
    op: functools.partial(by, op)
    for library in LIBRARIES
    for by, name in ((_forward, library), (_backward, f"{library}_backward"))
    for op in (getattr(aten, f"_scaled_dot_product_{name}").default,)
}
"""By operator, what it is in ours."""

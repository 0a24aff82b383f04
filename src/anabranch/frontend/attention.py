"""Attention of a training step: torch's pairs of operators, one for each of its libraries, as the
one pair that plans have (`ir.attention_ops`).

    _scaled_dot_product_flash_attention(q, k, v)  ->  anabranch.scaled_dot_product_forward(q, k, v)
    _scaled_dot_product_flash_attention_backward  ->  anabranch.scaled_dot_product_backward(...)

Where dropout is asked for they stay as they are (`frontend.draws` has other attention recorded).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
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
    rk, rv = (one.repeat_interleave(shared, 1) if shared > 1 else one for one in (k, v))
    given = (grad, q, rk, rv, mask, out, lse, causal, _scale(q, scale))
    dq, dk, dv = OURS.scaled_dot_product_backward(*given)
    if shared > 1:
        dk, dv = (one.unflatten(1, (-1, shared)).sum(2) for one in (dk, dv))
    return dq, dk, dv


def _flash_on_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return _attention(q, k, v, attn_mask, is_causal, scale)


def _flash_on_cpu_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return _attention_backward(grad, q, k, v, attn_mask, out, lse, is_causal, scale)


def _flash(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    out, lse = _attention(q, k, v, None, is_causal, scale)
    seed = torch.zeros(2, dtype=torch.uint64, device=q.device)
    offset = torch.zeros((), dtype=torch.uint64, device=q.device)
    return out, lse, None, None, q.shape[2], k.shape[2], seed, offset, q.new_zeros(0)


def _flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    return _attention_backward(grad, q, k, v, None, out, lse, is_causal, scale)


def _cudnn_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p or return_debug_mask:
        return NotImplemented
    out, lse = _attention(q, k, v, attn_bias, is_causal, scale)
    counts = [torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2)]
    sizes = (None, None, q.shape[2], k.shape[2])
    return out, lse.unsqueeze(-1), *sizes, *counts, q.new_zeros(0)


def _cudnn_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    attn_bias: Tensor | None,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    sums = lse.squeeze(-1) if lse.dim() == q.dim() else lse
    return _attention_backward(grad, q, k, v, attn_bias, out, sums, is_causal, scale)


def _efficient_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    counts = [torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2)]
    return *_attention(q, k, v, attn_bias, is_causal, scale), *counts


def _efficient_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    philox_seed: Tensor,
    philox_offset: Tensor,
    dropout_p: float,
    grad_input_mask: Sequence[bool],
    is_causal: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        return NotImplemented
    found = _attention_backward(grad, q, k, v, attn_bias, out, lse, is_causal, scale)
    of_bias = None
    if grad_input_mask[3] and attn_bias is not None:
        of_bias = _gradient_of_scores(grad, q, k, v, attn_bias, out, lse, is_causal, scale)
    return *found, of_bias


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


ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: _flash_on_cpu,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _flash_on_cpu_backward,
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient_attention,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_attention_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_attention,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_attention_backward,
}
"""By operator, what it is in ours."""

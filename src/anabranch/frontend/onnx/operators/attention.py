"""Attention, as torch's own function where it says the same, and rotary positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.graph import OnnxGraph
from anabranch.frontend.onnx.host import tensors_of
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable
from anabranch.frontend.onnx.operators.shape import moved, reshape

Maybe = Tensor | None


def attention(
    call: OnnxCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Maybe = None,
    past_key: Maybe = None,
    past_value: Maybe = None,
    lengths: Maybe = None,
) -> Tensor | tuple[Tensor, ...]:
    """Attention of heads that are an axis, or lie side by side in the last one."""
    flat = q.dim() == 3
    if flat:
        q = _heads(q, call.need("q_num_heads", int))
        k, v = (_heads(heads, call.need("kv_num_heads", int)) for heads in (k, v))
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = torch.cat([past_key, k], 2), torch.cat([past_value, v], 2)
    keys, values = k, v
    if q.shape[1] != k.shape[1]:
        each = q.shape[1] // k.shape[1]
        keys, values = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    scale = call.maybe("scale", float)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    causal, limits = bool(call.get("is_causal", 0)), _limits(call)
    simple = not call.get("softcap", 0.0) and len(call.node.outputs) < 4
    simple = simple and call.node.attributes.get("softmax_precision") is None
    plain = before == 0 and lengths is None and limits == (-1, -1)
    if simple and causal and plain and mask is None:
        output, scores = (
            F.scaled_dot_product_attention(q, keys, values, None, 0.0, True, scale=scale),
            q,
        )
    elif simple and not causal and plain and (mask is None or mask.shape[-1] == k.shape[2]):
        mask = mask if mask is None or mask.dtype in (torch.bool, q.dtype) else mask.to(q.dtype)
        output, scores = F.scaled_dot_product_attention(q, keys, values, mask, scale=scale), q
    else:
        allowed = _allowed(q, k, before, lengths, causal, limits)
        output, scores = _spelled_out(call, q, keys, values, mask, allowed, scale)
    if flat:
        output = output.transpose(1, 2).flatten(2)
    return (output, k, v, scores) if len(call.node.outputs) > 1 else output


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def _limits(call: OnnxCall) -> tuple[int, int]:
    return call.get("left_window_size", -1), call.get("right_window_size", -1)


def _allowed(
    q: Tensor, k: Tensor, before: int, lengths: Maybe, causal: bool, limits: tuple[int, int]
) -> Maybe:
    """Which keys each query may see: those before it, near it, and not padding."""
    rows = torch.arange(q.shape[2], device=q.device)[:, None]
    columns = torch.arange(k.shape[2], device=q.device)[None, :]
    if lengths is not None:
        offset = (lengths.reshape(-1, 1, 1, 1) - q.shape[2]) if before == 0 else before
        allowed: Maybe = columns < lengths.reshape(-1, 1, 1, 1)
    else:
        offset, allowed = before, None
    away = rows + offset - columns
    parts = [away >= 0] if causal else []
    parts += [away <= limits[0]] if limits[0] >= 0 else []
    parts += [-away <= limits[1]] if limits[1] >= 0 else []
    for part in parts:
        allowed = part if allowed is None else allowed & part
    return allowed


def _spelled_out(
    call: OnnxCall, q: Tensor, k: Tensor, v: Tensor, mask: Maybe, allowed: Maybe, scale: float
) -> tuple[Tensor, Tensor]:
    """Attention operator by operator, and its scores, as they are asked for."""
    root = torch.tensor(math.sqrt(scale), dtype=q.dtype).item()
    scores = (q * root) @ (k.transpose(-1, -2) * root)
    asked = call.get("qk_matmul_output_mode", 0)
    out, cap = scores, call.get("softcap", 0.0)
    if cap:
        scores = torch.tanh(scores / cap) * cap
        out = scores if asked == 1 else out
    bias = torch.zeros((), dtype=q.dtype, device=q.device)
    if mask is not None:
        mask = _wide(mask, k.shape[2])
        bias = bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask.to(q.dtype)
    if allowed is not None:
        bias = bias + torch.zeros_like(allowed, dtype=q.dtype).masked_fill(~allowed, -torch.inf)
    scores = scores + bias
    out = scores if asked == 2 else out
    precision = call.maybe("softmax_precision", int)
    wide = scores if precision is None else scores.to(call.dtype("softmax_precision"))
    weights = torch.softmax(wide, -1)
    if mask is not None or allowed is not None:
        weights = weights.masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0)
    weights = weights.to(q.dtype)
    return weights @ v, weights if asked == 3 else out


def _wide(mask: Tensor, size: int) -> Tensor:
    """A mask for fewer keys than there are: those without one are not seen."""
    more = size - mask.shape[-1]
    if more <= 0:
        return mask
    if mask.dtype == torch.bool:
        return torch.cat([mask, mask.new_zeros(*mask.shape[:-1], more)], -1)
    return F.pad(mask, (0, more), value=-torch.inf)


def rotary(
    call: OnnxCall, x: Tensor, cosines: Tensor, sines: Tensor, positions: Maybe = None
) -> Tensor:
    """RotaryEmbedding: pairs of numbers turned by an angle of their position."""
    flat = x.dim() == 3
    if flat:
        x = x.reshape(x.shape[0], x.shape[1], call.need("num_heads", int), -1)
    else:
        x = x.transpose(1, 2)
    turned = call.get("rotary_embedding_dim", 0) or x.shape[-1]
    part, rest = x[..., :turned], x[..., turned:]
    if positions is not None:
        cosines, sines = cosines[positions], sines[positions]
    cosines, sines = cosines.unsqueeze(2), sines.unsqueeze(2)
    pairs = bool(call.get("interleaved", 0))
    a, b = (part[..., 0::2], part[..., 1::2]) if pairs else part.chunk(2, -1)
    real, imaginary = cosines * a - sines * b, sines * a + cosines * b
    if pairs:
        rotated = torch.stack([real, imaginary], -1).flatten(-2)
    else:
        rotated = torch.cat([real, imaginary], -1)
    rotated = torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated
    return rotated.flatten(2) if flat else rotated.transpose(1, 2)


def linear_attention(
    call: OnnxCall,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past: Maybe = None,
    decay: Maybe = None,
    beta: Maybe = None,
) -> tuple[Tensor, Tensor]:
    """LinearAttention: a state that each step decays, corrects, writes to and reads."""
    heads, groups = call.need("q_num_heads", int), call.need("kv_num_heads", int)
    rule = call.get("update_rule", "gated_delta")
    q, k, v = (
        _heads(projection, count).to(torch.float32)
        for projection, count in ((query, heads), (key, groups), (value, groups))
    )
    scale = call.get("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    if past is None:
        state = q.new_zeros(q.shape[0], groups, k.shape[-1], v.shape[-1])
    else:
        state = past.to(torch.float32)
    fades = None if decay is None else _heads(decay, groups).to(torch.float32)
    gains = None if beta is None else _heads(beta, beta.shape[-1]).to(torch.float32)
    steps = []
    for at in range(query.shape[1]):
        k_at, v_at = k[:, :, at], v[:, :, at]
        if fades is not None:
            state = state * fades[:, :, at].exp()[..., None]
        if gains is not None and "delta" in rule:
            v_at = gains[:, :, at] * (v_at - torch.einsum("bhdm,bhd->bhm", state, k_at))
        state = state + k_at[..., :, None] * v_at[..., None, :]
        seen = state.repeat_interleave(heads // groups, 1) if heads != groups else state
        steps.append(scale * torch.einsum("bhd,bhdm->bhm", q[:, :, at], seen))
    output = torch.stack(steps, 1).flatten(2)
    return output.to(query.dtype), state.to(query.dtype if past is None else past.dtype)


def plain_attention(
    call: OnnxCall,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Maybe = None,
    joined: list[int] | None = None,
    apart: list[int] | None = None,
    *scales: Any,
) -> Tensor:
    """softmax(q k^T * scale + mask) v, as `patterns` finds it spelled out. A scale is the product
    of numbers, of which some divide. `joined`, `apart`: shapes of the keys as three axes, and of
    the keys once the last two of these have changed places. Where torch's function would take the
    operands otherwise than they broadcast here, or the softmax is not over keys, it is computed
    step by step."""
    scale: Any = 1.0
    divide: tuple[int, ...] = call.get("divide", ())
    for factor, divides in zip(scales, divide, strict=True):
        number = factor[0] if isinstance(factor, list) else factor
        scale = scale / number if divides else scale * number
    order: tuple[int, ...] = call.get("key_order", ())
    k = moved(k, order) if order else k
    if joined is not None and apart is not None:
        k = _taken_apart(call, k, joined, apart)
    axis = call.get("axis", -1)
    leading, scores = q.shape[:-2], (*q.shape[:-1], k.shape[-2])
    whole = q.dim() >= 3 and axis in (-1, q.dim() - 1) and k.shape[-2] == v.shape[-2]
    whole = whole and all(operand.shape[:-2] == leading for operand in (k, v))
    if whole and (mask is None or (mask.dtype == q.dtype and _within(mask.shape, scores))):
        return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
    products = q @ k.transpose(-1, -2) * scale
    weights = torch.softmax(products if mask is None else products + mask, axis)
    return weights @ v


def _taken_apart(call: OnnxCall, k: Tensor, joined: list[int], apart: list[int]) -> Tensor:
    """Keys with their last two axes as they were before they changed places."""
    rows = reshape(call, k, joined)
    if rows.dim() == 3 and apart[-2:] == [rows.shape[2], rows.shape[1]] and 0 not in apart:
        shape = [*apart[:-2], *rows.shape[1:]]
        return k if list(k.shape) == shape else k.reshape(shape)
    return reshape(call, rows.transpose(1, 2), apart).transpose(-1, -2)


def _within(shape: Sequence[Any], whole: Sequence[Any]) -> bool:
    """Whether a tensor of this shape broadcasts to the other, and makes nothing larger."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return len(shape) <= len(whole) and all(a == b or a == 1 for a, b in pairs)


def flex_attention(call: OnnxCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """FlexAttention: graphs of the node change scores, and probabilities."""
    if q.shape[1] != k.shape[1]:
        each = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    scale = call.get("scale", 1 / math.sqrt(q.shape[3]))
    changes = [call.maybe(name, OnnxGraph) for name in ("score_mod", "prob_mod")]
    precision = call.maybe("softmax_precision", int)
    half = q.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if half else q.dtype
    wide = wide if precision is None else call.dtype("softmax_precision")
    if changes == [None, None] and precision is None:
        return F.scaled_dot_product_attention(q, k, v, scale=scale)
    root = math.sqrt(scale)
    scores = ((q * root) @ (k.transpose(-1, -2) * root)).to(wide)
    if changes[0] is not None:
        scores = tensors_of(call.run(changes[0], [scores]), call.device)[0].to(wide)
    weights = torch.softmax(scores, -1)
    if changes[1] is not None:
        weights = tensors_of(call.run(changes[1], [weights]), call.device)[0].to(wide)
    return (weights @ v.to(wide)).to(v.dtype)


ATTENTION: OperatorTable = {
    "ai.onnx.preview.FlexAttention": OnnxOperator(flex_attention),
    "anabranch.Attention": OnnxOperator(plain_attention, numbers=(4, 5, 6, 7, 8, 9, 10)),
    "Attention": OnnxOperator(attention),
    "LinearAttention": OnnxOperator(linear_attention),
    "RotaryEmbedding": OnnxOperator(rotary),
}

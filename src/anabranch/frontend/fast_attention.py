"""The operators of torch.nn's fast path of attention, taken apart into ordinary ones.

    _transformer_encoder_layer_fwd(x, ..)   ->  attention, add, layer_norm, linear, gelu or relu, ..
    _native_multi_head_attention(q, k, v)   ->  linear, scaled_dot_product_attention, linear

Dynamo writes the first where a TransformerEncoderLayer is in eval mode and needs no gradients.
As whole operators they are library calls that nothing can be fused with.

Numbers are those of the operators: a mask hides where it is not zero, of whatever dtype it is, so
what a float mask would add is lost; and queries that see nothing have NaN, where
`scaled_dot_product_attention` has 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten

OF_QUERIES, OF_KEYS, OF_SCORES = 0, 1, 2
"""What `mask_type` says of a mask: [queries, keys], [batch, keys], or the shape of the scores."""


def native_multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention [batch, tokens, channels], and its weights [batch, tokens, tokens], or of each head
    [batch, heads, tokens, tokens]; empty where they are not needed. RuntimeError where shapes
    differ, or the mask is not of its type."""
    torch._check(  # type: ignore[no-untyped-call]
        query.dim() == 3 and query.shape == key.shape == value.shape,
        lambda: "expected `query`/`key`/`value` shapes to match",
    )
    if query.numel() == 0:
        return torch.empty_like(query), query.new_empty(0)
    q, k, v = (
        x.view(*x.shape[:-1], num_head, embed_dim // num_head).transpose(1, 2)
        for x in _projected(query, key, value, qkv_weight, qkv_bias)
    )
    hidden = None if mask is None else _hidden(mask, mask_type, (*q.shape[:-1], k.shape[-2]))
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if hidden is not None:
            scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        heads = weights @ v
    else:
        weights = query.new_empty(0)
        heads = _attention(q, k, v, hidden)
    result = F.linear(heads.transpose(1, 2).flatten(2), proj_weight, proj_bias)
    if need_weights and average_attn_weights:
        weights = weights.sum(1) / num_head
    return result, weights


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, ...]:
    """Queries, keys and values, of one product where all are of one tensor."""
    if query is key and key is value:
        return F.linear(query, weight, bias).chunk(3, -1)
    parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(F.linear(x, w, b) for x, w, b in parts)


def _hidden(mask: Tensor, mask_type: int | None, scores: tuple[int, ...]) -> Tensor:
    """The mask in the dimensions of the scores [batch, heads, queries, keys]; True hides."""
    batch, _, queries, keys = scores
    torch._check(  # type: ignore[no-untyped-call]
        mask_type in (OF_QUERIES, OF_KEYS, OF_SCORES), lambda: "Mask Type should be 0, 1 or 2"
    )
    shapes = {OF_QUERIES: (queries, keys), OF_KEYS: (batch, keys), OF_SCORES: scores}
    torch._check(  # type: ignore[no-untyped-call]
        tuple(mask.shape) in (scores, shapes[mask_type or 0]),
        lambda: f"For mask_type == {mask_type} mask shape should be {shapes[mask_type or 0]}",
    )
    hidden = mask.to(torch.bool)
    if mask.dim() == len(scores):
        return hidden
    return hidden[None, None] if mask_type == OF_QUERIES else hidden[:, None, None]


def _attention(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None) -> Tensor:
    if hidden is None:
        return F.scaled_dot_product_attention(q, k, v)
    heads = F.scaled_dot_product_attention(q, k, v, hidden.logical_not())
    return heads.masked_fill(hidden.all(-1, keepdim=True), torch.nan)


def transformer_encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """The layer of x [batch, tokens, channels]. RuntimeError where the mask is not of its type."""
    if src.numel() == 0:
        return src.clone()

    def attention(x: Tensor) -> Tensor:
        weights = qkv_weight, qkv_bias, proj_weight, proj_bias
        sizes = embed_dim, num_heads
        return native_multi_head_attention(
            x, x, x, *sizes, *weights, mask, need_weights=False, mask_type=mask_type
        )[0]

    def feed_forward(x: Tensor) -> Tensor:
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(_activated(x, use_gelu), ffn_weight_2, ffn_bias_2)

    def first(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = attention(first(src)) + src
        return feed_forward(second(x)) + x
    x = first(attention(src) + src)
    return second(feed_forward(x) + x)


def _activated(x: Tensor, use_gelu: bool) -> Tensor:
    """Of GELU a GPU has the approximation by tanh here, as `_addmm_activation` has."""
    if not use_gelu:
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if x.is_cuda else "none")


FAST_ATTENTION: dict[Any, Callable[..., Any]] = {
    aten._native_multi_head_attention.default: native_multi_head_attention,
    aten._transformer_encoder_layer_fwd.default: transformer_encoder_layer,
}
"""By operator, what takes it apart."""

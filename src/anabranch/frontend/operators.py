"""Which operators a captured graph is written in.

torch.export leaves composites such as `conv2d`, `einsum` or `dropout` whole. Those in
NOT_DECOMPOSED stay: kernels and rules profit from seeing them as one operator. All others are
replaced by what they consist of, and in-place operators by functional ones, so that later rooms
know fewer operators:

    conv2d(x, w, b, ..)        -> convolution(x, w, b, .., transposed=False, ..)
    batch_norm(x, .., False)   -> _native_batch_norm_legit_no_training(x, ..)
    batch_norm(x, .., True)    -> var_mean of the batch, arithmetic, new running statistics
    relu_(x)                   -> relu(x)
    matmul(a, b), einsum       -> views and mm or bmm
    dropout(x, p, False)       -> x
    linear, layer_norm, scaled_dot_product_attention, lstm, max_pool2d  stay
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._C import DispatchKey
from torch._decomp import get_decompositions

from anabranch.frontend.batch_statistics import batch_norm, in_format
from anabranch.frontend.fast_attention import FAST_ATTENTION
from anabranch.frontend.trace_kernels import own_kernels

NOT_DECOMPOSED = frozenset(
    {
        *("linear", "scaled_dot_product_attention"),
        *("layer_norm", "group_norm", "instance_norm", "rms_norm"),
        *("max_pool2d", "max_pool3d"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("lstm", "gru", "rnn_tanh", "rnn_relu"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
        *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
        *("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    }
)
"""Composites that stay, whichever overload."""

DROPPED = frozenset(
    f"aten.{name}"
    for name in (
        "_assert_tensor_metadata",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_print",
    )
) | {
    f"profiler.{name}"
    for name in ("_record_function_enter", "_record_function_enter_new", "_record_function_exit")
}
"""Checks of what a static graph has already fixed, and marks for a profiler. They have no result
that others read."""

COPIES = frozenset({"aten.clone", "aten._to_copy", "aten.lift_fresh_copy", "aten.contiguous"})
"""Operators that, where the type stays the same, return an equal tensor in memory of its own."""

VIEWS = {
    "aten.unsafe_split.Tensor": "aten.split.Tensor",
    "aten.unsafe_split_with_sizes.default": "aten.split_with_sizes.default",
    "aten.unsafe_chunk.default": "aten.chunk.default",
}
"""Operators that return views but hide it from autograd, which may then write to them; by the one
that says so. Recurrent cells are made of them."""

TRAINING = frozenset(
    f"aten.{name}"
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "cudnn_batch_norm",
    )
)
"""What only a model in training mode runs."""

FILLS: dict[str, int | None] = {
    # operator: the number it fills with, or None where that is its last positional argument
    "aten.zeros_like.default": 0,
    "aten.ones_like.default": 1,
    "aten.full_like.default": None,
    "aten.new_zeros.default": 0,
    "aten.new_ones.default": 1,
    "aten.new_full.default": None,
    "aten.new_empty.default": 0,
    "aten.empty.memory_format": 0,
}
"""Operators that read a tensor only for its type, or that leave open what is in their result, as
circular padding does before it fills it. As `full` they depend on nothing, fold, and are the same
at every run, which no kernel's result could be compared with otherwise."""

LIKE = frozenset(f"aten.{name}_like.default" for name in ("zeros", "ones", "full"))
"""Those of them whose results lie as the tensor does that they read."""

ATTENTION: dict[str, tuple[str | None, str | None, str | None]] = {
    # operator: where its schema has the mask, the dropout and the causal flag
    "aten._scaled_dot_product_flash_attention.default": (None, "dropout_p", "is_causal"),
    "aten._scaled_dot_product_flash_attention_for_cpu.default": (
        "attn_mask",
        "dropout_p",
        "is_causal",
    ),
    "aten._scaled_dot_product_efficient_attention.default": ("attn_bias", "dropout_p", "is_causal"),
    "aten._scaled_dot_product_cudnn_attention.default": ("attn_bias", "dropout_p", "is_causal"),
    "aten._scaled_dot_product_fused_attention_overrideable.default": (
        "attn_bias",
        "dropout_p",
        "is_causal",
    ),
}
"""Device-bound forms of attention that AOTAutograd chose for us; back to the one of all devices."""


def has_random(node: fx.Node) -> bool:
    """Whether it draws random numbers: attention does where it drops something. Other operators are
    judged by torch's tags, as a trace judges them, and not by their arguments (`ops.draws`)."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if str(target) in ATTENTION:
        name = ATTENTION[str(target)][1]
        place = [argument.name for argument in target._schema.arguments].index(name or "")
        dropped = node.args[place] if place < len(node.args) else node.kwargs.get(name or "", 0.0)
        return not isinstance(dropped, int | float) or dropped != 0.0
    return torch.Tag.nondeterministic_seeded in target.tags


NORM_OF_BATCH = torch.ops.aten._native_batch_norm_legit.no_stats
"""Normalisation by the batch's own statistics."""
WRITING_NORM = torch.ops.aten._native_batch_norm_legit_functional.default
"""The same, with new running statistics."""


def _norm_of_batch(x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    normal, *statistics = get_decompositions([NORM_OF_BATCH])[NORM_OF_BATCH](x, *args, **kwargs)
    return in_format(normal, x), *statistics


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions`: every composite but those of
    NOT_DECOMPOSED, the fast path of attention, and normalisation by the batch's own statistics,
    with running ones or without."""
    with own_kernels():
        table: Mapping[Any, Callable[..., Any]] = torch.export.default_decompositions()
        norms: dict[Any, Callable[..., Any]] = {
            NORM_OF_BATCH: _norm_of_batch,
            WRITING_NORM: batch_norm,
        }
        return {**norms, **FAST_ATTENTION} | {
            op: replacement
            for op, replacement in table.items()
            if op.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)
            and op._schema.name.partition("::")[2] not in NOT_DECOMPOSED
        }

"""Attention by cuDNN, and attention whose backward is known: what a training step has of it.

    out = anabranch.scaled_dot_product_cudnn(q, k, v, mask, causal, scale)
    out, lse = anabranch.scaled_dot_product_forward(q, k, v, mask, causal, scale)
    dq, dk, dv = anabranch.scaled_dot_product_backward(grad, q, k, v, mask, out, lse, causal, scale)

    q: [n, heads, rows, e]   k: [n, heads, keys, e]   v: [n, heads, keys, f]
    out, grad: [n, heads, rows, f]   lse: fp32[n, heads, rows], ln sum exp of what softmax reads

torch names another pair of operators for each of its libraries, with results that no other of them
understands. These mean the same whatever computes them: FlashAttention where it can (its backward
in the order that gives equal bits), the memory-efficient kernels where there is a mask, on a CPU
torch's own, and products elsewhere, in fp64 among others. As torch's own do, `out` lies in the
order of axes that q lies in, and each gradient in that of what it is of.

cuDNN's attention is another kernel for what a model calls: torch takes it by a switch of the
process alone. A query that sees no key gets zeros, as torch's other kernels give it; cuDNN divides
by nothing there. Where there is no cuDNN, torch computes it as it does.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anabranch.ir.deterministic_switch import in_order

FORWARD = "anabranch.scaled_dot_product_forward.default"
BACKWARD = "anabranch.scaled_dot_product_backward.default"
CUDNN = "anabranch.scaled_dot_product_cudnn.default"
SCHEMAS = (
    "scaled_dot_product_cudnn(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "bool causal, float scale) -> Tensor",
    "scaled_dot_product_forward(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, "
    "bool causal, float scale) -> (Tensor, Tensor)",
    "scaled_dot_product_backward(Tensor grad, Tensor query, Tensor key, Tensor value, "
    "Tensor? attn_mask, Tensor out, Tensor lse, bool causal, float scale) -> "
    "(Tensor, Tensor, Tensor)",
)
aten: Any = torch.ops.aten
CUDA: Any = torch.backends.cuda
ALIGNED_MASK = 16
"""Numbers of a row of a mask, of which the memory-efficient kernels read whole vectors."""
ALIGNED_SUMS = 32
"""Rows whose sums those kernels keep together."""
WIDEST_HEAD = 256


def forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q @ k.T + mask) @ v, and ln of the sums that softmax divides by."""
    _check(q, k, v, mask)
    library = _library(q, k, v, mask, causal)
    if library == "flash":
        results = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
        out, lse = results[:2]
    elif library == "efficient":
        bias = _aligned(mask, q, k)
        out, lse = aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, True, 0.0, causal, scale=scale
        )[:2]
        lse = lse[..., : q.shape[2]]
    elif library == "cpu":
        named = {"attn_mask": mask, "scale": scale}
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, **named)
    else:
        read = scores(q, k, mask, causal, scale)
        lse = torch.logsumexp(read, -1)
        weights = torch.exp(read - lse.masked_fill(lse == -torch.inf, 0)[..., None])
        out = (weights @ v.to(weights.dtype)).to(q.dtype)
    return laid_as(out, q), lse.to(_wide(q)).contiguous()


def by_cudnn(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """`forward` without the sums. `mask`: truths, or numbers that are added, None for none.
    RuntimeError where cuDNN takes no such tensors."""
    bias = mask
    if mask is not None and mask.dtype == torch.bool:
        bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    _check(q, k, v, bias)
    if q.device.type != "cuda":
        plain = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale)
        return laid_as(plain, q)
    if not all(map(_in_vectors, (q, k, v))):
        raise RuntimeError("cuDNN reads rows of q, k and v in vectors of 16 bytes")
    whole = None
    if bias is not None:
        # It reads vectors along the keys, also of a mask whose keys do not lie side by side.
        bias = bias[(None,) * (4 - bias.dim())]
        whole = bias.expand(q.shape[0], bias.shape[1], q.shape[2], k.shape[2]).contiguous()
    out = aten._scaled_dot_product_cudnn_attention(
        q, k, v, whole, False, 0.0, causal, False, scale=scale
    )[0]
    if bias is not None:
        out = torch.where((bias > -torch.inf).any(-1, keepdim=True), out, 0)
    return laid_as(out, q)


def _in_vectors(tensor: Tensor) -> bool:
    """Whether each row begins at a multiple of 16 bytes and its numbers lie side by side."""
    apart = [stride * tensor.element_size() for stride in tensor.stride()[:-1]]
    return tensor.stride(-1) == 1 and not any(at % 16 for at in (tensor.data_ptr(), *apart))


def shape_of_cudnn(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """The result without data. RuntimeError for sizes that attention does not have."""
    floating = mask if mask is None or mask.is_floating_point() else mask.to(q.dtype)
    return shape_of_forward(q, k, v, floating, causal, scale)[0]


def backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from that of `out`; the weights are computed again."""
    _check(q, k, v, mask)
    _check_results(grad, q, v, out, lse)
    library = _library(q, k, v, mask, causal)
    if library == "flash":
        none = torch.empty(0, dtype=torch.int64, device=q.device)
        sizes = (None, None, q.shape[2], k.shape[2])
        dropout: Any = (0.0, causal, none, none)
        with in_order():
            gradients = aten._scaled_dot_product_flash_attention_backward(
                _unit(grad), q, k, v, _unit(out), lse, *sizes, *dropout, scale=scale
            )
    elif library == "efficient":
        bias = _aligned(mask, q, k)
        sums = F.pad(lse, (0, -q.shape[2] % ALIGNED_SUMS), value=torch.inf)
        none = torch.zeros((), dtype=torch.int64, device=q.device)
        wanted = [True, True, True, False]
        told: Any = (sums, none, none, 0.0, wanted, causal)
        gradients = aten._scaled_dot_product_efficient_attention_backward(
            _unit(grad), q, k, v, bias, _unit(out), *told, scale=scale
        )[:3]
    elif library == "cpu":
        named = {"attn_mask": mask, "scale": scale}
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _unit(grad), q, k, v, _unit(out), lse, 0.0, causal, **named
        )
    else:
        gradients = _by_products(grad, q, k, v, mask, out, lse, causal, scale)
    dq, dk, dv = gradients
    return laid_as(dq, q), laid_as(dk, k), laid_as(dv, v)


def _by_products(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    wide = _wide(q)
    lse = lse.masked_fill(lse == -torch.inf, 0)
    weights = torch.exp(scores(q, k, mask, causal, scale) - lse[..., None].to(wide))
    far, result = grad.to(wide), out.to(wide)
    of_weights = far @ v.to(wide).transpose(-2, -1)
    of_scores = weights * (of_weights - (far * result).sum(-1, keepdim=True)) * scale
    return (
        (of_scores @ k.to(wide)).to(q.dtype),
        (of_scores.transpose(-2, -1) @ q.to(wide)).to(k.dtype),
        (weights.transpose(-2, -1) @ far).to(v.dtype),
    )


def scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """What softmax reads, in fp32 at least."""
    wide = _wide(q)
    logits = q.to(wide) @ k.to(wide).transpose(-2, -1) * scale
    if mask is not None:
        logits = logits + mask.to(wide)
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        logits = logits.masked_fill(~seen, -torch.inf)
    return logits


def _library(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> str:
    """Which of torch's kernels takes this: "flash", "efficient", "cpu"; "" if none does."""
    alone = not (mask is not None and causal)
    square = q.shape[-1] == v.shape[-1] and (not causal or q.shape[2] == k.shape[2])
    dense = all(tensor.stride(-1) == 1 and tensor.numel() for tensor in (q, k, v))
    if not (alone and square and dense) or q.shape[1] != k.shape[1]:
        return ""
    if q.device.type == "cpu":
        return "cpu"
    if q.device.type != "cuda" or q.dtype == torch.float64 or q.shape[-1] % 8:
        return ""
    half = q.dtype != torch.float32
    params = CUDA.SDPAParams(q, k, v, _aligned(mask, q, k), 0.0, causal, False)
    narrow = q.shape[-1] <= WIDEST_HEAD
    if half and mask is None and narrow and CUDA.can_use_flash_attention(params, False):
        return "flash"
    return "efficient" if CUDA.can_use_efficient_attention(params, False) else ""


def _aligned(mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The mask for each head, whose rows begin where whole vectors do."""
    if mask is None:
        return None
    keys = k.shape[2]
    padded = F.pad(mask.to(q.dtype).expand(*mask.shape[:-1], keys), (0, -keys % ALIGNED_MASK))[
        ..., :keys
    ]
    return padded.expand(q.shape[0], q.shape[1], q.shape[2], keys)


def _unit(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def laid_as(tensor: Tensor, like: Tensor) -> Tensor:
    """The tensor without gaps, its axes in the order in which those of `like` lie in memory."""
    steps = list(like.stride())
    order = sorted(range(like.dim()), key=lambda d: -steps[d])
    back = [order.index(d) for d in range(like.dim())]
    return tensor.permute(order).contiguous().permute(back)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def shape_of_forward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """The results without data. RuntimeError for sizes that attention does not have."""
    _check(q, k, v, mask)
    out = laid_as(q.new_empty((*q.shape[:3], v.shape[3])), q)
    return out, q.new_empty(q.shape[:3], dtype=_wide(q))


def shape_of_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients without data. RuntimeError for sizes that attention does not have."""
    _check(q, k, v, mask)
    _check_results(grad, q, v, out, lse)
    dq, dk, dv = (laid_as(like.new_empty(like.shape), like) for like in (q, k, v))
    return dq, dk, dv


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> None:
    """RuntimeError where libraries would read what is not there."""
    same = q.dtype == k.dtype == v.dtype and q.dtype.is_floating_point
    if not same or {q.dim(), k.dim(), v.dim()} != {4}:
        raise RuntimeError("attention is of floating numbers of one dtype, of four dimensions")
    fits = q.shape[:2] == k.shape[:2] == v.shape[:2]
    if not fits or q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (q, k, v))
        raise RuntimeError(f"no attention has queries, keys and values of {shapes}")
    whole = [*q.shape[:3], k.shape[2]]
    if mask is None:
        return
    fits = mask.dim() <= len(whole) and all(
        n in (1, size) for n, size in zip(mask.shape[::-1], whole[::-1], strict=False)
    )
    if not mask.dtype.is_floating_point or not fits:
        raise RuntimeError(f"a mask of {mask.dtype} {list(mask.shape)} is not of {whole}")


def _check_results(grad: Tensor, q: Tensor, v: Tensor, out: Tensor, lse: Tensor) -> None:
    whole = torch.Size([*q.shape[:3], v.shape[3]])
    if not grad.shape == out.shape == whole or lse.shape != q.shape[:3]:
        raise RuntimeError(f"no attention of {list(q.shape)} gives {list(out.shape)}")
    if not grad.dtype == out.dtype == q.dtype or lse.dtype != _wide(q):
        raise RuntimeError(f"attention of {q.dtype} gives no {out.dtype}")

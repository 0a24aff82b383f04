"""Operators that ATen lacks. Importing this registers them with torch.

    anabranch.recurrence(x, factor, first, dim)     y[t] = factor[t] * y[t - 1] + x[t]
    anabranch.conv_weight_grad(grad, x, ...)        what convolution_backward says of the weight
    anabranch.wide_mm(a, b)                         a product of half types in fp32, not rounded
    anabranch.uniform(random, number, shape)        random numbers in [0, 1), which are counted
    anabranch.to_contiguous(x)                      x.to(memory_format=torch.contiguous_format)
    anabranch.bernoulli_like(x, p)                  0 and 1, drawn in the order of the memory of x
    anabranch.check(truth, text)                    a RuntimeError of this text where it is false
    anabranch.scaled_dot_product_cudnn(q, ...)      attention by cuDNN (`attention_ops`)
    anabranch.scaled_dot_product_forward(q, ...)    attention and its backward
    anabranch.ctc_forward(log_probs, ...)           a loss and its backward (`ctc_ops`)

No model calls them: rewriting puts the first where a model spells the same out, step by step,
and the third in place of a sum of products; `frontend.backward` the second where a training step
has the backward of a convolution, and the last where it has attention, and `frontend.draws` the
fourth where it draws. `frontend.ordered_draws` puts bernoulli_like where a model calls bernoulli_,
`frontend.ctc_loss` the loss where a model computes `F.ctc_loss`,
`frontend.contiguous_calls` to_contiguous and `frontend.python_checks` check into programs, not
graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.ir import attention_ops, ctc_ops

RECURRENCE = "anabranch.recurrence.default"
CONV_WEIGHT_GRAD = "anabranch.conv_weight_grad.default"
WIDE_MM = "anabranch.wide_mm.default"
UNIFORM = "anabranch.uniform.default"
TO_CONTIGUOUS = "anabranch.to_contiguous.default"
BERNOULLI_LIKE = "anabranch.bernoulli_like.default"
CHECK = "anabranch.check.default"
ATTENTION, ATTENTION_BACKWARD = attention_ops.FORWARD, attention_ops.BACKWARD
CUDNN_ATTENTION = attention_ops.CUDNN
ALL = frozenset(
    {
        *(RECURRENCE, CONV_WEIGHT_GRAD, WIDE_MM, UNIFORM, BERNOULLI_LIKE),
        *(ATTENTION, ATTENTION_BACKWARD, CUDNN_ATTENTION),
    }
)


def recurrence(x: Tensor, factor: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """Steps along a dimension: each is the one before times its factor, plus x. `x`, `factor`: of
    one shape, floating; the result is of the dtype of x. `first`: what stands before the first
    step, of that shape without the dimension, by default zeros. Steps are computed in fp32 at
    least, and rounded once."""
    wide = torch.promote_types(x.dtype, torch.float32)
    state = x.new_zeros(()) if first is None else first
    state, steps = state.to(wide), list[Tensor]()
    for term, by in zip(x.to(wide).unbind(dim), factor.to(wide).unbind(dim), strict=True):
        state = by * state + term
        steps.append(state)
    return torch.stack(steps, dim).to(x.dtype) if steps else torch.empty_like(x)


def _shape_of_recurrence(x: Tensor, factor: Tensor, first: Tensor | None, dim: int) -> Tensor:
    whole = list(x.shape)
    rest = [n for d, n in enumerate(whole) if d != dim % len(whole)]
    if not (x.dtype.is_floating_point and factor.dtype.is_floating_point):
        raise RuntimeError(
            f"a recurrence of {x.dtype} by {factor.dtype} is not of floating numbers"
        )
    if list(factor.shape) != whole or (first is not None and list(first.shape) != rest):
        raise RuntimeError(f"a recurrence of {whole} has as many factors, and begins with {rest}")
    return x.new_empty(whole)


def conv_weight_grad(
    grad: Tensor,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """The gradient of the weight, of this size, of a convolution of x, from that of its result. For
    a transposed convolution `grad` is what it reads, and `x` the gradient of its result. It is
    channels_last where either operand is, of their dtype."""
    _check_sizes(grad, x, size, (stride, padding, dilation), groups)
    rank = len(size) - 2
    weight = grad.new_zeros(()).expand(size)  # of which nothing but the size is read
    arguments = ([0], stride, padding, dilation, False, [0] * rank, groups, [False, True, False])
    weight_grad: Tensor = torch.ops.aten.convolution_backward(grad, x, weight, *arguments)[1]
    return weight_grad.contiguous(memory_format=_format_of_weights(grad, x))


def _shape_of_conv_weight_grad(
    grad: Tensor,
    x: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    _check_sizes(grad, x, size, (stride, padding, dilation), groups)
    weight_grad = x.new_empty(tuple(size))
    return weight_grad.contiguous(memory_format=_format_of_weights(grad, x))


def _check_sizes(
    grad: Tensor, x: Tensor, size: Sequence[int], window: Sequence[Sequence[int]], groups: int
) -> None:
    """RuntimeError unless a convolution of x by such a weight gives such a result: libraries take
    it for granted."""
    if grad.dtype != x.dtype or not x.dtype.is_floating_point:
        raise RuntimeError(f"a weight has no gradient from {grad.dtype} and {x.dtype}")
    if groups < 1 or len({grad.dim(), x.dim(), len(size)}) != 1:
        raise RuntimeError(f"the gradient of {list(size)} is not of {x.dim()} dimensions")
    channels = grad.shape[1] == size[0] and x.shape[1] == size[1] * groups
    image = zip(x.shape[2:], size[2:], *window, strict=True)
    places = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in image]
    told = [x.shape[0], *places] == [grad.shape[0], *grad.shape[2:]]
    if not channels or size[0] % groups or not told:
        raise RuntimeError(
            f"no convolution of {list(x.shape)} by {list(size)} gives {list(grad.shape)}"
        )


def _format_of_weights(grad: Tensor, x: Tensor) -> torch.memory_format:
    if any(_channels_last(tensor) for tensor in (grad, x)):
        return torch.channels_last
    return torch.contiguous_format


def _channels_last(tensor: Tensor) -> bool:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def wide_mm(a: Tensor, b: Tensor) -> Tensor:
    """The product of two matrices of one floating dtype, in fp32 at least: what tensor cores add up
    of half types is returned as it is, and not rounded."""
    _check_matrices(a, b)
    wide = torch.promote_types(a.dtype, torch.float32)
    return a.to(wide) @ b.to(wide)


def _shape_of_wide_mm(a: Tensor, b: Tensor) -> Tensor:
    _check_matrices(a, b)
    wide = torch.promote_types(a.dtype, torch.float32)
    return a.new_empty((a.shape[0], b.shape[1]), dtype=wide)


def _check_matrices(a: Tensor, b: Tensor) -> None:
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fits or a.dtype != b.dtype or not a.dtype.is_floating_point:
        raise RuntimeError(
            f"no product of {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)} is in fp32"
        )


WORD = (1 << 32) - 1
PHILOX_ROUNDS = 10
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
TO_UNIT = 4.6566127342e-10
"""The largest number of fp32 by which the largest of 31 bits stays below 1, as Triton has it."""


def uniform(random: Tensor, number: int, shape: Sequence[int]) -> Tensor:
    """Numbers of [0, 1) in fp32, by Philox 4x32-10 (Salmon and others, 2011): of the element i the
    first word of the counter (i, i >> 32, number, call) under the key `seed`. Those of number 0
    and call 0 are `tl.rand(seed, i)`. `random`: i64[2], the seed and the number of the call, of
    which 32 bits count."""
    seed, call = random.unbind()
    index = torch.arange(math.prod(shape), device=seed.device).view(tuple(shape))
    word: list[Tensor] = [index & WORD, index >> 32, torch.full_like(call, number), call & WORD]
    key: list[Tensor] = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(PHILOX_ROUNDS):
        first, third = (by * at for by, at in zip(MULTIPLIERS, word[::2], strict=True))
        word = [
            ((third >> 32) ^ word[1] ^ key[0]) & WORD,
            third & WORD,
            ((first >> 32) ^ word[3] ^ key[1]) & WORD,
            first & WORD,
        ]
        key = [(part + more) & WORD for part, more in zip(key, WEYL, strict=True)]
    bits = word[0] - ((word[0] >> 31) << 32)  # with a sign
    values: Tensor = torch.where(bits < 0, -bits - 1, bits).to(torch.float32) * TO_UNIT
    return values


def _shape_of_uniform(random: Tensor, number: int, shape: Sequence[int]) -> Tensor:
    if random.dtype != torch.int64 or random.shape != (2,):
        raise RuntimeError("random numbers are of a seed and the number of a call, i64[2]")
    return random.new_empty(tuple(shape), dtype=torch.float32)


def bernoulli_like(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """1 with the probability p, else 0, of the shape and dtype of x: drawn by torch's generator in
    the order of memory of a tensor that lies as x does, as `x.bernoulli_(p)` draws."""
    return torch.empty_like(x).bernoulli_(p, generator=generator)


def _shape_of_bernoulli_like(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return torch.empty_like(x)


def to_contiguous(x: Tensor) -> Tensor:
    """What `to(memory_format=torch.contiguous_format)` gives, in memory of its own: in rows where
    x is channels_last, else lying as x does. Torch tells it by strides."""
    result = x.to(memory_format=torch.contiguous_format)
    return x.clone() if result.stride() == x.stride() else result


def check(truth: Tensor, text: str) -> None:
    """RuntimeError of this text unless the one truth holds."""
    if not truth.item():
        raise RuntimeError(text)


def _shape_of_check(truth: Tensor, text: str) -> None:
    if truth.numel() != 1:
        raise RuntimeError(f"a check is of one truth, and not of {list(truth.shape)}")


SCHEMAS: tuple[str, ...] = (
    "recurrence(Tensor x, Tensor factor, Tensor? first, int dim) -> Tensor",
    "conv_weight_grad(Tensor grad, Tensor x, int[] size, int[] stride, int[] padding, "
    "int[] dilation, int groups) -> Tensor",
    "wide_mm(Tensor a, Tensor b) -> Tensor",
    "to_contiguous(Tensor x) -> Tensor",
    "check(Tensor truth, str text) -> ()",
    "uniform(Tensor random, int number, int[] shape) -> Tensor",
    *attention_ops.SCHEMAS,
    *ctc_ops.SCHEMAS,
)
SEEDED: tuple[str, ...] = (
    "bernoulli_like(Tensor x, float p=0.5, *, Generator? generator=None) -> Tensor",
)
"""Schemas of operators that draw numbers of torch's generator."""
IMPLEMENTED: dict[str, tuple[Any, Any]] = {
    "recurrence": (recurrence, _shape_of_recurrence),
    "conv_weight_grad": (conv_weight_grad, _shape_of_conv_weight_grad),
    "wide_mm": (wide_mm, _shape_of_wide_mm),
    "uniform": (uniform, _shape_of_uniform),
    "to_contiguous": (to_contiguous, to_contiguous),
    "check": (check, _shape_of_check),
    "bernoulli_like": (bernoulli_like, _shape_of_bernoulli_like),
    "scaled_dot_product_cudnn": (attention_ops.by_cudnn, attention_ops.shape_of_cudnn),
    "scaled_dot_product_forward": (attention_ops.forward, attention_ops.shape_of_forward),
    "scaled_dot_product_backward": (attention_ops.backward, attention_ops.shape_of_backward),
    "ctc_forward": (ctc_ops.forward, ctc_ops.shape_of_forward),
    "ctc_backward": (ctc_ops.backward, ctc_ops.shape_of_backward),
}
"""By name what computes the operator, and what computes its result without data."""
LIBRARY: Any = torch.library
OURS = LIBRARY.Library("anabranch", "FRAGMENT")
for _schema in SCHEMAS:
    OURS.define(_schema)
for _schema in SEEDED:
    OURS.define(_schema, tags=(torch.Tag.nondeterministic_seeded,))
for _name, (_computes, _shape) in IMPLEMENTED.items():
    OURS.impl(_name, _computes, "CompositeExplicitAutograd")
    OURS.impl(_name, _shape, "Meta")
OPS: Any = torch.ops.anabranch

"""Random numbers that are written to a tensor, in the order of its memory.

    noise = torch.empty_like(x.t()).bernoulli_(0.5)      x contiguous: drawn column by column
    torch's functional form    bernoulli(noise, 0.5)     drawn row by row
    here                       noise.copy_(bernoulli_like(noise, 0.5))
    torch.rand(4, 6, out=y)    rand([4, 6])              drawn row by row, however y lies
    here                       y.uniform_()

A seed gives an element the number that it has in eager. Of all operators that draw in place,
bernoulli_ alone has a functional form with an order of its own; those that write to `out=` have the
form of what draws for a new tensor.

Below a functionalisation torch's dropout draws for a tensor without strides, and in the order of
its shape: here for one that lies as its operand.

Other operators draw row by row, for a new tensor that lies so, where torch says without values that
it lies as an operand: `torch.normal(mean, std)` of two tensors, `torch.poisson`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anabranch.ir import custom_ops, ops

aten = torch.ops.aten
Draw = Callable[..., Tensor]
"""Called as the operator, except that `generator` and `out` are given by name: writes what it
draws, and returns what it writes to."""


def applies(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call is to be replaced: it resizes nothing."""
    size = _SIZES.get(op)
    out = kwargs.get("out")
    if size is None or not isinstance(out, Tensor):
        return out is None
    return tuple(out.shape) == tuple(size(*args))


def _bernoulli_(x: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    return x.copy_(custom_ops.OPS.bernoulli_like(x, p, generator=generator))


def _bernoulli_out(p: Tensor, *, generator: Any = None, out: Tensor) -> Tensor:
    return out.bernoulli_(p, generator=generator)


def _rand_out(size: Any, *, generator: Any = None, out: Tensor) -> Tensor:
    return out.uniform_(generator=generator)


def _randn_out(size: Any, *, generator: Any = None, out: Tensor) -> Tensor:
    return out.normal_(generator=generator)


def _randint_out(*bounds: Any, out: Tensor) -> Tensor:
    low, high = (0, *bounds[:-1])[-2:]  # random_ has an argument that a traced program cannot name
    return out.copy_(torch.randint_like(out, low, high))


def _normal_out(
    mean: float, std: float, size: Any, *, generator: Any = None, out: Tensor
) -> Tensor:
    return out.normal_(mean, std, generator=generator)


def _last(*args: Any) -> Any:
    return args[-1]


def _shape(p: Tensor) -> Any:
    return p.shape


DRAWS: Mapping[Any, Draw] = {
    aten.bernoulli_.float: _bernoulli_,
    aten.bernoulli.out: _bernoulli_out,
    aten.rand.out: _rand_out,
    aten.rand.generator_out: _rand_out,
    aten.randn.out: _randn_out,
    aten.randn.generator_out: _randn_out,
    aten.randint.out: _randint_out,
    aten.randint.low_out: _randint_out,
    aten.normal.float_float_out: _normal_out,
}
"""By operator what draws in the order of memory."""
DRAWN_IN_ROWS = tuple(
    ops.resolve(op) for op in sorted(ops.IN_ROWS) if "normal" in op or "poisson" in op
)
"""Those of the operators that lie in rows of which torch says otherwise without values."""


ALPHA = 1.7580993408473766
"""What alpha dropout puts in the place of what it drops, negated (Klambauer and others, 2017)."""


def _dropout(
    x: Tensor, p: float, train: bool, alpha: bool = False, in_place: bool = False
) -> Tensor:
    """What ATen makes of a dropout, with alpha or without."""
    if p == 0 or not train or not x.numel():
        return x
    times = x.mul_ if in_place else x.mul
    if p == 1:
        return times(x.new_zeros(()))
    noise = torch.empty_like(x).bernoulli_(1 - p)
    if not alpha:
        return times(noise.div_(1 - p))
    scale = 1 / math.sqrt((ALPHA * ALPHA * p + 1) * (1 - p))
    shift = noise.add(-1).mul_(ALPHA * scale).add_(ALPHA * scale * p)
    return times(noise.mul_(scale)).add_(shift)


def _functional(training: bool, alpha: bool) -> Callable[..., Tensor]:
    def run(
        input: Tensor, p: float = 0.5, training: bool = training, inplace: bool = False
    ) -> Tensor:
        return _dropout(input, p, training, alpha, inplace)

    return run


DROPOUTS: Mapping[Any, Callable[..., Tensor]] = {
    functional.dropout: _functional(training=True, alpha=False),
    functional.alpha_dropout: _functional(training=False, alpha=True),
    torch.dropout: _dropout,
    torch.dropout_: partial(_dropout, in_place=True),
    torch.alpha_dropout: partial(_dropout, alpha=True),
    torch.alpha_dropout_: partial(_dropout, alpha=True, in_place=True),
}
"""By function of torch what takes it apart."""


class DropoutByParts(TorchFunctionMode):
    """Within it dropout is taken apart, where torch does that, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        source = args[0] if args else kwargs.get("input")
        if func in DROPOUTS and isinstance(source, Tensor) and _in_parts(func, source):
            return DROPOUTS[func](*args, **kwargs)
        return func(*args, **kwargs)


def _in_parts(func: Any, source: Tensor) -> bool:
    """Whether torch has no kernel for it: a GPU has a kernel that drops what it draws."""
    fused = func in (functional.dropout, torch.dropout)
    return source.device.type == "cpu" or not fused


def in_rows(*args: Any, generator: Any = None) -> Tensor:
    """A result of one of them, without values."""
    operands = [arg for arg in args if isinstance(arg, Tensor)]
    shapes = (operand.shape for operand in operands)
    shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return torch.empty(shape, dtype=operands[0].dtype, device="meta")


_SIZES: Mapping[Any, Callable[..., Any]] = {
    op: _shape if op is aten.bernoulli.out else _last for op in DRAWS
}
"""By operator the size that it gives to `out`, from its positional arguments."""

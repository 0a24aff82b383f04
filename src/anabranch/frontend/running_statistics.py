"""Running statistics that a norm writes, as writes of their own.

    F.batch_norm(x, mean, var, w, b, training=True)
        ->  F.batch_norm(x, None, None, w, b, training=True)
            mean.copy_(0.1 * mean of the batch + 0.9 * mean), and the same of var
    F.instance_norm(x, mean, var, w, b)
        ->  the same, with what all instances have in the mean

Torch writes them within the norm, and most schemas of its norms do not say so: what stands above
that code, as functionalisation does, would lose the writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from anabranch.frontend.batch_statistics import moved, pixels, sum_dtype

aten: Any = torch.ops.aten
BATCH, INSTANCE = "training", "use_input_stats"
"""The argument that says whether a norm goes by its input, and writes."""
_OPERANDS = ("input", "weight", "bias", "running_mean", "running_var")
_FUNCTIONAL = ("input", "running_mean", "running_var", "weight", "bias")
_REST = ("momentum", "eps", "cudnn_enabled")
NORMS: Mapping[Any, tuple[str, ...]] = {
    functional.batch_norm: (*_FUNCTIONAL, BATCH, "momentum", "eps"),
    functional.instance_norm: (*_FUNCTIONAL, INSTANCE, "momentum", "eps"),
    **dict.fromkeys((torch.batch_norm, aten.batch_norm.default), (*_OPERANDS, BATCH, *_REST)),
    **dict.fromkeys(
        (torch.instance_norm, aten.instance_norm.default), (*_OPERANDS, INSTANCE, *_REST)
    ),
    **dict.fromkeys(
        (torch.native_batch_norm, aten.native_batch_norm.default),
        (*_OPERANDS, BATCH, "momentum", "eps"),
    ),
}
"""The ways to call one, with the names of the arguments."""
DEFAULTS: Mapping[str, Any] = {INSTANCE: True, "momentum": 0.1}
"""Of those that torch.nn.functional has; nobody needs to name them there."""


class StatisticsByWrites(TorchFunctionMode):
    """Within it norms write nothing, and what they would write is written beside them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = NORMS.get(func)
        if names is None:
            return func(*args, **kwargs)
        told: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        by = BATCH if BATCH in names else INSTANCE
        x, mean, var = (told.get(name) for name in ("input", "running_mean", "running_var"))
        writes = told.get(by, DEFAULTS.get(by, False))
        if not writes or x is None or mean is None or var is None:
            return func(*args, **kwargs)
        momentum = told.get("momentum", DEFAULTS["momentum"])
        plain = {"momentum": DEFAULTS["momentum"]} if isinstance(momentum, torch.SymFloat) else {}
        result = func(**{**told, **plain, "running_mean": None, "running_var": None})
        of_var, of_mean = _of_batch(x) if by == BATCH else _of_instances(x)
        for running, statistic in ((mean, of_mean), (var, of_var)):
            running.copy_(moved(running, statistic, x, momentum))
        return result


def _of_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """The variance and the mean of each channel, as the norm itself computes them."""
    dims, _ = pixels(x)
    var, mean = torch.var_mean(x.detach().to(sum_dtype(x)), dims, correction=0, keepdim=True)
    count = x.numel() // x.shape[1] if x.shape[1] else 0
    factor = count / (count - 1) if count > 1 else math.nan
    return var.view(-1) * factor, mean.view(-1)


def _of_instances(x: Tensor) -> tuple[Tensor, Tensor]:
    """The same of each channel of an instance, in the mean of all of these."""
    apart = x.detach().to(sum_dtype(x))
    var, mean = torch.var_mean(apart, list(range(2, x.dim())), correction=1)
    return var.mean(0), mean.mean(0)

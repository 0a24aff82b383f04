"""Margin losses as graphs have them, where torch 2.13 takes them apart into something else.

Of `multilabel_margin_loss` it counts margins of class 0 once for each label that is left out (the
first -1 of a row and all behind it). Of one sample without a batch both losses have an axis that
eager's have not, where nothing is reduced. These functions stand in the place of torch's while we
trace (`frontend.trace_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp import decomposition_table

aten = torch.ops.aten
NONE, MEAN = 0, 1
"""What `reduction` means to ATen."""


def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """The loss of x [samples, classes] or [classes], and 1 where a class is a target, like x.
    `target`, like x: classes of each sample up to a -1. RuntimeError where shapes differ."""
    torch._check(  # type: ignore[no-untyped-call]
        1 <= x.dim() <= 2 and x.shape == target.shape and x.shape[-1] > 0,
        lambda: f"inconsistent target size: {target.shape} for input of size: {x.shape}",
    )
    scores, labels = (t.unsqueeze(0) if t.dim() == 1 else t for t in (x, target))
    count = scores.shape[1]
    classes = torch.arange(count, device=x.device)
    end = torch.where(labels == -1, classes, count).amin(-1, keepdim=True)
    listed = (classes < end).unsqueeze(-1)  # [samples, labels, 1]
    is_target = (listed & (classes == labels.unsqueeze(-1))).any(1)
    own = scores.gather(-1, torch.where(listed.squeeze(-1), labels, 0))
    margins = 1.0 - own.unsqueeze(-1) + scores.unsqueeze(1)
    counted = listed & ~is_target.unsqueeze(1) & (margins > 0)  # NaN is not counted
    losses = torch.where(counted, margins, 0).sum((1, 2)) / count
    loss = losses.reshape(target.shape[:-1])
    if reduction != NONE:
        loss = loss.mean() if reduction == MEAN else loss.sum()
    return loss, is_target.to(x.dtype).reshape(target.shape)


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: float = 1,
    margin: float = 1,
    weight: Tensor | None = None,
    reduction: int = MEAN,
) -> Tensor:
    """Torch's, without an axis where x [classes] has the target [] and nothing is reduced."""
    loss: Tensor = _TORCHS(x, target, p, margin, weight, reduction)
    return loss.reshape(target.shape) if reduction == NONE else loss


_TORCHS: Any = decomposition_table[aten.multi_margin_loss.default]


MARGIN_LOSSES: dict[Any, dict[DispatchKey, Callable[..., Any]]] = {
    aten.multilabel_margin_loss_forward.default: {DispatchKey.Autograd: multilabel_margin_loss},
    aten.multi_margin_loss.default: {DispatchKey.Autograd: multi_margin_loss},
}
"""By operator the kernel in Python that takes it apart."""

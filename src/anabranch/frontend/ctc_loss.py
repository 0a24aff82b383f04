"""`F.ctc_loss` of fixed sizes (`ir.ctc_ops`), in place of torch's, whose size depends on values.

    _ctc_loss(log_probs, targets, lengths, lengths)  ->  anabranch.ctc_forward(...)
    its backward                                     ->  anabranch.ctc_backward(...)

These functions stand in the place of torch's while we trace (`frontend.trace_kernels`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

from anabranch.ir import custom_ops

aten = torch.ops.aten


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, *told: Any) -> tuple[Tensor, Tensor]:
        *where, blank, zero_infinity = told
        loss, alpha = custom_ops.OPS.ctc_forward(log_probs, *where, blank)
        ctx.save_for_backward(log_probs, *where, loss, alpha)
        ctx.settings = blank, zero_infinity
        ctx.mark_non_differentiable(alpha)
        return loss, alpha

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        gradient = custom_ops.OPS.ctc_backward(grads[0], *ctx.saved_tensors, *ctx.settings)
        return gradient, None, None, None, None, None


def _loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and what its gradient reads. RuntimeError for other shapes."""
    lengths = (of.to(targets.device).reshape(-1) for of in (input_lengths, target_lengths))
    function: Any = _Loss
    results: tuple[Tensor, Tensor] = function.apply(
        log_probs, targets, *lengths, blank, zero_infinity
    )
    return results


def _of_numbers(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *settings: Any,
    **named: Any,
) -> Tensor:
    """The loss where lengths are numbers, of which torch makes a tensor that a trace has not."""
    lengths = (_tensor(of, targets.device) for of in (input_lengths, target_lengths))
    loss: Tensor = aten.ctc_loss.Tensor(log_probs, targets, *lengths, *settings, **named)
    return loss


def _tensor(lengths: Sequence[int], device: torch.device) -> Tensor:
    numbers = [torch.full((1,), n, dtype=torch.int64, device=device) for n in lengths]
    return torch.cat(numbers) if numbers else torch.empty(0, dtype=torch.int64, device=device)


CTC_LOSSES: dict[Any, dict[DispatchKey, Callable[..., Any]]] = {
    aten._ctc_loss.Tensor: {DispatchKey.Autograd: _loss},
    aten.ctc_loss.IntList: {DispatchKey.CompositeImplicitAutograd: _of_numbers},
}
"""By operator the kernel in Python that takes it apart."""

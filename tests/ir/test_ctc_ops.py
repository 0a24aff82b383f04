"""The loss of CTC in fixed sizes, by torch's kernels and by steps, against torch's own operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from anabranch.ir import ctc_ops, custom_ops

aten = torch.ops.aten


def forward_by_steps(log_probs: Tensor, *told: Any) -> Any:
    return ctc_ops.by_steps(log_probs, ctc_ops.CtcTargets(*told))


def backward_by_steps(grad: Tensor, log_probs: Tensor, *told: Any) -> Tensor:
    targets, steps, lengths, loss, alpha, blank, zero_infinity = told
    labels = ctc_ops.CtcTargets(targets, steps, lengths, blank)
    return ctc_ops.gradient_by_steps(grad, log_probs, labels, loss, alpha, zero_infinity)


PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "as it is": (ctc_ops.forward, ctc_ops.backward),
    "by steps": (forward_by_steps, backward_by_steps),
}


def problem(
    sizes: tuple[int, int, int, int], blank: int, joined: bool, seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, targets, and lengths, some of them 0 or too short for their target."""
    torch.manual_seed(seed)
    steps, count, classes, most = sizes
    log_probs = torch.randn(steps, count, classes, dtype=torch.float64).log_softmax(-1)
    labels = torch.tensor([c for c in range(classes) if c != blank])
    targets = labels[torch.randint(0, len(labels), (count, most))]
    lengths = torch.randint(0, steps + 1, (count,)), torch.randint(0, most + 1, (count,))
    if joined:
        targets = torch.cat([row[:n] for row, n in zip(targets, lengths[1], strict=True)])
    return log_probs, targets, *lengths


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("sizes", [(12, 3, 6, 4), (5, 2, 4, 4), (7, 4, 3, 3), (1, 2, 3, 1)])
def test_loss_and_gradient_are_torchs(
    pair: str, joined: bool, sizes: tuple[int, int, int, int]
) -> None:
    forward, backward = PAIRS[pair]
    for seed in range(6):
        blank = seed % sizes[2]
        log_probs, targets, *lengths = problem(sizes, blank, joined, seed)
        numbers = [of.tolist() for of in lengths]
        if not targets.numel():
            continue  # torch's gradient refuses that
        wanted, ways = aten._ctc_loss(log_probs, targets, *numbers, blank)
        loss, alpha = forward(log_probs, targets, *lengths, blank)
        torch.testing.assert_close(loss, wanted)
        grad = torch.randn(sizes[1], dtype=torch.float64)
        for zero in (False, True):
            result = backward(grad, log_probs, targets, *lengths, loss, alpha, blank, zero)
            gradient = aten._ctc_loss_backward(
                grad, log_probs, targets, *numbers, wanted, ways, blank, zero
            )
            torch.testing.assert_close(result, gradient, equal_nan=True)


@pytest.mark.parametrize(
    ("steps", "labels", "joined"),
    [(6, 2, False), (5, 4, False), (-1, 2, False), (5, -1, False), (5, 9, True)],
)
def test_lengths_beyond_the_sizes_are_no_plausible_loss(
    steps: int, labels: int, joined: bool
) -> None:
    log_probs = problem((5, 3, 4, 3), 0, False, 0)[0]
    targets = torch.tensor([1, 2, 3] * 3)
    targets = targets if joined else targets.reshape(3, 3)
    told = targets, torch.tensor([5, 4, steps]), torch.tensor([3, 2, labels]), 0
    with pytest.raises(RuntimeError, match="Expected "):
        ctc_ops.forward(log_probs, *told)
    loss, alpha = forward_by_steps(log_probs, *told)
    assert loss.isfinite().tolist() == [True, True, False] and loss[2].isnan()
    grad = torch.ones(3, dtype=torch.float64)
    gradient = backward_by_steps(grad, log_probs, *told[:3], loss, alpha, 0, True)
    assert gradient[:, :2].isfinite().all() and gradient[:, 2].isnan().all()


def test_shapes_are_known_without_data() -> None:
    log_probs, targets, *lengths = problem((5, 3, 4, 2), 0, False, 0)
    loss, alpha = custom_ops.OPS.ctc_forward(log_probs, targets, *lengths, 0)
    told = grad, *_ = torch.ones_like(loss), log_probs, targets, *lengths, loss, alpha
    result = custom_ops.OPS.ctc_backward(grad, *told[1:], 0, False)
    empty = [x.to("meta") for x in told]
    shapes = custom_ops.OPS.ctc_forward(*empty[1:5], 0)
    for data, shape in zip(
        (loss, alpha, result),
        (*shapes, custom_ops.OPS.ctc_backward(*empty, 0, False)),
        strict=True,
    ):
        assert (data.shape, data.stride(), data.dtype) == (shape.shape, shape.stride(), shape.dtype)


@pytest.mark.parametrize(
    "change",
    [
        {"log_probs": torch.zeros(5, 4)},
        {"log_probs": torch.zeros(5, 3, 4, dtype=torch.float16)},
        {"targets": torch.ones(2, 2, dtype=torch.int64)},
        {"input_lengths": torch.ones(2, dtype=torch.int64)},
        {"blank": 4},
    ],
    ids=str,
)
def test_other_sizes_are_refused(change: dict[str, Any]) -> None:
    log_probs, targets, *lengths = problem((5, 3, 4, 2), 0, False, 0)
    told: dict[str, Any] = {"log_probs": log_probs, "targets": targets, "blank": 0}
    told |= {"input_lengths": lengths[0], "target_lengths": lengths[1], **change}
    with pytest.raises(RuntimeError):
        custom_ops.OPS.ctc_forward(**told)

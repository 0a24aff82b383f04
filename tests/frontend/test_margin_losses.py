"""Margin losses in a trace against those of eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import anabranch

ROWS = [[0, 1, 2, -1], [-1, 2, 1, 3], [3, -1, 2, -1]]
"""Labels of three samples; what stands behind a -1 is left out."""


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("target", [ROWS, ROWS[1], ROWS[2], [3, 0, 1, 2]], ids=str)
def test_labels_that_are_left_out_have_no_margins(target: list[int], reduction: str) -> None:
    labels = torch.tensor(target)

    def loss(x: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, labels, reduction=reduction)

    x = torch.randn(labels.shape, generator=torch.Generator().manual_seed(0))
    for fast in (
        anabranch.compile(loss, (x,), target="cpu", effort="fast"),
        torch.compile(loss, backend="anabranch"),
    ):
        with torch.no_grad():
            torch.testing.assert_close(fast(x), loss(x))
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss(first).sum().backward()  # type: ignore[no-untyped-call]
    torch.compile(loss, backend="anabranch")(second).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(second.grad, first.grad)


def test_margins_that_are_no_number_are_not_counted() -> None:
    x = torch.tensor([[float("nan"), 1.0, float("inf"), 0.5], [0.1, 3e38, 3e38, -3e38]])
    labels = torch.tensor([[1, 3, -1, 0], [3, 0, -1, 2]])

    def loss(x: Tensor) -> Tensor:
        return F.multilabel_margin_loss(x, labels, reduction="none")

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(loss, backend="anabranch")(x), loss(x))


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize(("x", "target"), [((4,), 2), ((4,), [2]), ((3, 4), [0, 3, 1])])
def test_a_sample_without_a_batch_has_a_loss_without_axes(
    x: tuple[int, ...], target: int | list[int], p: int
) -> None:
    label = torch.tensor(target)

    def loss(x: Tensor) -> Tensor:
        return F.multi_margin_loss(x, label, p=p, reduction="none")

    scores = torch.randn(x, generator=torch.Generator().manual_seed(0))
    fast = torch.compile(loss, backend="anabranch")
    with torch.no_grad():
        torch.testing.assert_close(fast(scores), loss(scores))

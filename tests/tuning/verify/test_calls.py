"""Calls in a row beside the model's own: what only rounding makes in it is no other result."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.tuning.verify.plan import without_noise


class Flat(nn.Module):
    """A norm over equal numbers: the weights' gradient is zero, or what rounding leaves of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((3,), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(F.adaptive_avg_pool2d(x, 3))
        return y


def test_a_gradient_that_is_zero_may_be_what_rounding_leaves_in_the_model() -> None:
    """Some of these models make 7e-7 of it, where the plan makes zero."""
    for seed in range(16):
        torch.manual_seed(seed)
        model, x, t = Flat(), torch.randn(1, 4, 1, 1), torch.randn(1, 4, 3, 3)
        with torch.no_grad():
            model.norm.weight.normal_()
        before = model.norm.weight.detach().clone()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, maximize=True)
        step = anabranch.compile_step(
            model,
            lambda m, x, t: F.mse_loss(m(x), t),
            optimizer,
            (x, t),
            target="cpu",
            cache_dir=None,
            search="none",
            keep_grad=True,
            strict=True,
        )
        step(x, t)
        torch.testing.assert_close(model.norm.weight.detach(), before, rtol=0, atol=1e-5)


def test_noise_is_what_rounding_may_leave_where_the_truth_is_zero() -> None:
    truth = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    off = torch.tensor([1e-6, 1e-6, 0.0, 1e-6], dtype=torch.float64)
    want, out = torch.tensor([7e-7, 1e-3, 7e-7, 1.0]), torch.tensor([-0.0, 0.0, 0.0, 1.0 + 5e-7])
    right = without_noise(want, out, truth, off)
    assert right.tolist() == [0.0, *want[1:].tolist()]

"""Calls in a row beside the model's own: what only rounding makes in it is no other result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.ir.text import parse_graph
from anabranch.tuning.verify.plan import drawn_anew, without_noise


class Flat(nn.Module):
    """A norm over equal numbers: the weights' gradient is zero, or what rounding leaves of it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm((3,), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(F.adaptive_avg_pool2d(x, 3))
        return y


def test_a_gradient_that_is_zero_may_be_what_rounding_leaves_in_the_model() -> None:
    """The models make from 5e-7 to 4e-6 of it, where the plan may make zero."""
    for seed in (0, 1, 6, 10):
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


class Drawing(nn.Module):
    """It counts its calls in a buffer, and returns random numbers."""

    count: Tensor

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.wrong = wrong
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        # A trace reads an attribute once: the model's own later calls add another number.
        self.count.add_(2.0 if self.wrong and not torch.compiler.is_compiling() else 1.0)
        return x + torch.rand_like(x)


def test_a_state_that_no_random_number_reaches_is_compared() -> None:
    """Though the model draws numbers, which make its results others in each run."""
    options: Any = dict(target="cpu", cache_dir=None, search="none", strict=True)
    anabranch.compile(Drawing(wrong=False).eval(), (torch.randn(4, 3),), **options)
    with pytest.raises(anabranch.AnabranchError, match="the state count differs"):
        anabranch.compile(Drawing(wrong=True).eval(), (torch.randn(4, 3),), **options)


@pytest.mark.parametrize(
    "call",
    [
        "aten.uniform.default(%x)",
        "aten.exponential.default(%x)",
        "aten.cauchy.default(%x)",
        "aten.poisson.default(%x)",
        "aten.normal.Tensor_float(%x)",
        "aten.scaled_dot_product_attention.default(%x, %x, %x, None, 0.1)",
    ],
)
def test_random_numbers_of_every_sort_are_not_compared(call: str) -> None:
    """A reference draws others, by which any error would be allowed."""
    graph = parse_graph(f"""
graph one {{
  input %x: f32[3,4]
  %y: f32[3,4] = {call}
  %z: f32[3,4] = aten.neg.default(%y)
  %w: f32[3,4] = aten.neg.default(%x)
  return %z, %w
}}""")
    assert drawn_anew(graph) == {0}

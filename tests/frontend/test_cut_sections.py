"""A trace in steps: what plans take, what runs as eager does, and what waits for a check."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.cut_sections import CutStep, split
from anabranch.frontend.cut_trace import trace_cuts
from anabranch.frontend.surroundings import surroundings


def steps(model: Any, *args: Any) -> list[CutStep]:
    return split(trace_cuts(model, args, {}, surroundings()))


def told(found: list[CutStep]) -> list[tuple[str, tuple[str, ...]]]:
    return [(step.kind, step.operators) for step in found]


def test_what_needs_no_answer_runs_first() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        found = x[x > 0]
        y = x.sin().cos().tanh()
        return found * 2, y

    first, second = steps(model, torch.randn(4))
    assert told([first, second]) == [
        ("section", ("gt", "sin", "cos", "tanh")),
        ("eager", ("index", "mul")),
    ]
    assert first.gives == ("gt", "tanh") and second.reads == ("x", "gt")


def test_nothing_runs_before_a_check_that_stood_before_it() -> None:
    def model(x: Tensor, at: Tensor) -> Tensor:
        y = x.sin().cos().tanh()
        if at.max() >= x.shape[0]:  # what comes next would read beyond the end
            return y
        return y[at].exp().sqrt().relu()

    found = told(steps(model, torch.randn(4), torch.tensor([1, 2])))
    assert found == [
        ("section", ("sin", "cos", "tanh", "max", "ge")),
        ("eager", ("_local_scalar_dense",)),
        ("section", ("index", "exp", "sqrt", "relu")),
    ]


def test_a_few_operators_are_no_plan() -> None:
    def model(x: Tensor) -> Tensor:
        found = x.sin().cos().tanh()[x > 0].sum()
        return found.exp().sqrt()

    assert [kind for kind, _ in told(steps(model, torch.randn(4)))] == ["section", "eager"]


def test_a_mask_that_is_written_through_runs_as_eager_does() -> None:
    def model(x: Tensor) -> Tensor:
        y = x.sin().cos().tanh()
        y[y > 0] = torch.ones(int((y > 0).sum()))
        return y

    found = steps(model, torch.randn(4))
    assert [step.kind for step in found if "index_put" in step.operators] == ["eager"]


def test_inputs_are_written_to_last() -> None:
    def model(x: Tensor) -> Tensor:
        x.mul_(2)
        found = x[x > 0]
        return found + x.sin().cos().tanh().sum()

    found = steps(model, torch.randn(4))
    assert found[-1].operators[-1] == "copy_"


def test_what_is_computed_of_weights_alone_goes_where_it_is_read() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            y = (x @ self.weight.t()).relu().sin()
            return y[y[:, 0] > 0] @ self.weight.t()

    first, second = steps(Model().eval(), torch.randn(3, 4))
    assert "t" in first.operators and "t" in second.operators
    assert first.weights == second.weights == ("weight",)
    assert "t" not in first.gives and "t" not in second.reads

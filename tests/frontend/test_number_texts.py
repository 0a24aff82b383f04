"""Models that make text of numbers of a tensor, or look something up by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.errors import NumericsError

OPTIONS: Any = {"target": "cpu", "effort": "fast"}
X = torch.tensor([[3.0, -1.0], [0.5, 2.0]])
NAMES = {0: "none", 1: "one", 3: "three", 4: "all"}


def test_text_of_a_tensor_of_one_number_is_of_its_value() -> None:
    def model(x: Tensor) -> tuple[Tensor, str]:
        return x.sin().cos().exp(), f"{(x > 0).sum()}"

    fast = anabranch.compile(model, (X,), **OPTIONS)
    for x in (X, -X, -X.abs()):
        assert fast(x)[1] == model(x)[1]


@pytest.mark.parametrize(
    "say",
    [
        lambda count: f"{count} positive",
        lambda count: f"{count > 2}",
        lambda count: f"{count:03d}",
        lambda count: f"{count / 4:.2f}",
        str,
        lambda count: "%s" % count,  # noqa: UP031
        lambda count: repr([count]),
        lambda count: NAMES[count],
        lambda count: NAMES.get(count, "many"),
    ],
)
def test_text_is_of_the_value_in_each_call(say: Callable[[Any], str]) -> None:
    layer = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).eval()

    def model(x: Tensor) -> tuple[Tensor, str]:
        return layer(x), say((x > 0).sum().item())

    fast = anabranch.compile(model, (X,), **OPTIONS)
    for x in (X, -X, X.abs(), -X.abs()):
        assert fast(x)[1] == model(x)[1]


def test_a_layer_is_found_by_a_name_with_a_number_in_it() -> None:
    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
            self.heads = nn.ModuleDict({f"task{i}": nn.Linear(2, 2) for i in range(2)})

        def forward(self, x: Tensor, task: Tensor) -> Tensor:
            out: Tensor = self.heads[f"task{task.item()}"](self.stem(x))
            return out

    model = Tasks().eval()
    fast = anabranch.compile(model, (X, torch.tensor(1)), **OPTIONS)
    for task in (1, 0, 1):
        torch.testing.assert_close(fast(X, torch.tensor(task)), model(X, torch.tensor(task)))


def test_text_of_a_size_that_varies_asks_for_nothing() -> None:
    def model(x: Tensor) -> Tensor:
        return x.tanh() if f"{x.shape[0]}" else x

    fast = anabranch.compile(model, (X,), sizes=[2, 4], **OPTIONS)
    torch.testing.assert_close(fast(X[:1]), model(X[:1]))


def test_a_result_of_python_that_is_another_in_the_capture_is_refused() -> None:
    def model(x: Tensor) -> tuple[Tensor, bool]:
        return x.tanh(), isinstance(x.sum().item(), float)

    with pytest.raises(NumericsError, match="result 1 is False, the model's own True"):
        anabranch.compile(model, (X,), **OPTIONS)

"""What a model checks of its values, on a GPU: a plan raises what eager raises, and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.gpu.generated import generated
from torch import Tensor

import anabranch

pytestmark = pytest.mark.gpu
LinAlgError: Any = vars(torch.linalg)["LinAlgError"]
INV: Callable[[Tensor], Tensor] = torch.linalg.inv


@pytest.mark.parametrize(
    "model",
    [
        lambda x: INV(x) @ x + 1,
        lambda x: torch.linalg.solve(x, x.sum(-1)) * 2,
        lambda x: torch.linalg.cholesky(x).relu(),
    ],
)
def test_a_plan_raises_where_eager_does(model: Callable[[Tensor], Tensor]) -> None:
    good = torch.eye(4, device="cuda") * 2
    bad = torch.zeros(4, 4, device="cuda")
    fast = anabranch.compile(model, (good,), search="none", budget=10)
    torch.testing.assert_close(fast(good), model(good))
    for call in (model, fast):
        with pytest.raises(LinAlgError):
            call(bad)
    torch.testing.assert_close(fast(good), model(good))


def test_a_row_that_a_table_has_not_is_nan_and_harms_nobody() -> None:
    """Where a generated kernel looks it up; the library's ends the process's use of the GPU."""
    table = torch.randn(8, 64, device="cuda")

    def model(at: Tensor) -> Tensor:
        return torch.nn.functional.embedding(at, table).relu() * 2

    at = torch.tensor([1, 7, 0], device="cuda")
    fast = anabranch.compile(model, (at,), search="none", budget=10)
    torch.testing.assert_close(fast(at), model(at))
    run = generated(fast)
    assert all(task.kernel and task.kernel.source for task in run.plan.tasks.tasks)
    found = run([torch.tensor([1, 8, -1], device="cuda")], clone=True)[0]
    assert found[1:].isnan().all() and found[0].isfinite().all()
    torch.testing.assert_close(run([at], clone=True)[0], model(at))

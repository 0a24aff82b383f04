"""Covariances by operators, against torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.frontend.covariance import cov

OPERANDS = [
    torch.randn(4, 7),
    torch.randn(7),
    torch.randint(0, 9, (3, 7)),
    torch.randn(3, 7, dtype=torch.complex64),
    torch.randn(3, 7, dtype=torch.float64),
]
WEIGHTS = [
    (None, None),
    (torch.arange(7), None),
    (None, torch.rand(7)),
    (torch.ones(7, dtype=torch.int64), torch.arange(7.0)),
]


@pytest.mark.filterwarnings("ignore:cov")
@pytest.mark.parametrize("correction", [0, 1, 9])
def test_covariances_are_torchs(correction: int) -> None:
    for x in OPERANDS:
        for fweights, aweights in WEIGHTS:
            named: Any = {"correction": correction, "fweights": fweights, "aweights": aweights}
            torch.testing.assert_close(cov(x, **named), torch.cov(x, **named), equal_nan=True)


@pytest.mark.parametrize(
    ("x", "named"),
    [
        (torch.ones(2, 3, 4), {}),
        (torch.ones(3, dtype=torch.bool), {}),
        (torch.ones(2, 3), {"fweights": torch.ones(3)}),
        (torch.ones(2, 3), {"aweights": torch.ones(3, dtype=torch.int64)}),
        (torch.ones(2, 3), {"fweights": torch.ones(2, dtype=torch.int64)}),
        (torch.ones(2, 3), {"aweights": torch.ones(3, 1)}),
        (torch.ones(2, 3), {"aweights": -torch.ones(3)}),
        (torch.ones(2, 3), {"fweights": torch.zeros(3, dtype=torch.int64)}),
    ],
)
def test_what_torch_refuses_is_refused(x: Tensor, named: dict[str, Any]) -> None:
    for function in (torch.cov, cov):
        with pytest.raises(RuntimeError, match=r"cov\(\)"):
            function(x, **named)


def test_few_observations_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert cov(torch.ones(2, 1)).isnan().all()


def of_variances(model: Any, x: Tensor) -> Any:
    """The term of VICReg that has the features of a batch vary apart."""
    y = model(x)
    covariance = torch.cov(y.T)
    covariance.fill_diagonal_(0)
    return covariance.square().sum() + (1 - y.std(0)).relu().mean()


def of_correlations(model: Any, x: Tensor) -> Tensor:
    return torch.corrcoef(model(x).T).square().sum()


def weighted(model: Any, x: Tensor) -> Tensor:
    return torch.cov(model(x).T, aweights=x[:, 0].square()).square().sum()


@pytest.mark.parametrize("loss", [of_variances, of_correlations, weighted])
def test_losses_of_covariances_are_trained(loss: Callable[[Any, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model, eager = nn.Linear(4, 5), nn.Linear(4, 5)
    eager.load_state_dict(model.state_dict())
    x = torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    step = anabranch.compile_step(
        model, loss, optimizer, (x,), target="cpu", search="none", effort="fast", cache_dir=None
    )
    optimizer = torch.optim.SGD(eager.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        wanted = loss(eager, x)
        wanted.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch.testing.assert_close(step(x), wanted)
    for trained, parameter in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(trained, parameter)

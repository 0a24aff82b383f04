"""Random numbers of a plan are eager's for a seed, whatever memory they are drawn into."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import Tensor
from torch.nn import functional

import anabranch

pytestmark = pytest.mark.gpu

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "like": lambda x: x + torch.rand_like(x) * torch.randn_like(x),
    "bernoulli": lambda x: x * torch.empty_like(x).bernoulli_(0.5),
    "in rows": lambda x: x + torch.rand(x.shape, device=x.device),
    "uniform": lambda x: x + torch.empty_like(x).uniform_(),
    "normal": lambda x: x + torch.empty_like(x).normal_(2.0, 3.0),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(),
    "dropout": lambda x: functional.dropout(x, 0.5),
    "alpha dropout": lambda x: functional.alpha_dropout(x, 0.5, training=True),
}
LAID: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "transposed": lambda x: x.t().contiguous().t(),
}


@pytest.mark.parametrize("lies", LAID)
@pytest.mark.parametrize("kind", DRAWN)
def test_a_seed_gives_the_numbers_of_eager(kind: str, lies: str) -> None:
    torch.manual_seed(3)
    model, lay = DRAWN[kind], LAID[lies]
    x = lay(torch.randn(48, 80, device="cuda"))
    fast = anabranch.compile(model, (x,), cache_dir=shared_cache(), search="none", budget=8.0)
    for seed in range(3):
        x = lay(torch.randn(48, 80, device="cuda"))
        torch.manual_seed(seed)
        expected = [model(x), torch.rand(4, device="cuda")]
        torch.manual_seed(seed)
        result = [fast(x), torch.rand(4, device="cuda")]
        torch.testing.assert_close(result, expected)
        assert result[0].stride() == expected[0].stride()

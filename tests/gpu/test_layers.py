"""Layers that are seldom, each compiled by itself with generated kernels, on inputs of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.gpu.shared import shared_cache
from torch import Tensor, nn

import anabranch

pytestmark = pytest.mark.gpu


class Of(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def _alibi(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention as Bloom has it: scores are added to what says how far keys are away."""
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=0.125)
    return torch.bmm(scores.float().softmax(-1).to(q.dtype), v)


def _bags(ids: Tensor, table: Tensor, other: Tensor) -> Tensor:
    found = [F.embedding_bag(ids, one, mode=m) for one in (table, other) for m in ("sum", "mean")]
    return torch.stack(found, 1)


def _updates(x: Tensor, y: Tensor) -> Tensor:
    out = x * 2
    out[:, 1::2] += y
    out[:, :, -1] = 3.0
    return out.relu()


def _sampled(mode: str, beyond: str, corners: bool) -> Callable[[Tensor, Tensor], Tensor]:
    def sampled(x: Tensor, grid: Tensor) -> Tensor:
        found = F.grid_sample(x, grid * 1.3, mode, beyond, corners)
        return F.relu(found) if mode == "bilinear" else found

    return sampled


def _sru(x: Tensor, w: Tensor) -> Tensor:
    """A layer of simple recurrent units, of more steps than are unrolled."""
    z, f, o = (x @ w).chunk(3, -1)
    c, found = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        gate, out = torch.sigmoid(f[t]), torch.sigmoid(o[t])
        c = gate * c + (1 - gate) * z[t]
        found.append(out * torch.tanh(c) + (1 - out) * x[t])
    return torch.stack(found)


def _nucleus(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return p.masked_fill(p.cumsum(-1) - p > 0.9, 0.0)


def r(*shape: int) -> Tensor:
    return torch.randn(*shape)


IMAGE = (2, 12, 17, 23)
LAYERS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "recurrence": (_sru, (r(200, 4, 64), r(64, 192) / 8)),
    "running sums": (_nucleus, (r(3, 900),)),
    "sums of what is left": (lambda x: x.flip(1).cumsum(1).flip(1) * 0.1, (r(5, 9000),)),
    "bags": (_bags, (torch.randint(0, 400, (64, 20)), r(400, 48), r(400, 48))),
    "attention with alibi": (_alibi, (r(8, 70, 64), r(8, 70, 64), r(8, 70, 64), r(8, 1, 70))),
    "updates of slices": (_updates, (r(3, 10, 33), r(3, 5, 33))),
    "windows as columns": (lambda x: F.unfold(x, 3, padding=1, stride=2).relu(), (r(*IMAGE),)),
    "columns as windows": (
        lambda x: F.fold(x, (17, 23), 3, padding=1) * 0.5,
        (r(2, 12 * 9, 17 * 23),),
    ),
    "bicubic": (lambda x: F.interpolate(x, (31, 40), mode="bicubic") + 1, (r(*IMAGE),)),
    "uneven pools": (lambda x: F.adaptive_avg_pool2d(x.relu(), (6, 5)), (r(*IMAGE),)),
    **{
        f"samples, {mode}, {beyond}, {corners}": (
            _sampled(mode, beyond, corners),
            (r(*IMAGE), torch.rand(2, 9, 14, 2) * 2 - 1),
        )
        for mode, beyond, corners in (
            *(("bilinear", "zeros", False), ("bilinear", "border", True)),
            *(("nearest", "zeros", True), ("nearest", "border", False)),
        )
    },
}


SAME_IN_HALF = ("samples", "uneven pools", "windows as columns", "bicubic")
"""Layers whose kernels compute in fp32 whatever they read: fp16 adds a cast, as in the others."""
CASES = [
    (name, dtype)
    for name in LAYERS
    for dtype in (torch.float32, torch.float16)
    if dtype == torch.float32 or not name.startswith(SAME_IN_HALF)
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_layers_are_right(name: str, dtype: torch.dtype) -> None:
    """`compile` compares kernels with their bodies and the plan with the model, and raises."""
    function, given = LAYERS[name]
    args = tuple(x.to("cuda", dtype if x.is_floating_point() else None) for x in given)
    options: dict[str, Any] = {
        "kernels": "all",
        "search": "none",
        "cache_dir": shared_cache(),
        "strict": True,
    }
    seconds = 60.0  # for kernels to be tried beside seven other processes; an idle GPU needs 8
    fast = anabranch.compile(Of(function).eval(), args, target="cuda", budget=seconds, **options)
    tasks = fast.entries[0].plan.tasks.tasks
    assert any(task.kernel and task.kernel.provider == "triton" for task in tasks)
    wanted = function(*(x.double() if x.is_floating_point() else x for x in args))
    close = 2e-2 if dtype == torch.float16 else 1e-4
    torch.testing.assert_close(fast(*args).double(), wanted.double(), rtol=close, atol=close)

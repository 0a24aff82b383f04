"""Convolutions of slices that begin at any element."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.shared import shared_cache
from torch import nn

import anabranch

pytestmark = pytest.mark.gpu


class Half(nn.Module):
    """The second of two channels of 25 numbers begins at byte 100."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, (3, 1), padding=(1, 0), bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.conv(x.chunk(2, -3)[1])
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kernels", ["all", "library"])
def test_a_slice_may_begin_anywhere(dtype: torch.dtype, kernels: str) -> None:
    torch.manual_seed(0)
    model, x = Half().cuda().to(dtype).eval(), torch.randn(3, 2, 5, 5, device="cuda", dtype=dtype)
    for scheduler in ("sequential", "ios-barrier"):
        fast = anabranch.compile(
            model,
            (x,),
            cache_dir=shared_cache(),
            budget=12.0,
            search="none",
            scheduler=scheduler,
            kernels=kernels,
            channels_last=False,
            strict=True,
        )
        for _ in range(2):
            y = torch.randn_like(x)
            with torch.no_grad():
                torch.testing.assert_close(fast(y), model(y), rtol=1e-2, atol=1e-2)

"""Images of bytes, interpolated in a trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F


@pytest.mark.parametrize("sizes", [{"size": (5, 9)}, {"scale_factor": 1.7}], ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes_are_weighed_as_in_eager(mode: str, corners: bool, sizes: dict[str, Any]) -> None:
    def resize(x: Tensor) -> Tensor:
        return F.interpolate(x, mode=mode, align_corners=corners, **sizes)

    generator = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (2, 3, 14, 12), dtype=torch.uint8, generator=generator)
    fast = torch.compile(resize, backend="anabranch")
    with torch.no_grad():
        assert torch.equal(fast(image), resize(image))
        floats = image / 255
        torch.testing.assert_close(fast(floats), resize(floats))

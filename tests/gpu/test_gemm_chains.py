"""A layer with what it reads in one kernel, on a GPU: every tile that is offered, in every mode of
launch, against fp64; and whole models whose plans may hold such kernels."""

from __future__ import annotations

import copy

import pytest
import torch
from benchmarks.kernel_timing import Bench
from benchmarks.layer_chains import PAIRS, bottleneck, layers, pooled, separable, squeeze
from torch import Tensor, nn

import anabranch
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.triton.codegen import variants

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="generated kernels need Triton")


@pytest.mark.parametrize("name", PAIRS)
def test_every_tile_is_right(name: str) -> None:
    bench = Bench.of()
    found = bench.times((PAIRS[name], variants(PAIRS[name], bench.spec)), each=0.0)
    refused = {variant: why for variant, why in found.items() if isinstance(why, str)}
    assert found and not refused, refused


SMALL = {
    "bottleneck": lambda dtype: bottleneck(40, 13, 72, dtype=dtype),
    "squeeze": lambda dtype: squeeze(72, 11, 24, 40, dtype=dtype),
    "separable": lambda dtype: separable(40, 13, 24, dtype=dtype),
    "pooled": lambda dtype: pooled(40, 13, 24, "max_pool2d", dtype=dtype),
    "layers": lambda dtype: layers(37, 72, 136, 40, dtype=dtype),
    "one row": lambda dtype: layers(1, 72, 136, 40, dtype=dtype),
}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "tf32"])
@pytest.mark.parametrize("name", SMALL)
def test_ragged_sizes_in_every_type_and_mode(name: str, dtype: str) -> None:
    bench = Bench.of(tf32=dtype == "tf32")
    body = SMALL[name](dtype.removeprefix("t"))
    offered = variants(body, bench.spec)
    modes = PdlMode if bench.spec.capability >= (9, 0) else ()
    tried: list[Variant | str] = [*offered, *(f"{offered[0]}.p{mode}" for mode in modes)]
    found = bench.times((body, tried), each=0.0)
    refused = {variant: why for variant, why in found.items() if isinstance(why, str)}
    assert not refused, refused


class Separable(nn.Module):
    """Blocks of a depthwise convolution and one of single pixels, then a bottleneck."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.ModuleList(nn.Conv2d(48, 48, 3, padding=1, groups=48) for _ in range(3))
        self.point = nn.ModuleList(nn.Conv2d(48, 48, 1) for _ in range(3))
        self.conv = nn.Conv2d(48, 64, 3, padding=1)
        self.expand = nn.Conv2d(64, 192, 1)

    def forward(self, x: Tensor) -> Tensor:
        for depth, point in zip(self.depth, self.point, strict=True):
            x = x + point(torch.relu(depth(x)))
        return torch.relu(self.expand(torch.relu(self.conv(x))))


def test_a_model_of_pairs_is_right() -> None:
    """The plan is compared with the model when it is made; here it is compared again."""
    torch.manual_seed(0)
    model = Separable().eval().half().cuda()
    x = torch.randn(1, 48, 40, 40, device="cuda").half()
    fast, exact = anabranch.compile(model, (x,)), copy.deepcopy(model).float()
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(1, 48, 40, 40, device="cuda").half()
        with torch.no_grad():
            want = exact(x.float())
        assert torch.allclose(fast(x).float(), want, atol=2e-2, rtol=2e-2)

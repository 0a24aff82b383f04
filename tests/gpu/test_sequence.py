"""Layers of recurrent networks in one kernel, on a GPU: every tile that is offered, and modes of
launch, against fp64; and a model whose plan may hold such kernels."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from benchmarks.kernel_timing import Bench
from tests.kernels.triton.bodies import sru
from torch import Tensor, nn

import anabranch
from anabranch.ir.variant import PdlMode, Variant
from anabranch.kernels.triton.codegen import variants

pytestmark = pytest.mark.gpu
pytest.importorskip("triton", reason="generated kernels need Triton")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, "tf32"])
@pytest.mark.parametrize("sizes", [(16, 1, 512, 512), (7, 3, 100, 40), (128, 2, 64, 24)])
def test_every_tile_in_every_mode(sizes: tuple[int, ...], dtype: torch.dtype | str) -> None:
    bench = Bench.of(tf32=dtype == "tf32")
    steps, batch, depth, channels = sizes
    known = dtype if isinstance(dtype, torch.dtype) else torch.float32
    body = sru(steps, batch, depth, channels, known, own=batch > 1)
    offered = [one for one in variants(body, bench.spec) if one.template == "sequence"]
    modes = PdlMode if bench.spec.capability >= (9, 0) else ()
    tried: list[Variant | str] = [
        *offered,
        *(f"{one}.p{mode}" for one in offered[:2] for mode in modes),
    ]
    found = bench.times((body, tried), each=0.0)
    refused = {variant: why for variant, why in found.items() if isinstance(why, str)}
    assert found and not refused, refused


class Leaky(nn.Module):
    """Two layers whose state leaks by a gate, step by step, and the states they end with."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 192) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ends = []
        for layer in self.layers:
            u, f = layer(x).chunk(2, -1)
            f, c, steps = f.sigmoid(), torch.zeros_like(x[0]), []
            for t in range(x.shape[0]):
                c = f[t] * c + u[t]
                steps.append(c.tanh())
            x = torch.stack(steps)
            ends.append(c)
        return x, torch.stack(ends)


def test_a_model_of_such_layers(tmp_path: Path) -> None:
    """What the search finds of it computes what the model does, and so does its plan, read back."""
    torch.manual_seed(0)
    model, x = Leaky().cuda().half().eval(), torch.randn(12, 2, 96, device="cuda").half()
    exact, fast = copy.deepcopy(model).double(), anabranch.compile(model, (x,))
    fast.save(tmp_path / "leaky.anabranch")
    again = anabranch.load(tmp_path / "leaky.anabranch")
    with torch.inference_mode():
        want = exact(x.double())
        for found in (fast(x), again(x)):
            for one, other in zip(found, want, strict=True):
                assert (one.double() - other).abs().max() < 2e-2

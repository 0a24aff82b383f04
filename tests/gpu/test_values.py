"""On a GPU an index outside of its table ends the process: operators run on values that they may
read alone, and none of the library's is refused for ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import anabranch
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.targets.tf32 import precision

pytestmark = pytest.mark.gpu


class Charges(nn.Module):
    """Sums into a table of one row: every index but 0 is outside."""

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        total = torch.zeros(1, 3, device=x.device, dtype=x.dtype)
        total = total.scatter_add(0, at.unsqueeze(-1).expand(-1, 3), x)
        return x - total.index_select(0, at) / x.shape[0]


class Lengths(nn.Module):
    """The last step of each sequence: index -1 of a sequence of no length is outside."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(11, 6), nn.LSTM(6, 5, batch_first=True)

    def forward(self, ids: Tensor, length: Tensor) -> Tensor:
        y, _ = self.lstm(self.embed(ids))
        last: Tensor = y.gather(1, (length - 1).view(-1, 1, 1).expand(-1, 1, y.shape[-1]))
        return last.squeeze(1)


class Taps(nn.Module):
    """Gathers where its input says: bilinear taps, as a deformable convolution has them."""

    def forward(self, x: Tensor, offset: Tensor) -> Tensor:
        b, c, h, w = x.shape
        rows = torch.arange(h, device=x.device, dtype=x.dtype).view(1, h, 1) + offset[:, 0]
        columns = torch.arange(w, device=x.device, dtype=x.dtype).view(1, 1, w) + offset[:, 1]
        at = rows.floor().clamp(0, h - 1) * w + columns.floor().clamp(0, w - 1)
        flat = at.long().view(b, 1, -1).expand(b, c, -1)
        return x.flatten(2).gather(2, flat).view(b, c, h, w) * (rows - rows.floor())[:, None]


class Grid(nn.Module):
    """Divides by an input that is never zero where the model is used."""

    def forward(self, place: Tensor, width: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        row, column = place // width, place % width
        return row, table[column - 1 - row]


class Nothing(nn.Module):
    """Layers of no rows and no images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(6, 4)

    def forward(self, rows: Tensor, images: Tensor) -> tuple[Tensor, ...]:
        score = self.linear(rows).relu()
        return score, score.softmax(-1).sum(0), self.conv(images).relu().flatten(1).mean(1)


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "scatter_add": (Charges, lambda: (torch.randn(7, 3), torch.zeros(7, dtype=torch.long))),
    "lengths": (Lengths, lambda: (torch.randint(11, (3, 4)), torch.tensor([3, 1, 4]))),
    "taps": (Taps, lambda: (torch.randn(1, 3, 5, 6), 2 * torch.randn(1, 2, 5, 6))),
    "division": (
        Grid,
        lambda: (torch.arange(20, 52), torch.arange(5, 37), torch.randn(64)),
    ),
    "nothing": (Nothing, lambda: (torch.randn(0, 6), torch.randn(0, 2, 4, 4))),
}


@pytest.mark.parametrize("kernels", ["library", "all"])
@pytest.mark.parametrize("name", CASES)
def test_whatever_eager_runs_has_a_plan(name: str, kernels: str, tmp_path: Path) -> None:
    build, inputs = CASES[name]
    torch.manual_seed(0)
    model, args = build().eval().cuda(), tuple(x.cuda() for x in inputs())
    options: dict[str, Any] = {"kernels": kernels, "cache_dir": tmp_path, "search": "none"}
    fast = anabranch.compile(model, args, target="cuda", budget=10, **options)
    with torch.no_grad():
        want = model(*args)
    outs, wanted = fast(*args), want if isinstance(want, tuple) else (want,)
    for out, one in zip(outs if isinstance(outs, tuple) else (outs,), wanted, strict=True):
        torch.testing.assert_close(out, one, rtol=1e-3, atol=1e-4)
    assert torch.ones(1, device="cuda").add(1).item() == 2, "the device still answers"


def test_a_saved_plan_runs_nothing_before_its_first_call(tmp_path: Path) -> None:
    """Drawn numbers may be none that it can read; its caller's are."""
    model = Lengths().eval().cuda()
    args = (torch.randint(11, (3, 4)).cuda(), torch.tensor([3, 1, 4]).cuda())
    options: dict[str, Any] = {"kernels": "library", "cache_dir": None, "search": "none"}
    fast = anabranch.compile(model, args, target="cuda", budget=10, **options)
    fast.save(tmp_path / "lengths.anabranch")
    loaded = anabranch.load(tmp_path / "lengths.anabranch")
    run = loaded.executable()
    assert isinstance(run, CudaExecutable)
    with torch.no_grad():
        torch.testing.assert_close(loaded(*args), model(*args), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(loaded(*args), model(*args), rtol=1e-3, atol=1e-4)
    assert not run.failure, "and it is one graph all the same"


class Folded(nn.Module):
    """A convolution of what the model holds: it is computed while compiling, or refitting."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 12, 16, 16))
        self.weight = nn.Parameter(torch.randn(4, 12, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.conv2d(self.table, self.weight)


def test_constants_are_computed_without_tf32() -> None:
    """Torch lets cuDNN round what convolutions multiply to tf32 unless it is told otherwise."""
    torch.manual_seed(0)
    model, x = Folded().cuda().eval(), torch.randn(7, 4, 14, 14, device="cuda")
    options: dict[str, Any] = {"search": "none", "budget": 5.0, "cache_dir": None}
    with precision(tf32=True):
        fast = anabranch.compile(model, (x,), target="cuda", strict=True, **options)
    for _ in range(2):
        wanted = model.double()(x.double())
        model.float()
        assert (fast(x) - wanted).abs().max() < 1e-4
        with torch.no_grad(), precision(tf32=True):
            model.table.mul_(1.5)
            fast.refit(model)


class Ends(nn.Module):
    """Where a CPU's eager and a GPU's answer otherwise: infinities, a negative zero, no number."""

    def forward(self, x: Tensor, image: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        sampled = nn.functional.grid_sample(image, grid, align_corners=False)
        return nn.functional.gelu(x), x**0.5, x**-0.5, x.cumsum(-1), sampled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ends_are_those_of_eager_on_a_gpu(dtype: torch.dtype) -> None:
    given = torch.rand(2, 6) + 0.5, torch.rand(1, 2, 4, 5), torch.rand(1, 3, 2, 2)
    x, image, grid = (one.to("cuda", dtype) for one in given)
    fast = anabranch.compile(Ends().eval(), (x, image, grid), cache_dir=None, search="none")
    inf, nan = float("inf"), float("nan")
    ends = torch.tensor([[0.0, -0.0, inf, -inf, nan, -2.0]] * 2, device="cuda", dtype=dtype)
    beyond = grid.clone()
    beyond[0, 0, 0, 0], beyond[0, 1, 1, 1] = nan, inf
    for got, want in zip(fast(ends, image, beyond), Ends()(ends, image, beyond), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
        zeros = want == 0
        assert torch.equal(got[zeros].signbit(), want[zeros].signbit())


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.view_as_real(torch.fft.fft(x)),
        lambda x: torch.view_as_real(torch.fft.rfft(x)),
        lambda x: torch.view_as_real(torch.fft.fft(torch.complex(x, x.flip(0)))),
        lambda x: torch.fft.irfft(torch.complex(x, x.flip(0))),
    ],
    ids=["fft", "rfft", "complex", "irfft"],
)
def test_transforms_of_what_is_not_finite_are_eagers(
    transform: Callable[[Tensor], Tensor],
) -> None:
    """The library's `out=` multiplies by 1 + 0i behind it, and infinity becomes NaN."""

    class Transform(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return transform(x)

    torch.manual_seed(0)
    x = torch.randn(5, 8, device="cuda")
    fast = anabranch.compile(
        Transform().eval(), (x,), target="cuda", effort="fast", exact=True, cache_dir=None
    )
    for column, value in enumerate((torch.inf, -torch.inf, torch.nan, 0.0)):
        wild = x.clone()
        wild[::2, column] = value
        torch.testing.assert_close(fast(wild), transform(wild), rtol=0, atol=0, equal_nan=True)

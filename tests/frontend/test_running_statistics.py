"""Norms that go by their batch in a model in eval mode: what they leave in running statistics, call
by call as eager, in plans, cut models and exported programs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import anabranch
from anabranch.errors import CaptureError, WeightsError
from anabranch.frontend.from_torch import capture
from anabranch.frontend.running_statistics import NORMS, StatisticsByWrites

QUICK: dict[str, Any] = {
    **{"target": "cpu", "search": "none", "cache_dir": None, "scheduler": "sequential"}
}


def adapting(*norms: nn.Module) -> nn.Module:
    """Two convolutions with norms behind them, which alone are in training mode."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norms[0], nn.ReLU(), nn.Conv2d(4, 4, 3), *norms[1:])
    model.eval()
    for norm in norms:
        norm.train()
    return model


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, 8, 8)


def follow(fast: Any, own: nn.Module, given: Callable[[], Tensor] = images) -> None:
    """Four calls of both: results, and all that they hold."""
    for _ in range(4):
        x = given()
        with torch.no_grad():
            torch.testing.assert_close(fast(x.clone()), own(x.clone()))
        torch.testing.assert_close(dict(fast.state_dict()), dict(own.state_dict()))


@pytest.mark.parametrize(
    "norms",
    [
        (nn.BatchNorm2d(4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        (nn.BatchNorm2d(4, momentum=0.4, affine=False), nn.BatchNorm2d(4, eps=0.1)),
        (nn.BatchNorm2d(4, track_running_stats=False), nn.InstanceNorm2d(4)),
    ],
)
def test_norms_in_training_mode_write_what_eager_writes(norms: tuple[nn.Module, ...]) -> None:
    model = adapting(*copy.deepcopy(norms))
    own = copy.deepcopy(model)
    fast = anabranch.compile(model, (images(),), **QUICK)
    torch.testing.assert_close(model.state_dict(), own.state_dict())
    follow(fast, own)
    torch.testing.assert_close(model.state_dict(), own.state_dict())


def test_exported_programs_write_theirs() -> None:
    own = adapting(nn.BatchNorm2d(4), nn.InstanceNorm2d(4, track_running_stats=True))
    program = torch.export.export(copy.deepcopy(own), (images(),))
    follow(anabranch.compile(program, (images(),), **QUICK), own)


def test_channels_last_stays_so() -> None:
    model = adapting(nn.BatchNorm2d(4))
    own, x = copy.deepcopy(model), images().to(memory_format=torch.channels_last)
    y = anabranch.compile(model, (x,), **QUICK)(x)
    z = own(x)
    torch.testing.assert_close(y, z)
    assert y.stride() == z.stride()


class Cut(nn.Module):
    mean: Tensor
    var: Tensor

    def __init__(self, norm: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.layers = norm, nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU())
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("var", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.layers(x), self.mean, self.var).relu().exp().tanh()
        if self.mean.sum() > 100:
            return y
        return y * y.max().item() + self.mean[:, None]


@pytest.mark.parametrize(
    "norm",
    [
        lambda x, mean, var: F.batch_norm(x, mean, var, training=True),
        lambda x, mean, var: F.instance_norm(x, mean, var),
        lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.1, 1e-5)[0],
    ],
)
def test_norms_of_cut_models(norm: Callable[..., Tensor]) -> None:
    model = Cut(norm).eval()
    own = copy.deepcopy(model)
    fast = anabranch.compile(model, (torch.randn(2, 4, 9),), unseen="refuse", **QUICK)
    follow(fast, own, lambda: torch.randn(2, 4, 9))
    assert model.mean.any()


def test_the_average_of_all_batches_is_cut_and_right() -> None:
    model = adapting(nn.BatchNorm2d(4, momentum=None))
    own = copy.deepcopy(model)
    fast = anabranch.compile(model, (images(),), **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ways that no example went
        follow(fast, own)


def test_a_plan_is_of_norms_in_this_mode_and_with_this_momentum() -> None:
    model = adapting(nn.BatchNorm2d(4))
    fast = anabranch.compile(model, (images(),), **QUICK)
    for change in (lambda norm: norm.eval(), lambda norm: setattr(norm, "momentum", 0.5)):
        other: Any = copy.deepcopy(model)
        change(other[1])
        with pytest.raises(WeightsError, match="1 is another module"):
            fast.refit(other)
    fast.refit(copy.deepcopy(model))


def test_what_other_processes_have_a_part_of_is_refused() -> None:
    with pytest.raises(CaptureError, match="its part 1"):
        capture(adapting(nn.SyncBatchNorm(4)), (images(),))


def test_each_way_to_call_a_norm_is_taken_apart() -> None:
    """The same numbers to rounding, by calls of which none writes within."""
    x, weight = torch.randn(3, 4, 5), torch.rand(4)
    for norm, names in NORMS.items():
        named = {"input": x, "weight": weight, "bias": weight, "momentum": 0.3, "eps": 1e-4}
        named |= {"training": True, "use_input_stats": True, "cudnn_enabled": False}
        left = []
        for within in (False, True):
            mean, var = torch.zeros(4), torch.ones(4)
            told = {**named, "running_mean": mean, "running_var": var}
            args = tuple(told[name] for name in names)
            if within:
                with StatisticsByWrites():
                    result = norm(*args)
            else:
                result = norm(*args)
            left.append((result, mean, var))
        torch.testing.assert_close(left[0], left[1])
        assert left[0][1].any()

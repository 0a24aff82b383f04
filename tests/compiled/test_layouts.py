"""Results lie in memory as eager's do, however inputs lie."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import anabranch
from anabranch.compiled.layouts import relaid

OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
}


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
        self.calls = nn.Buffer(torch.zeros(2, 2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        self.calls.add_(1)
        flat = x.reshape(2, -1) + 1, x.flatten(2) * 2
        return self.conv(x), F.max_pool2d(x, 2) * 2, x.mean((2, 3)), *flat, x.softmax(1), x


@pytest.mark.parametrize("compiled", LAYOUTS)
@pytest.mark.parametrize("outputs", ["clone", "view"])
def test_results_have_the_strides_that_the_model_gives_them(compiled: str, outputs: str) -> None:
    torch.manual_seed(0)
    model, x = Several().eval(), torch.randn(2, 3, 6, 6)
    fast = anabranch.compile(model, (LAYOUTS[compiled](x),), outputs=outputs, **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lay in (*LAYOUTS.values(), *LAYOUTS.values()):  # the second time it is remembered
            given = lay(torch.randn(2, 3, 6, 6))
            made, wanted = fast(given), model(given)
            for one, other in zip(made, wanted, strict=True):
                torch.testing.assert_close(one.detach(), other.detach())
                assert one.stride() == other.stride()
                assert one.requires_grad == other.requires_grad
    with pytest.raises(RuntimeError, match="Anabranch"):
        made[0].sum().backward()


def test_a_loaded_plan_says_once_that_strides_may_differ(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 4, 4)
    anabranch.compile(nn.ReLU().eval(), (x,), **OPTIONS).save(tmp_path / "plan")
    loaded, other = anabranch.load(tmp_path / "plan"), LAYOUTS["channels_last"](x)
    with pytest.warns(UserWarning, match="their numbers are right") as told:
        made = loaded(other)
    assert torch.equal(made, other.relu()) and told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(other).is_contiguous()


def test_strides_of_inputs_are_not_asked_for_where_they_make_no_difference() -> None:
    pooled = anabranch.compile(
        nn.AdaptiveAvgPool2d(1).eval(), (torch.randn(1, 3, 4, 4),), **OPTIONS
    )
    assert relaid(pooled.entries[-1]) is None


class Chosen(nn.Module):
    """A plan, a step that runs as eager does, and what lies where inputs lie."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.conv(x)
        kept = h[h.sum((1, 2, 3)) > -1e9]
        return h, kept, kept.flatten(1), x[x.sum((1, 2, 3)) > -1e9].flatten(2) * 2


def test_results_of_cut_models_lie_as_the_models() -> None:
    model, x = Chosen().eval(), torch.randn(2, 3, 6, 6)
    for first in LAYOUTS.values():
        fast = anabranch.compile(model, (first(x),), **OPTIONS)
        assert len(fast.sections) >= 1
        for lay in LAYOUTS.values():
            made, wanted = fast(lay(x)), model(lay(x))
            assert [one.stride() for one in made] == [one.stride() for one in wanted]
            for one, other in zip(made, wanted, strict=True):
                torch.testing.assert_close(one.detach(), other.detach())


def test_a_result_that_is_the_same_along_an_axis_lies_so_for_other_strides_too() -> None:
    example, given = torch.randn(1, 3, 2, 1), torch.randn(1, 3, 2, 5)[..., :1]
    fast = anabranch.compile(lambda x: x.expand(4, -1, -1, 6), (example,), **OPTIONS)
    made, wanted = fast(given), given.expand(4, -1, -1, 6)
    assert torch.equal(made, wanted) and made.stride() == wanted.stride() == (0, 10, 5, 0)


CONSTANTS: dict[str, Callable[[Tensor], Tensor]] = {
    "zeros": torch.zeros_like,
    "ones of a value": lambda x: torch.ones_like(x * 2).flatten(2),
    "full, of whole numbers": lambda x: torch.full_like(x, 3, dtype=torch.int64),
    "empty, written to": lambda x: torch.empty_like(x).copy_(torch.arange(6.0)),
    "one of an operand": lambda x: torch.zeros_like(x) + torch.arange(6.0),
    "of a transpose": lambda x: torch.ones_like(x.mT),
    "in a format": lambda x: torch.zeros_like(x, memory_format=torch.contiguous_format),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_that_lie_as_an_input_lie_as_it_does_in_each_call(name: str) -> None:
    model, x = CONSTANTS[name], torch.randn(2, 3, 6, 6)
    for first in LAYOUTS.values():
        fast = anabranch.compile(model, (first(x),), **OPTIONS)
        for lay in LAYOUTS.values():
            result, wanted = fast(lay(x)), model(lay(x))
            assert torch.equal(result, wanted) and result.stride() == wanted.stride()


IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "group_norm": lambda x: F.group_norm(x, 2),
    "padded": lambda x: F.pad(
        F.pad(x, (1, 1, 1, 1), mode="reflect"), (1, 0, 0, 0), mode="replicate"
    ),
    "shuffled": lambda x: F.channel_shuffle(x, 2).roll(1, 2),
    "in rows": lambda x: F.logsigmoid(x) * F.one_hot((x > 0).long(), 3)[..., 1],
}


@pytest.mark.parametrize("name", IMAGES)
def test_operators_on_images_lie_as_on_the_device(name: str) -> None:
    model, x = IMAGES[name], torch.randn(2, 8, 6, 6)
    for first in LAYOUTS.values():
        fast = anabranch.compile(model, (first(x),), **OPTIONS)
        for lay in LAYOUTS.values():
            result, wanted = fast(lay(x)), model(lay(x))
            torch.testing.assert_close(result, wanted)
            assert result.stride() == wanted.stride()

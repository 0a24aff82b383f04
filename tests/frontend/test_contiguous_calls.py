"""Results of contiguous() lie as in eager, however inputs lie, and are no input of the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import anabranch

OPTIONS: dict[str, Any] = {"target": "cpu", "search": "none", "cache_dir": None}
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.randn(3, 4),
    "transposed": lambda: torch.randn(4, 3).t(),
    "expanded": lambda: torch.randn(3, 1).expand(3, 4),
}
MODELS: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x.contiguous(),
    "by its operator": lambda x: torch.ops.aten.contiguous.default(x),
    "then relu": lambda x: x.contiguous().relu(),
    "behind relu": lambda x: x.relu().contiguous(),
    "then transposed": lambda x: x.contiguous().t(),
    "of a transposed": lambda x: x.mT.contiguous(),
    "cloned": lambda x: x.clone(memory_format=torch.contiguous_format).relu(),
    "flattened and back": lambda x: x.flatten(0, 1).view(3, 4),
    "beside another reader": lambda x: x.contiguous()[:0].sum() + x.relu(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_a_result_lies_as_in_eager_and_is_never_an_input_that_eager_copies(
    model: str, layout: str
) -> None:
    function = MODELS[model]
    fast = anabranch.compile(function, (LAYOUTS[layout](),), **OPTIONS)
    for make in LAYOUTS.values():
        x = make()
        wanted, result = function(x), fast(x)
        assert torch.equal(result, wanted)
        if layout != "expanded" or wanted.stride() == function(x.contiguous()).stride():
            assert result.stride() == wanted.stride()
        assert result.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_images_are_laid_in_rows_where_a_call_gives_channels_last() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        last = x.contiguous(memory_format=torch.channels_last)
        return x.contiguous().relu(), last.neg()

    images = torch.randn(2, 3, 4, 5)
    others = images.to(memory_format=torch.channels_last)
    for example in (images, others):
        fast = anabranch.compile(function, (example,), **OPTIONS)
        for x in (images, others):
            for result, wanted in zip(fast(x), function(x), strict=True):
                assert torch.equal(result, wanted)
                assert result.stride() == wanted.stride()


LAST = torch.channels_last
FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "to": lambda x: x.to(memory_format=LAST),
    "to, then relu": lambda x: x.to(memory_format=LAST).relu(),
    "to of a value": lambda x: x.relu().to(memory_format=LAST),
    "to a dtype": lambda x: x.to(torch.float32, memory_format=LAST),
    "to a device": lambda x: x.to("cpu", memory_format=LAST),
    "to another's": lambda x: x.to(x.new_zeros(1), memory_format=LAST),
    "to another dtype": lambda x: x.to(torch.float64, memory_format=LAST),
    "to a copy": lambda x: x.to(torch.float32, copy=True, memory_format=LAST),
    "float": lambda x: x.float(memory_format=LAST),  # type: ignore[call-arg] # left out of its stub
    "to bool": lambda x: (x > 0).to(torch.bool, memory_format=LAST),
    "clone": lambda x: x.clone(memory_format=LAST),
    "contiguous": lambda x: x.contiguous(memory_format=LAST),
    "by its operator": lambda x: torch.ops.aten.to.dtype_layout(x, memory_format=LAST),
    "nothing to do": lambda x: x.float().type_as(x).to("cpu"),
    "then as they were": lambda x: x.to(memory_format=LAST).to(memory_format=torch.preserve_format),
}
IMAGES: dict[str, Callable[[], Tensor]] = {
    "rows": lambda: torch.randn(2, 3, 4, 5),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=LAST),
    "transposed": lambda: torch.randn(2, 3, 5, 4).mT,
}


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("model", FORMATS)
def test_images_lie_in_the_format_that_the_model_asks_for(model: str, layout: str) -> None:
    function = FORMATS[model]
    fast = anabranch.compile(function, (IMAGES[layout](),), **OPTIONS)
    for make in IMAGES.values():
        x = make()
        wanted, result = function(x), fast(x)
        assert torch.equal(result, wanted)
        assert (result.dtype, result.stride()) == (wanted.dtype, wanted.stride())
        copied = wanted.untyped_storage()._cdata != x.untyped_storage()._cdata
        assert not copied or result.untyped_storage()._cdata != x.untyped_storage()._cdata


@pytest.mark.parametrize("layout", ["rows", "channels_last"])
def test_images_in_channels_last_are_laid_in_rows(layout: str) -> None:
    def function(x: Tensor) -> Tensor:
        return x.to(memory_format=torch.contiguous_format)

    fast = anabranch.compile(function, (IMAGES[layout](),), **OPTIONS)
    for other in ("rows", "channels_last"):
        x = IMAGES[other]()
        result = fast(x)
        assert torch.equal(result, x)
        assert result.stride() == (60, 20, 5, 1)
        assert result.untyped_storage()._cdata != x.untyped_storage()._cdata


def test_a_matrix_lies_as_it_did_where_no_format_is_asked_for() -> None:
    fast = anabranch.compile(
        lambda x: x.to(memory_format=torch.contiguous_format).relu(),
        (torch.randn(3, 4),),
        **OPTIONS,
    )
    assert fast(torch.randn(4, 3).mT).stride() == (1, 3)


CUT: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "contiguous, then relu": lambda x: x.contiguous().relu(),
    "contiguous, of a value": lambda x: x.relu().contiguous(),
    "contiguous, of a view": lambda x: x.mT.contiguous(),
    "contiguous, in a format": lambda x: x.contiguous(memory_format=LAST),
    "clone": lambda x: x.clone(memory_format=torch.contiguous_format),
    "to": lambda x: x.to(memory_format=LAST),
    "to, then relu": lambda x: x.to(memory_format=LAST).relu(),
    "to a dtype": lambda x: x.to(torch.float32, memory_format=LAST),
    "asked of": lambda x: x.contiguous() + x.sum().item(),
    "chosen of": lambda x: x.contiguous()[x[:, 0, 0, 0] > 0],
}


@pytest.mark.parametrize("layout", IMAGES)
@pytest.mark.parametrize("model", CUT)
def test_results_of_a_model_that_is_cut_lie_as_in_eager(model: str, layout: str) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, float]:
        work = (x.tanh().sum(0) @ torch.ones(x.shape[-1], 8)).relu().sin() * 2
        return CUT[model](x), work, x.sum().item()

    torch.manual_seed(0)
    fast = anabranch.compile(function, (IMAGES[layout](),), **OPTIONS)
    for make in IMAGES.values():
        x = make()
        wanted, result = function(x)[0], fast(x)[0]
        torch.testing.assert_close(result, wanted)
        assert result.stride() == wanted.stride()
        copied = wanted.untyped_storage()._cdata != x.untyped_storage()._cdata
        assert not copied or result.untyped_storage()._cdata != x.untyped_storage()._cdata


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "in rows": lambda x: x.clone(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "transposed, channels last": lambda x: x.mT.contiguous(memory_format=torch.channels_last).mT,
    "by columns": lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}
CONV = torch.nn.Conv2d(3, 4, 3).requires_grad_(False)
LAID_BY_TO: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda x: x.to(memory_format=torch.contiguous_format),
    "then a product": lambda x: x.to(memory_format=torch.contiguous_format) * 2,
    "of a transpose": lambda x: x.mT.to(memory_format=torch.contiguous_format) + 1,
    "of a value": lambda x: (x * 2).to(memory_format=torch.contiguous_format) + 1,
    "then a convolution": lambda x: CONV(x.to(memory_format=torch.contiguous_format)),
    "of another dtype": lambda x: x.to(torch.float64, memory_format=torch.contiguous_format),
    "copied": lambda x: x.to(torch.float32, copy=True, memory_format=torch.contiguous_format),
    "channels last": lambda x: x.to(memory_format=torch.channels_last) * 2,
}


@pytest.mark.parametrize("name", LAID_BY_TO)
def test_images_that_are_laid_in_a_format_by_to_lie_as_in_eager(name: str) -> None:
    model, images = LAID_BY_TO[name], torch.randn(2, 3, 4, 5)
    for first in WAYS.values():
        fast = anabranch.compile(model, (first(images),), **OPTIONS)
        for lay in WAYS.values():
            result, wanted = fast(lay(images)), model(lay(images))
            torch.testing.assert_close(result, wanted)
            assert result.stride() == wanted.stride()

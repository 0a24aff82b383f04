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

"""What users write of sizes that vary, in every spelling that torch.export takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

from anabranch.errors import OptionError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.frontend.shape_spec import by_place, has_hints, named_axes, plain_spec, stated_shapes

X, MASK = torch.ones(8, 16), torch.ones(8, 16, 4)
BATCH, WIDTH = Dim("batch", max=64), Dim("width", min=2)


def model(x: Tensor, mask: Tensor | None = None, *more: Tensor) -> Tensor:
    return x


def spec(given: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
    return args, kwargs, by_place(model, args, kwargs, given)


@pytest.mark.parametrize(
    "given",
    [
        {"x": {0: BATCH, 1: WIDTH}, "mask": {0: BATCH}},
        ({0: BATCH, 1: WIDTH}, {0: BATCH}),
        ({0: BATCH, -1: WIDTH}, (BATCH, None, Dim.STATIC)),
        {"x": [BATCH, WIDTH], "mask": {0: BATCH, 1: 16}},
    ],
)
def test_every_spelling_says_the_same(given: Any) -> None:
    args, kwargs, found = spec(given, X, mask=MASK)
    assert stated_shapes(args, kwargs, found) == DynamicShapes(
        (Dimension("batch", 1, 64), Dimension("width", 2, None)),
        ((Extent(0, 0), Extent(1, 1)), (Extent(0, 0),)),
    )
    assert plain_spec(args, kwargs, found) == (({0: BATCH, 1: WIDTH},), {"mask": {0: BATCH}})
    assert dict(named_axes(args, kwargs, found)) == {
        (0, 0): "batch",
        (0, 1): "width",
        (1, 0): "batch",
    }


def test_an_extent_may_be_affine_and_a_hint_is_a_dimension_of_its_own() -> None:
    args, kwargs, found = spec({"x": {0: 2 * BATCH + 1, 1: Dim.AUTO}}, X)
    shapes = stated_shapes(args, kwargs, found)
    assert shapes.extents == ((Extent(0, 0, 2, 1), Extent(1, 1)),)
    assert [one.name for one in shapes.dimensions] == ["batch", "[0].shape[1]"]
    assert has_hints(found) and not has_hints(spec({"x": {0: BATCH}}, X)[2])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": {0: BATCH}}, "there is no argument 'y'"),
        (({0: BATCH}, None), "it has 2 parts, the call has 1 arguments"),
        ({"x": {2: BATCH}}, "has no axis 2"),
        ({"x": {0: "batch"}}, "is no torch.export.Dim"),
        ({"x": None}, "no axis of a tensor varies"),
        ({"x": {0: BATCH, 1: 5}}, "axis 1 has the size 16, and it says 5"),
        (3, "it is a int"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(given: Any, said: str) -> None:
    with pytest.raises(OptionError) as refused:
        stated_shapes(*spec(given, X))
    assert said in refused.value.why


@pytest.mark.parametrize("given", [{0: BATCH}, BATCH])
def test_several_positional_arguments_need_a_tuple(given: Any) -> None:
    def variadic(*tensors: Tensor) -> Tensor:
        return tensors[0]

    assert by_place(variadic, (X, X), {}, {"tensors": ({0: BATCH}, None)}) == (
        ({0: BATCH}, None),
        {},
    )
    with pytest.raises(OptionError, match=r"the model takes \*tensors: it needs a tuple"):
        by_place(variadic, (X,), {}, (given,))

"""What varies in a call: `dynamic_shapes` in all forms that torch.export takes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

from anabranch.errors import CaptureError, OptionError
from anabranch.frontend.dynamic_shapes import (
    Dimension,
    DynamicShapes,
    Extent,
    leading_batch,
)
from anabranch.frontend.surroundings import surroundings
from anabranch.frontend.symbolic_shapes import program_shapes, read_dynamic_shapes
from anabranch.trace import Trace

X, M = torch.randn(3, 6, 4), torch.ones(3, 6, dtype=torch.bool)
BATCH, SEQ = Dim("batch", min=1, max=64), Dim("seq", min=2, max=128)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: Any = None, scale: float = 1.0) -> torch.Tensor:
        y: torch.Tensor = self.linear(x) * scale
        return y if mask is None else y * mask[..., None]


def read(model: Any, args: Any, given: Any, **kwargs: Any) -> DynamicShapes:
    return read_dynamic_shapes(model, args, kwargs, given, surroundings(), Trace(quiet=True))


TWO = (Dimension("batch", 1, 64), Dimension("seq", 2, 128))
BOTH = (Extent(0, 0), Extent(1, 1))


@pytest.mark.parametrize(
    "given",
    [
        {"x": {0: BATCH, 1: SEQ}, "mask": {0: BATCH, 1: SEQ}},
        {"x": (BATCH, SEQ, None), "mask": [BATCH, SEQ]},
        ({0: BATCH, 1: SEQ}, {0: BATCH, 1: SEQ}),
        {"mask": {0: BATCH, 1: SEQ}, "x": {-3: BATCH, 1: SEQ, 2: Dim.STATIC}},
    ],
)
def test_forms(given: Any) -> None:
    found = read(Net().eval(), (X,), given, mask=M)
    assert (found.dimensions, found.extents) == (TWO, (BOTH, BOTH))
    assert not found.specialised and not found.uneven
    assert found.sizes_of([X, M]) == (3, 6) and found.sizes_of([X, M[:2]]) is None
    (x,), kwargs = found.resized((X,), {"mask": M, "scale": 2.0}, (5, 4))
    assert x.shape == (5, 4, 4) and kwargs["mask"].shape == (5, 4) and kwargs["scale"] == 2.0
    assert torch.equal(x[3], X[0, :4])


class Extras(nn.Module):
    def forward(self, x: torch.Tensor, **extras: Any) -> torch.Tensor:
        y: torch.Tensor = x * extras["scale"] + extras["bias"]
        return y


@pytest.mark.parametrize(
    "given",
    [
        {"x": {0: BATCH}, "bias": {0: BATCH}},
        {"x": {0: BATCH}, "extras": {"bias": {0: BATCH}}},
    ],
)
def test_keywords_that_the_model_has_no_name_for(given: Any) -> None:
    net = Extras().eval()
    found = read(net, (X,), given, scale=2.0, bias=torch.ones(3, 1, 1))
    assert found.dimensions == TWO[:1] and found.extents == ((Extent(0, 0),), (Extent(0, 0),))
    assert not found.specialised and "forward" not in vars(net)
    alone = read(net, (X,), {"x": {0: BATCH}}, scale=2.0, bias=1.0)
    assert alone.extents == ((Extent(0, 0),),) and not alone.specialised


def test_functions_and_nested_arguments() -> None:
    def both(pair: Any, more: Any) -> Any:
        return pair[0] + pair["1"] if isinstance(pair, dict) else pair[0] * more["y"]

    n = Dim("n", max=32)
    given = {"pair": [{0: n}, None], "more": {"y": {0: n}}}
    found = read(both, ([X, None], {"y": X}), given)
    assert found.dimensions == (Dimension("n", 1, 32),)
    assert found.extents == ((Extent(0, 0),), (Extent(0, 0),))


def test_a_dimension_that_is_first_met_in_another_one_has_its_own_name() -> None:
    n = Dim("n", min=2, max=32)
    shapes = read(
        lambda x, y: x[1:] + y, (torch.randn(5, 3), torch.randn(4, 3)), ({0: n + 1}, {0: n})
    )
    assert shapes.dimensions == (Dimension("n", 2, 32),)
    assert shapes.extents == ((Extent(0, 0, 1, 1),), (Extent(0, 0),))


def test_derived_dimensions_and_hints() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y.view(-1, 2, 6, 4).sum(1)

    n = Dim("n", min=1, max=32)
    wide = torch.randn(6, 6, 4)
    found = read(model, (X, wide), ({0: n}, {0: 2 * n}))
    assert found.extents == ((Extent(0, 0),), (Extent(0, 0, 2),))
    assert found.rows(0) == [[(0, 1, 1)], [(0, 1, 2)]]
    hinted = read(Net().eval(), (X,), ({0: Dim.AUTO, 1: Dim.DYNAMIC},))
    assert hinted.extents == (BOTH,)
    assert [one.name for one in hinted.dimensions] == ["x.shape[0]", "x.shape[1]"]
    ahead = read(lambda x, y: y[1:] - x, (X, torch.randn(4, 6, 4)), ({0: n}, {0: n + 1}))
    assert ahead.extents[1] == (Extent(0, 0, 1, 1),) and ahead.rows(0) is None


def test_what_torch_export_does_not_keep() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] > 5 else x

    found = read(model, (X,), {"x": {0: BATCH}})
    assert found.dimensions == (BATCH_DIM,) and "satisfy the generated guard" in found.specialised
    with pytest.raises(OptionError, match=r"name them with torch.export.Dim|no axis"):
        read(lambda x: x.view(3, 24), (X,), ({0: Dim.DYNAMIC},))
    halved = read(lambda x: x + torch.arange(x.shape[0] // 2).sum(), (X,), ({0: LONG},))
    assert "long//2" in halved.uneven_along(0)


def test_a_model_in_training_mode_is_refused_as_such() -> None:
    with pytest.raises(CaptureError, match="the model is in training mode"):
        read(Net(), (X,), {"x": {0: BATCH}})


def test_a_size_that_is_no_multiple_of_one_dimension_alone() -> None:
    """A batch of images that are halved: padded as ever."""
    halving = torch.nn.Conv2d(1, 1, 3, stride=2, padding=1).eval()
    shapes = read(halving, (torch.randn(3, 1, 9, 10),), ({0: BATCH, 2: LONG},))
    assert not shapes.uneven_along(0) and shapes.uneven_beside(0) == shapes.uneven_along(1)
    assert "a size in it is (((long - 1)//2)) + 1" in shapes.uneven_along(1)


LONG = Dim("long", min=8, max=32)
BATCH_DIM = Dimension("batch", 1, 64)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"z": {0: BATCH}}, "no argument 'z'"),
        ({"x": {5: BATCH}}, "no axis 5"),
        ({"x": {0: "batch"}}, "no torch.export.Dim"),
        ({"x": None}, "no axis of a tensor varies"),
        ({"x": {0: BATCH}, "mask": {0: SEQ, 1: BATCH}}, "contradict"),
        (3, "it is a int"),
        (({0: BATCH}, None, None, None), "4 parts"),
    ],
)
def test_what_means_nothing(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read(Net().eval(), (X,), given, mask=M)


def test_exported_programs_bring_their_dimensions() -> None:
    shapes = {"x": {0: BATCH, 1: SEQ}}
    found = program_shapes(torch.export.export(Net().eval(), (X,), dynamic_shapes=shapes))
    assert found is not None
    assert [(one.least, one.most) for one in found.dimensions] == [(1, 64), (2, 128)]
    assert found.extents == (BOTH,)
    assert program_shapes(torch.export.export(Net().eval(), (X,))) is None


def test_the_batch_is_the_first_axis_of_all_inputs() -> None:
    found = leading_batch((X, torch.tensor(1.0)), {"mask": M})
    assert found is not None and found.extents == ((Extent(0, 0),), (), (Extent(0, 0),))
    assert leading_batch((X, torch.randn(4)), {}) is None


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrence_keeps_the_length_of_its_sequence(layer: Any) -> None:
    shapes = read(layer(4, 5, 2, bidirectional=True).eval(), (X,), ({0: SEQ, 1: BATCH},))
    assert not shapes.specialised and not shapes.uneven
    assert shapes.extents == ((Extent(0, 0), Extent(1, 1)),)

"""Instances drawn from shapes: what is written is what is drawn, and all of it comes."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from anabranch.ir.graph import Constant
from anabranch.ir.ops import channels_last_strides
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Draw
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules.conv_windows import of_rest, results, together
from anabranch.rewrite.rules.drawing import KINDS, OneOf, WindowChoices
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    GROUPED,
    TWO_WINDOWS,
    each,
    either,
    pools,
    shapes,
)

SEEDS = range(200)


def drawn(draw: Draw) -> list[Mapping[str, object]]:
    return [draw(random.Random(seed)) for seed in SEEDS]


def shape(value: object) -> tuple[int, ...]:
    assert isinstance(value, Constant | TensorType)
    return value.type.shape if isinstance(value, Constant) else value.shape


def test_a_letter_is_one_size_wherever_it_stands() -> None:
    for one in drawn(shapes("x: ... N K; w: M K const; y: ... N*M K+1 K/2", M=(2, 3))):
        *lead, n, k = shape(one["x"])
        m = shape(one["w"])[0]
        assert m in (2, 3)
        assert shape(one["w"]) == (m, k)
        assert shape(one["y"]) == (*lead, n * m, k + 1, k // 2)


def test_further_axes_are_as_many_as_said_and_shared() -> None:
    ranks = {len(shape(one["x"])) for one in drawn(shapes("x: ... K", MORE=(0, 2)))}
    assert ranks == {1, 3}
    found = drawn(shapes("x: A.. N B..; y: A.. M B.."))
    assert {len(shape(one["x"])) for one in found} == {1, 2, 3, 4}
    places = set()
    for one in found:
        a, b = shape(one["x"]), shape(one["y"])
        places |= {(len(a), i) for i, (m, n) in enumerate(zip(a, b, strict=True)) if m != n}
        assert sum(m != n for m, n in zip(a, b, strict=True)) <= 1
    assert places == {(rank, at) for rank in range(1, 5) for at in range(rank)}


def test_an_axis_is_where_its_letter_stands_from_either_end() -> None:
    given = set()
    for one in drawn(shapes("x: A.. N B..; i: N of x; j: N of A.. N B..", N=(11,))):
        found, i, j = shape(one["x"]), one["i"], one["j"]
        assert isinstance(i, int) and isinstance(j, int)
        assert found[i] == found[j] == 11
        given |= {i >= 0, j < 0}
    assert given == {True, False}


def test_parts_have_sizes_of_their_own_and_a_sum() -> None:
    text = "parts: B [C]; w: N sum(C); at: sum(C[:2]) size; sizes: [C] size; many: count size"
    for one in drawn(shapes(text, PARTS=(2, 3))):
        parts = one["parts"]
        assert isinstance(parts, tuple)
        widths = tuple(shape(part)[1] for part in parts)
        assert len({shape(part)[0] for part in parts}) == 1
        assert (shape(one["w"])[1], one["at"]) == (sum(widths), sum(widths[:2]))
        assert (one["sizes"], one["many"]) == (widths, len(parts))
        assert len(parts) in (2, 3)


@pytest.mark.parametrize("base", [CONVOLUTION, GROUPED])
def test_a_window_has_room(base: Mapping[str, object]) -> None:
    ways = set()
    for one in drawn(shapes(base)):
        (n, k, *kernel), (_, channels, *size) = shape(one["w"]), shape(one["x"])
        by = of_rest(one["window"], len(kernel))  # type: ignore[arg-type]
        assert channels == k * by.groups and n % by.groups == 0
        assert min(results(tuple(size), tuple(kernel), by)) > 0
        ways |= {(len(kernel), by.groups), "padded" if any(by.padding) else "plain"}
    groups = (1,) if base is CONVOLUTION else (1, 2, 3)
    assert ways == {"padded", "plain", *((axes, g) for axes in (1, 2, 3) for g in groups)}


def test_two_windows_fit_in_one_and_differ() -> None:
    """Either may be the wider one along an axis, and not always by as much on both sides."""
    ways = set[object]()
    for one in drawn(shapes(TWO_WINDOWS)):
        size, *kernels = (shape(one[name])[2:] for name in "xwv")
        first, second = (
            of_rest(one[name], len(size))  # type: ignore[arg-type]
            for name in ("window", "other")
        )
        assert (kernels[0], first) != (kernels[1], second)
        found = together(size, list(zip(kernels, (first, second), strict=True)))
        assert not isinstance(found, Refused), found
        for axis, rims in enumerate(zip(*found[1], strict=True)):
            ways |= {(which, axis) for which, rim in enumerate(rims) if any(rim)}
            ways |= {"on one side" for rim in rims if rim[0] != rim[1]}
    assert ways == {"on one side", *((which, axis) for which in (0, 1) for axis in (0, 1, 2))}


def test_a_transposed_window_is_not_padded() -> None:
    for one in drawn(shapes(CONVOLUTION, window=WindowChoices(transposed=True))):
        rest = one["window"]
        assert isinstance(rest, tuple)
        assert rest[3] is True and not any(rest[1])


def test_a_pooling_is_padded_by_half_and_leaves_nothing_over_where_it_is_whole() -> None:
    strides = set()
    for one in drawn(pools((True,), "x: B C whole image; y: taps.0 taps.1")):
        assert isinstance(one["pool"], tuple)
        kernel, stride, padding, ceil = one["pool"]
        assert ceil is True and shape(one["y"]) == kernel
        assert all(2 * p <= k for p, k in zip(padding, kernel, strict=True))
        steps = kernel if stride == () else (stride * 2)[:2]
        sides = zip(shape(one["x"])[2:], kernel, steps, padding, strict=True)
        assert all((n + 2 * p - k) % s == 0 for n, k, s, p in sides)
        strides.add(stride)
    assert {(), (2,), (1, 3)} <= strides


def test_each_axis_may_have_ways_of_its_own() -> None:
    by = WindowChoices(axes=(2,), kernel=((3,), (1, 2)), padding=(0,))
    kernels = {shape(one["w"])[2:] for one in drawn(shapes(CONVOLUTION, window=by))}
    assert kernels == {(3, 1), (3, 2)}


def test_several_tensors_are_alike_or_have_sizes_of_their_own() -> None:
    given = {"tables": "[H] [K] const", "ids": "A.. int64 several", "rest": each(1, ("K of 7 K",))}
    found: Any = drawn(shapes(given, H=(2, 3), K=(5, 6), A=(1,), PARTS=(3,)))
    for one in found:
        assert [table.name for table in one["tables"]] == ["tables0", "tables1", "tables2"]
        assert len(one["ids"]) == 3 and len(set(one["ids"])) == 1
        assert one["ids"][0].dtype == torch.int64 and one["ids"][0].shape[0] in range(1, 8)
        assert set(one["rest"]) <= {1, (1,), (-1,)}
    sizes = {table.type.shape for one in found for table in one["tables"]}
    assert sizes == {(2, 5), (2, 6), (3, 5), (3, 6)}


def test_each_kind_is_drawn_in_all_its_ways() -> None:
    entries = {kind: f"B C H W {kind}" for kind in KINDS}
    entries |= dict.fromkeys(("size", "place", "index", "upto"), "")
    entries |= {kind: f"N {kind}" for kind in ("size", "place", "index", "upto")}
    names = {f"n{i}": kind for i, kind in enumerate(entries)}
    windows = {"plain", "widened"}
    given = {name: entries[kind] for name, kind in names.items() if kind not in windows}
    found = drawn(shapes(given, N=(3,), C=(5,)))
    seen = {kind: [one[name] for one in found] for name, kind in names.items() if name in given}
    assert all(isinstance(value, Constant) for value in seen["const"])
    assert {type(value) for value in seen["const?"]} == {Constant, type(None)}
    assert {type(value) for value in seen["maybe"]} == {Constant, TensorType}
    assert {value.dtype for value in seen["int32"]} == {torch.int32}  # type: ignore[attr-defined]
    assert {value.dtype for value in seen["int64"]} == {torch.int64}  # type: ignore[attr-defined]
    strides = {
        value.strides == channels_last_strides(value.shape)
        for value in seen["image"]
        if isinstance(value, TensorType) and min(value.shape) > 1
    }
    assert strides == {True, False}
    assert {1, 5} == {shape(value)[1] for value in seen["broadcast"]}
    assert set(seen["size"]) == {3}
    assert set(seen["place"]) == {0, 1, 2}
    assert set(seen["index"]) == {-3, -2, -1, 0, 1, 2}
    assert set(seen["upto"]) == {1, 2, 3}


def test_values_choices_and_dtypes() -> None:
    either_side = either(shapes("x: N", s=OneOf(2, "N size")), shapes("x: N", s=(1, "N size")))
    found = drawn(either_side)
    assert {type(one["s"]) for one in found} == {int, tuple}
    assert all(one["s"] in (2, *shape(one["x"]), (1, *shape(one["x"]))) for one in found)
    half = shapes("x: N; w: N const; i: N int64", DTYPE=torch.float16)(random.Random(0))
    types = [value.type if isinstance(value, Constant) else value for value in half.values()]
    assert [t.dtype for t in types if isinstance(t, TensorType)] == [
        *(torch.float16, torch.float16, torch.int64)
    ]


def test_what_is_no_size_is_refused() -> None:
    with pytest.raises(ValueError, match="'cnst' is no size"):
        shapes("w: N K cnst")(random.Random(0))

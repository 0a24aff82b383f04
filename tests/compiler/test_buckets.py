"""Buckets: which sizes are compiled, by forecast times."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from anabranch.compiler.buckets import (
    PaddingCost,
    buckets,
    choose,
    expected,
    forecast_us,
    forecasts,
    most_frequent,
    padding_cost,
    read_sizes,
)
from anabranch.errors import OptionError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

ONE, TWO = (Dimension("n", 1, 64),), (Dimension("n", 1, 64), Dimension("s", 1, 512))


def linear(size: tuple[int, ...]) -> float:
    """A launch of 5 us, and 1 us for each row."""
    work = 1.0
    for n in size:
        work *= n
    return 5.0 + work


def brute(histogram: dict[Any, float], limit: int, forecast: Any) -> float:
    """The least expected time of all sets of so many sizes that fit every call."""
    best = float("inf")
    for count in range(1, limit + 1):
        for found in itertools.combinations(histogram, count):
            best = min(best, expected(histogram, found, forecast))
    return best


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_the_dynamic_programme_is_exact(limit: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randperm(40, generator=generator)[:8] + 1
    shares = torch.rand(8, generator=generator)
    histogram: dict[tuple[int, ...], float] = {
        (int(n),): float(s) for n, s in zip(sizes, shares, strict=True)
    }
    found = choose(histogram, linear, limit)
    assert len(found) <= limit and found[0] == max(histogram)
    least = brute(histogram, limit, linear)
    assert least <= expected(histogram, found, linear) <= 1.011 * least


def test_several_dimensions() -> None:
    histogram: dict[tuple[int, ...], float] = {
        (1, 16): 0.5,
        (1, 512): 0.2,
        (64, 16): 0.2,
        (2, 32): 0.1,
    }
    found = choose(histogram, linear, 4)
    rest = itertools.combinations(histogram, 3)
    least = min(expected(histogram, [(64, 512), *more], linear) for more in rest)
    assert found[0] == (64, 512) and expected(histogram, found, linear) <= 1.011 * least
    one = choose(histogram, linear, 1)
    assert one == [(64, 512)]
    assert expected(histogram, found, linear) < 0.05 * expected(histogram, one, linear)


def test_a_bucket_that_saves_nothing_is_left_out() -> None:
    flat = choose({(n,): 1.0 for n in range(1, 65)}, lambda size: 7.0, 8)
    assert flat == [(64,)]
    cheap = choose({(1,): 50.0, (2,): 20.0, (7,): 20.0, (64,): 10.0}, linear, 3)
    assert sorted(cheap)[-1] == (64,) and len(cheap) == 3


@pytest.mark.parametrize("dimensions", [1, 2])
def test_who_asks_for_many_gets_those_that_save_little(dimensions: int) -> None:
    """Sixty sizes of 100 to 159 rows: past a few, a bucket more saves less than 1%."""
    histogram = {(n,) * dimensions: 1.0 for n in range(100, 160)}

    def forecast(size: tuple[int, ...]) -> float:
        return float(size[0])

    usual, many = (choose(histogram, forecast, limit) for limit in (8, 48))
    exact = expected(histogram, histogram, forecast)
    assert len(usual) <= 8 < len(many) <= 48
    assert expected(histogram, usual, forecast) < 1.07 * exact
    assert expected(histogram, many, forecast) < 1.02 * exact


def test_sizes_in_all_forms(tmp_path: Path) -> None:
    assert read_sizes([8, 1], ONE) == ({(8,): 1.0, (1,): 1.0}, True)
    assert read_sizes({1: 0.5, 8: 0.3}, ONE) == ({(1,): 0.5, (8,): 0.3}, False)
    assert read_sizes([(8, 128), (1, 16)], TWO) == ({(8, 128): 1.0, (1, 16): 1.0}, True)
    assert read_sizes(None, ONE) == (None, False)
    path = tmp_path / "sizes.json"
    for given, want in (
        ([1, 1, 1, 8], {(1,): 3.0, (8,): 1.0}),
        ({"1": 9, "8": 1}, {(1,): 9.0, (8,): 1.0}),
    ):
        path.write_text(json.dumps(given))
        assert read_sizes(path, ONE) == (want, False)
    path.write_text(json.dumps({"8,128": 2}))
    assert read_sizes(str(path), TWO) == ({(8, 128): 2.0}, False)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (range(1, 4), {(1,): 1.0, (2,): 1.0, (3,): 1.0}),
        (torch.tensor([8, 8, 2]), {(8,): 2.0, (2,): 1.0}),
        (torch.tensor([8, 2]).numpy(), {(8,): 1.0, (2,): 1.0}),
        (Counter([8, 8, 2]), {(8,): 2.0, (2,): 1.0}),
        ({torch.tensor(8).numpy()[()]: torch.tensor(0.5).numpy()[()]}, {(8,): 0.5}),
    ],
)
def test_sizes_in_other_forms(sizes: Any, expected: Any) -> None:
    read, _ = read_sizes(sizes, ONE)
    assert read == expected
    assert read is not None and all(type(n) is int for size in read for n in size)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([65], "is not among n 1..64"),
        ([0], "is not among"),
        ([(1, 2)], "no size of n"),
        (["a"], "no size"),
        ([True], "no size of"),
        ([], "there are none"),
        ({1: -1.0}, "the share of 1"),
        ({1: 0}, "there are none"),
        (7, "they are a int"),
        ("/nowhere.json", "cannot be read"),
    ],
)
def test_what_are_no_sizes(given: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_sizes(given, ONE)


def job(**options: Any) -> Job:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).eval()
    chosen = Options.read({"cache_dir": None, "search": "none", **options})
    return Job(model, (torch.randn(4, 64),), {}, resolve("cpu"), chosen, None, Trace(quiet=True))


SHAPES = DynamicShapes(ONE, ((Extent(0, 0),),))


def test_forecasts_are_those_of_the_simulated_gpu() -> None:
    asked = job()
    forecast = forecasts(asked, SHAPES, [(1,), (64,)])
    for size in ((1,), (64,)):
        assert forecast(size) == pytest.approx(forecast_us(asked, SHAPES, size))
    assert forecast((1,)) <= forecast((32,)) <= forecast((64,))


def test_what_padding_costs_beside_exact_plans_is_told() -> None:
    histogram: dict[tuple[int, ...], float] = {(1,): 2.0, (3,): 1.0, (4,): 1.0}
    cost = padding_cost(histogram, [(2,), (4,)], lambda size: float(size[0]))
    assert cost == PaddingCost((2 * 2 + 4 + 4) / (2 * 1 + 3 + 4), 2.0, (1,))
    asked = job(buckets=2)
    buckets(asked, SHAPES, {1: 2, 3: 1, 4: 1, 64: 0.1}, [True], linear)
    (told,) = (event.why for event in asked.trace.events if event.what == "buckets")
    assert "as long as with a plan of exactly their size each, the worst size (" in told


def test_the_sizes_to_compile() -> None:
    assert buckets(job(), SHAPES, [1, 64, 8], [True]) == [(64,), (8,), (1,)]
    few = buckets(job(buckets=2), SHAPES, [1, 64, 8], [True], linear)
    assert few == [(64,), (8,)]
    whole = buckets(job(buckets=3), SHAPES, None, [True], linear)
    assert len(whole) == 3 and whole[0] == (64,)
    exact = buckets(job(buckets=2), SHAPES, {1: 0.5, 7: 0.3, 9: 0.3, 64: 0.1}, [False], linear)
    assert exact == [(9,), (1,)]
    assert most_frequent({(1,): 1.0, (2,): 1.0}, 1) == [(2,)]


@pytest.mark.parametrize("paddable", [True, False])
def test_what_is_left_out_of_a_list_is_told(paddable: bool) -> None:
    asked = job(buckets=2)
    assert len(buckets(asked, SHAPES, [1, 64, 8], [paddable], linear)) == 2
    (told,) = (event.why for event in asked.trace.events if event.kind == "warning")
    assert told.startswith("2 of the 3 sizes in the list are compiled")
    assert told.endswith("buckets=3 compiles all")
    asked = job(buckets=2)
    buckets(asked, SHAPES, [1, 64], [paddable], linear)
    buckets(asked, SHAPES, {1: 2, 3: 1, 64: 1}, [paddable], linear)
    assert not [event for event in asked.trace.events if event.kind == "warning"]

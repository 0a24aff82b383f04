"""Which sizes are compiled, of those that calls have: a few buckets, chosen by forecast times.

    calls      1: 50%   2: 20%   7: 20%   64: 10%          limit 3
    forecasts  9 us     9 us     12 us    41 us            of the simulated GPU, none is needed here
    buckets    2, 7, 64                                    1 runs as 2, which costs nothing

A call runs the smallest bucket that is no smaller than it. For one dimension the choice is exact,
by dynamic programming over the sizes in order: the last bucket is the largest size, and what lies
between two buckets costs what the upper one costs. For several dimensions one bucket is as large as
the largest size of each; others are added as long as one pays, and exchanged while that is better.
A bucket that saves too little of the forecast time is left out: less than 1% where up to eight are
asked for, less than 0.25% of 32. A dimension that is not padded has the sizes that are called most
often.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiler.pipeline import compile_model
from anabranch.errors import AnabranchError, OptionError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes
from anabranch.options import BUCKETS
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.job import Job

Size = tuple[int, ...]
Forecast = Callable[[Size], float]
LEAST_GAIN = 0.01
"""The part of the forecast time that a bucket must save where `BUCKETS` are asked for; where twice
as many are, half of it."""
MOST_FORECAST = 6
"""Sizes that are planned to forecast the others by interpolation: seconds each."""
MOST_SIZES = 2048
"""Sizes of a range that are looked at."""
SIMULATED = "sim:h200"
PLANNED: dict[str, Any] = {
    **{"search": "none", "kernels": "library", "scheduler": "sequential"},
    **{"horizontal_fusion": "none", "pdl": "off", "dump": None, "check": 0, "verify": False},
}
FORMS = "give a list of sizes, a dict from size to share, or a JSON file of either"


def buckets(
    job: Job,
    shapes: DynamicShapes,
    sizes: Any,
    paddable: Sequence[bool],
    forecast: Forecast | None = None,
) -> list[Size]:
    """The sizes to compile, largest first, `Options.buckets` of them at most. `sizes`: a list of
    sizes, a histogram (a dict, or the path of a JSON file), or None for the whole range, which
    is the example's size where it has no end; with several dimensions a size is a tuple.
    `paddable`: for each dimension whether calls may be padded along it. `forecast`: microseconds of
    a size; by default planned for a simulated GPU."""
    limit = job.options.buckets
    histogram, listed = read_sizes(sizes, shapes.dimensions)
    if histogram is None:
        ends = all(dimension.most is not None for dimension in shapes.dimensions)
        histogram = _range(shapes.dimensions) if ends else {_example(job, shapes): 1.0}
    if listed and len(histogram) <= limit:
        chosen = list(histogram)
    elif not all(paddable):
        chosen = most_frequent(histogram, limit)
    else:
        forecast = forecast or forecasts(job, shapes, histogram)
        chosen = choose(histogram, forecast, limit)
        told = padding_cost(histogram, chosen, forecast)
        job.trace.add("chosen", "capture", "buckets", f"{told}, by forecast")
    if listed and len(chosen) < len(histogram):
        left = f"{len(chosen)} of the {len(histogram)} sizes in the list are compiled, for buckets "
        left += f"is {limit}; buckets={len(histogram)} compiles all"
        job.trace.add("warning", "capture", "buckets", left)
    return sorted(chosen, key=lambda size: (math.prod(size), size), reverse=True)


def choose(histogram: Mapping[Size, float], forecast: Forecast, limit: int) -> list[Size]:
    """At most so many buckets, under which a call drawn from the histogram takes the least time.
    Every size of the histogram fits one of them."""
    if all(len(size) == 1 for size in histogram):
        return _exact([(n, histogram[(n,)]) for (n,) in sorted(histogram)], forecast, limit)
    return _greedy(histogram, forecast, limit)


def expected(histogram: Mapping[Size, float], sizes: Iterable[Size], forecast: Forecast) -> float:
    """Microseconds of a call drawn from the histogram, with these buckets."""
    costs = {size: forecast(size) for size in sizes}
    total = sum(histogram.values())
    return sum(share * _cost(size, costs) for size, share in histogram.items()) / total


@dataclass(frozen=True, slots=True)
class PaddingCost:
    """What padding to buckets costs beside a plan of exactly each size: times as long for all calls
    of a histogram, and for the worst size."""

    ratio: float
    worst_ratio: float
    worst: Size

    def __str__(self) -> str:
        size = ", ".join(map(str, self.worst))
        return (
            f"calls take {self.ratio:.2f} times as long as with a plan of exactly their size each, "
            f"the worst size ({size}) {self.worst_ratio:.2f} times"
        )


def padding_cost(
    histogram: Mapping[Size, float], sizes: Sequence[Size], forecast: Forecast
) -> PaddingCost:
    """How much longer calls drawn from the histogram take with these buckets."""
    costs = {size: forecast(size) for size in sizes}
    ratios = {size: _cost(size, costs) / forecast(size) for size in histogram}
    worst = max(ratios, key=lambda size: (ratios[size], size))
    exact_us = sum(share * forecast(size) for size, share in histogram.items())
    ratio = expected(histogram, sizes, forecast) * sum(histogram.values()) / exact_us
    return PaddingCost(ratio, ratios[worst], worst)


def most_frequent(histogram: Mapping[Size, float], limit: int) -> list[Size]:
    """Those that are called most often, of equal ones the larger."""
    order = sorted(histogram, key=lambda size: (histogram[size], math.prod(size)), reverse=True)
    return order[:limit]


def _exact(sizes: Sequence[tuple[int, float]], forecast: Forecast, limit: int) -> list[Size]:
    """best[k][j]: the least cost of the first j + 1 sizes with k buckets, the last of them j."""
    costs = [forecast((n,)) for n, _ in sizes]
    shares = [0.0, *itertools.accumulate(share for _, share in sizes)]
    count = len(sizes)
    best = [[shares[j + 1] * costs[j] for j in range(count)]]
    came: list[list[int]] = [[-1] * count]
    for _ in range(1, min(limit, count)):
        row, back = list(best[-1]), [-1] * count
        for j in range(1, count):
            tried = [best[-1][i] + (shares[j + 1] - shares[i + 1]) * costs[j] for i in range(j)]
            least = min(range(j), key=tried.__getitem__)
            row[j], back[j] = tried[least], least
        best.append(row)
        came.append(back)
    few = 0
    for k in range(1, len(best)):
        if best[k][-1] < (1 - _least_gain(limit)) * best[few][-1]:
            few = k
    chosen: list[Size] = []
    j = count - 1
    for k in range(few, -1, -1):
        chosen.append((sizes[j][0],))
        j = came[k][j]
        if j < 0:
            break
    return chosen


def _greedy(histogram: Mapping[Size, float], forecast: Forecast, limit: int) -> list[Size]:
    """One as large as the largest size of each dimension, then whichever saves most, and after each
    the others in turn give way to better ones."""
    whole = tuple(max(n) for n in zip(*histogram, strict=True))
    every = sorted({*histogram, whole})
    calls, shares = np.array(list(histogram)), np.array(list(histogram.values()))
    fits = (calls[:, None, :] <= np.array(every)[None, :, :]).all(2)
    costs = np.where(fits, np.array([forecast(size) for size in every]), math.inf)

    def with_each(indices: Sequence[int]) -> NDArray[np.float64]:
        """The cost of all calls with these buckets and each other one."""
        least = costs[:, list(indices)].min(1)
        totals: NDArray[np.float64] = shares @ np.minimum(least[:, None], costs)
        return totals

    chosen = [every.index(whole)]
    total = float(shares @ costs[:, chosen[0]])
    while len(chosen) < limit:
        totals = with_each(chosen)
        more = int(totals.argmin())
        if totals[more] >= (1 - _least_gain(limit)) * total:
            break
        chosen, total = [*chosen, more], float(totals[more])
        for place in range(1, len(chosen)):
            totals = with_each(chosen[:place] + chosen[place + 1 :])
            other = int(totals.argmin())
            if totals[other] < total:
                chosen[place], total = other, float(totals[other])
    return [every[number] for number in chosen]


def _least_gain(limit: int) -> float:
    """The part of the time that a bucket must save: less where more of them were asked for."""
    return LEAST_GAIN * min(1.0, BUCKETS / limit)


def _cost(size: Size, costs: Mapping[Size, float]) -> float:
    fitting = (
        cost
        for bucket, cost in costs.items()
        if all(a <= b for a, b in zip(size, bucket, strict=True))
    )
    return min(fitting, default=math.inf)


def forecasts(job: Job, shapes: DynamicShapes, sizes: Iterable[Size]) -> Forecast:
    """Microseconds of any of these sizes: some are planned for a simulated GPU, the others lie
    between. Where one cannot be planned, time grows with the number of elements."""
    order = sorted({*sizes}, key=lambda size: (math.prod(size), size))
    step = max(1, math.ceil((len(order) - 1) / (MOST_FORECAST - 1)))
    planned = list(dict.fromkeys([*order[::step], order[-1]]))
    try:
        points = [(math.prod(size), forecast_us(job, shapes, size)) for size in planned]
    except AnabranchError as failed:
        job.trace.add("refused", "capture", "buckets", f"no forecast: {failed.what}: {failed.why}")
        return lambda size: float(math.prod(size))
    works = [work for work, _ in points]
    times = list(itertools.accumulate((us for _, us in points), max))  # more never takes less
    told = ", ".join(f"{size}: {us:.1f} us" for size, us in zip(planned, times, strict=True))
    job.trace.add("chosen", "capture", "buckets", f"forecast {told}")

    def forecast(size: Size) -> float:
        work = math.prod(size)
        place = min(max(bisect.bisect_left(works, work), 1), len(works) - 1)
        if len(works) == 1 or works[place] == works[place - 1]:
            return times[-1]
        share = (work - works[place - 1]) / (works[place] - works[place - 1])
        return times[place - 1] + share * (times[place] - times[place - 1])

    return forecast


def forecast_us(job: Job, shapes: DynamicShapes, size: Size) -> float:
    """Microseconds of the model at one size on a simulated GPU, planned in little time: library
    kernels, one after another."""
    args, kwargs = shapes.resized(job.args, dict(job.kwargs), size)
    target = job.target if job.target.spec.simulated else resolve(SIMULATED, job.options.tf32)
    options = job.options.model_copy(update=PLANNED)
    asked = replace(
        job, args=args, kwargs=kwargs, target=target, options=options, trace=Trace(quiet=True)
    )
    (_, cost), *_ = compile_model(asked, stop_after="schedule").candidates
    return float(cost.us)


def read_sizes(
    sizes: Any, dimensions: Sequence[Dimension]
) -> tuple[dict[Size, float] | None, bool]:
    """The share of each size, and whether it was given as a list of sizes to compile. None for no
    sizes at all. OptionError for sizes that the dimensions do not have."""
    if sizes is None:
        return None, False
    listed = not isinstance(sizes, (str, PathLike, Mapping))
    parsed = _from_file(sizes) if isinstance(sizes, (str, PathLike)) else sizes
    if isinstance(parsed, Mapping):
        pairs: list[tuple[Any, Any]] = list(parsed.items())
    elif isinstance(parsed, Iterable):  # a list, a range, an array
        pairs = [(entry, 1.0) for entry in parsed]
    else:
        raise _no_sizes(f"they are a {type(parsed).__name__}")
    shares: dict[Size, float] = {}
    for size, share in pairs:
        if not _is_share(share):
            raise _no_sizes(f"the share of {size} is {share!r}")
        at = _size(size, dimensions)
        shares[at] = shares.get(at, 0.0) + float(share)
    if not shares or not sum(shares.values()):
        raise _no_sizes("there are none")
    return shares, listed


def _from_file(path: str | PathLike[str]) -> Any:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, ValueError) as failed:
        raise _no_sizes(f"{path} cannot be read: {str(failed).splitlines()[0]}") from None


def _size(value: Any, dimensions: Sequence[Dimension]) -> Size:
    """A size as a number, a tuple, or as text in JSON: "8", "8,128"."""
    parts = value.split(",") if isinstance(value, str) else value
    parts = parts if isinstance(parts, (list, tuple)) else (parts,)
    try:
        size = tuple(int(part) if isinstance(part, str) else _whole(part) for part in parts)
    except ValueError:
        raise _no_sizes(f"{value!r} is no size") from None
    if not dimensions:
        raise OptionError(
            "sizes were given, and no dimension varies",
            "torch.export takes a Dim.AUTO for fixed where the example has the size 1, or the "
            "model's code needs one size",
            "give an example of another size, or name the dimension: Dim('batch', max=64)",
        )
    names = ", ".join(map(str, dimensions))
    if len(size) != len(dimensions) or any(type(n) is not int for n in size):
        raise _no_sizes(f"{value!r} is no size of {names}")
    for n, dimension in zip(size, dimensions, strict=True):
        if n < dimension.least or (dimension.most is not None and n > dimension.most):
            raise _no_sizes(f"{value!r} is not among {names}")
    return size


def _whole(part: Any) -> Any:
    """A number of NumPy's or torch's as Python's own; what is no whole number as it is."""
    try:
        return part if isinstance(part, bool) else operator.index(part)
    except TypeError:
        return part


def _is_share(share: Any) -> bool:
    """Whether it is a number that a histogram may have, of Python's or NumPy's."""
    real = isinstance(share, numbers.Real) and not isinstance(share, bool)
    return real and 0 <= float(share) < math.inf


def _no_sizes(why: str) -> OptionError:
    return OptionError("these are no sizes to choose buckets from", why, FORMS)


def _range(dimensions: Sequence[Dimension]) -> dict[Size, float]:
    """All sizes of the dimensions alike; of a large range, and of several, in steps that grow."""
    ranges = [range(dimension.least, (dimension.most or 0) + 1) for dimension in dimensions]
    if math.prod(map(len, ranges)) > MOST_SIZES or len(ranges) > 1:
        ranges = [_ladder(span.start, span.stop - 1) for span in ranges]  # type: ignore[misc]
    return dict.fromkeys(itertools.product(*ranges), 1.0)


def _example(job: Job, shapes: DynamicShapes) -> Size:
    leaves = pytree.tree_leaves((job.args, dict(job.kwargs)))
    size = shapes.sizes_of([leaf for leaf in leaves if isinstance(leaf, Tensor)])
    assert size is not None, "they were compared when the dimensions were read"
    return size


def _ladder(least: int, most: int) -> list[int]:
    """Powers of two, and the ends."""
    powers = (1 << k for k in range(most.bit_length()))
    return sorted({least, most, *(n for n in powers if least < n < most)})

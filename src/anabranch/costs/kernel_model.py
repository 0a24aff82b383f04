"""A model of single kernels: what its launches consist of -> microseconds, and how far that is off.

    contraction    us = 1.04 one + .032 steps + .29 load + .41 split + ...     off by 11%, and by 4%
                                                                               more in one network

A launch is a few terms of a family: a template, a call of a library, a kind of operator
(`kernels.kernel_terms`). Each term has a factor that is not negative, by least squares of relative
errors, of which those beyond `ROBUST` count linearly. A family of too few timings is estimated by
its pool, which has other families, too. How far a family is off is known from networks that were
held out with all of their kernels (`bench.fit_kernels`).

Factors are data, a file beside the profile: `anabranch record --fit-kernels` writes it.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from anabranch.costs.per_task import Memo
from anabranch.costs.recorded import Provenance
from anabranch.costs.roofline import Roofline
from anabranch.errors import TargetError
from anabranch.ir.protocols import Cost
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task

VERSION = 1
FEWEST_KERNELS = 8
"""Timings of which a family has factors of its own."""
ROBUST = 0.1
REGRESSION_ROUNDS = 10
RIDGE = 1e-5
"""What factors cost beside their errors: of terms that nothing tells apart each gets a part."""
LEAST_US = 0.01
START = "one"
"""The term that a launch has once."""
TENTH = 1.2816
"""Standard deviations from the median of a normal distribution to its tenth percentile."""

FloatArray = NDArray[np.float64]
Factors = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class LaunchTerms:
    """One launch of a kernel: its family, the pool of that, and what it consists of. `beside`: it
    is no launch of its own, but runs in the one before, on the part `share` of the GPU. `walked`:
    microseconds that a CTA waits at least for what it reads block by block."""

    family: str
    pool: str
    terms: tuple[tuple[str, float], ...]
    beside: bool = False
    share: float = 1.0
    walked: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel that was timed: its launches, and microseconds."""

    launches: tuple[LaunchTerms, ...]
    us: float


class FamilyError(BaseModel):
    """By what part of its time kernels of a family are off, as standard deviations: `own` each by
    itself, `common` all of a network alike; of how many timings that is known."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    own: float = Field(ge=0, le=100)
    common: float = Field(ge=0, le=100)
    kernels: int = Field(ge=0)


class FittedKernels(BaseModel):
    """`factors`: of families and pools, microseconds for each unit of a term. `errors`: of
    families; the one of "" is that of all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = VERSION
    device: str = ""
    provenance: Provenance = Provenance()
    factors: Factors = {}
    errors: dict[str, FamilyError] = {}


def predicted_us(factors: Factors, launches: Sequence[LaunchTerms]) -> float | None:
    """Microseconds of all launches, None where there is a family that nothing is known of."""
    groups: list[list[tuple[float, float, float]]] = []
    for launch in launches:
        factor_of = factors.get(launch.family) or factors.get(launch.pool)
        if factor_of is None:
            return None
        if not launch.beside:
            groups.append([])
        start = sum(
            factor_of.get(name, 0.0) * value for name, value in launch.terms if name == START
        )
        whole = sum(factor_of.get(name, 0.0) * value for name, value in launch.terms)
        groups[-1].append((start, max(whole - start, launch.walked), launch.share))
    total = sum(_together(parts) for parts in groups)
    return max(total, LEAST_US) if launches else None


def _together(parts: Sequence[tuple[float, float, float]]) -> float:
    """Parts of one launch, each with its start, the rest of its time and its share of the GPU: as
    long as the longest, and as the GPU needs for the work of all."""
    start = max(start for start, _, _ in parts)
    longest = max(us for _, us, _ in parts)
    return start + max(longest, sum(us * share for _, us, share in parts))


def family_of(launches: Sequence[LaunchTerms]) -> str:
    """The family that a kernel's error is known by: that of its first launch."""
    return launches[0].family if launches else ""


def fit_factors(timed: Sequence[Timed]) -> Factors:
    """The factors of all families of enough timings, and of all pools. Nobody knows which part of a
    launch took its time where parts run side by side: that tells nothing."""
    timed = [timing for timing in timed if not any(launch.beside for launch in timing.launches)]
    counts: dict[str, int] = defaultdict(int)
    for timing in timed:
        for family in {launch.family for launch in timing.launches}:
            counts[family] += 1
    families = {family for family, count in counts.items() if count >= FEWEST_KERNELS}
    pools = _fitted(timed, lambda launch: launch.pool)
    own = [
        timing for timing in timed if all(launch.family in families for launch in timing.launches)
    ]
    return {**pools, **_fitted(own, lambda launch: launch.family)}


def _fitted(timed: Sequence[Timed], named: Callable[[LaunchTerms], str]) -> Factors:
    """Families that share kernels are fitted together: such a kernel's time is a sum of theirs."""
    groups = _connected([[named(launch) for launch in timing.launches] for timing in timed])
    parts: dict[str, list[Timed]] = defaultdict(list)
    for timing in timed:
        parts[groups[named(timing.launches[0])]].append(timing)
    factors_of: Factors = {}
    for part in parts.values():
        names = sorted(
            {(named(x), t) for timing in part for x in timing.launches for t, _ in x.terms}
        )
        place = {name: i for i, name in enumerate(names)}
        rows = np.zeros((len(part), len(names)))
        for row, timing in zip(rows, part, strict=True):
            for launch in timing.launches:
                for term, value in launch.terms:
                    row[place[named(launch), term]] += value
        factors = _robust(rows, np.array([timing.us for timing in part]))
        for (family, term), factor in zip(names, factors, strict=True):
            factors_of.setdefault(family, {})
            if factor > 0:
                factors_of[family][term] = float(f"{factor:.5g}")
    return factors_of


def _connected(lists: Iterable[Sequence[str]]) -> dict[str, str]:
    """For each name one that it shares with all that stand in a list with it, or with these."""
    above: dict[str, str] = {}

    def root(name: str) -> str:
        while above.setdefault(name, name) != name:
            name = above[name]
        return name

    for names in lists:
        for name in names:
            above[root(name)] = root(names[0])
    return {name: root(name) for name in above}


def _robust(rows: FloatArray, us: FloatArray) -> FloatArray:
    """Factors that are not negative, so that rows times factors are near `us`, in parts of it."""
    scaled = rows / us[:, None]
    weights = np.ones(len(us))
    factors = np.zeros(rows.shape[1])
    for _ in range(REGRESSION_ROUNDS):
        factors = _not_negative(scaled * np.sqrt(weights)[:, None], np.sqrt(weights))
        off = np.abs(np.log(np.maximum(scaled @ factors, LEAST_US)))
        weights = np.minimum(1.0, ROBUST / np.maximum(off, 1e-9))
    return factors


def _not_negative(rows: FloatArray, wanted: FloatArray) -> FloatArray:
    """Least squares with factors that are not negative (Lawson and Hanson, 1974)."""
    sizes = np.sqrt((rows * rows).sum(axis=0))
    sizes[sizes == 0] = 1.0
    rows = rows / sizes
    gram = rows.T @ rows + RIDGE * len(rows) * np.eye(rows.shape[1])
    target = rows.T @ wanted
    solution, free = np.zeros(len(sizes)), np.zeros(len(sizes), dtype=bool)
    for _ in range(3 * len(sizes)):
        pull = np.where(free, -np.inf, target - gram @ solution)
        if pull.max(initial=-np.inf) <= 1e-9 * len(rows):
            break
        free[int(pull.argmax())] = True
        while True:
            tried = np.zeros(len(sizes))
            tried[free] = np.linalg.solve(gram[np.ix_(free, free)], target[free])
            below = free & (tried <= 0)
            if not below.any():
                solution = tried
                break
            step = (solution[below] / (solution[below] - tried[below] + 1e-300)).min()
            solution = solution + step * (tried - solution)
            free &= solution > 1e-12
            solution[~free] = 0.0
    factors: FloatArray = solution / sizes
    return factors


class Modelled:
    """Costs of tasks with kernels by a model, of others by `Roofline`. `terms_of`: the launches of
    a task, () where nobody knows them."""

    def __init__(
        self,
        model: FittedKernels,
        terms_of: Callable[[Task, TargetSpec], Sequence[LaunchTerms]],
        spec: TargetSpec,
    ) -> None:
        self.model = model
        self._rough = Roofline(spec)
        self._launches = Memo(lambda task: tuple(terms_of(task, spec)))
        self._cost = Memo(self._estimate)

    def task(self, task: Task) -> Cost:
        """The estimated time of the task, whose spread is what such kernels are off by."""
        return self._cost(task)

    def error(self, task: Task) -> FamilyError:
        """How far such kernels are off. A family of few timings is off at least as far as all
        kernels are: two that happened to be foreseen say little of a third."""
        errors = self.model.errors
        every = errors.get("", NOTHING_KNOWN)
        own = errors.get(self.family(task), every)
        if own.kernels >= FEWEST_KERNELS:
            return own
        far = {"own": max(own.own, every.own), "common": max(own.common, every.common)}
        return FamilyError(**far, kernels=own.kernels)

    def most(self, task: Task) -> float:
        """Microseconds that it takes at most in nine of ten cases."""
        error = self.error(task)
        return self.task(task).us * (1.0 + TENTH * math.hypot(error.own, error.common))

    def family(self, task: Task) -> str:
        """The family that its error is known by, "" for none."""
        return family_of(self._launches(task))

    def _estimate(self, task: Task) -> Cost:
        rough = self._rough.task(task)
        us = predicted_us(self.model.factors, self._launches(task)) if rough.us else None
        if us is None:
            return rough
        return Cost(us, "estimated")


NOTHING_KNOWN = FamilyError(own=0.5, common=0.3, kernels=0)
"""Of estimates that nobody compared with timings."""


def load_kernel_model(path: str | os.PathLike[str]) -> FittedKernels:
    """The model in this file. TargetError if there is none, or none that we can read."""
    try:
        model = FittedKernels.model_validate_json(Path(path).read_bytes())
        finite = all(
            math.isfinite(factor) and factor >= 0
            for family in model.factors.values()
            for factor in family.values()
        )
    except (OSError, ValueError) as broken:
        why = broken.errors()[0]["msg"] if isinstance(broken, ValidationError) else str(broken)
        raise _unreadable(path, why) from None
    if model.version != VERSION:
        raise _unreadable(path, f"it has format {model.version}, this version reads {VERSION}")
    if not finite:
        raise _unreadable(path, "a factor is no number, or negative")
    return model


def save_kernel_model(model: FittedKernels, path: str | os.PathLike[str]) -> None:
    """Write it readably, sorted by name."""
    ordered = model.model_copy(
        update={
            "factors": {k: dict(sorted(v.items())) for k, v in sorted(model.factors.items())},
            "errors": dict(sorted(model.errors.items())),
        }
    )
    Path(path).write_text(ordered.model_dump_json(indent=1) + "\n")


def _unreadable(path: str | os.PathLike[str], why: str) -> TargetError:
    return TargetError(
        f"cannot read the model of kernels {path}",
        why,
        "fit it again with `anabranch record --fit-kernels`, or remove it",
    )

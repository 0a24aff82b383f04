"""Belief: what each of many small changes adds to a time, from runs that had some of them at once.

    run   changes   us more      belief: a -1.0 +- 0.3    b +0.5 +- 0.3    c  0.0 +- 0.5
    1     a         -1.1
    2     a b       -0.5         `drawn` from it: a -1.2, b +0.3, c -0.2 -> try a and c next
    3     b         +0.6

Bayesian linear regression: effects add up, are normal around nothing before any run, and runs are
noisy. Thompson sampling tries what would be best if a draw from the belief were true: it tries what
may be best, and repeats little of what surely is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Runs:
    """`had`: of each run, which changes it had; `us`: how much more time it took; of each change
    `scale`: how much it may well add, before any run. `noise`: how much a run errs; in
    microseconds, both standard deviations."""

    scale: Vector
    noise: float
    had: tuple[tuple[int, ...], ...] = ()
    us: tuple[float, ...] = ()

    def and_also(self, had: Sequence[int], us: float) -> Runs:
        """With one run more."""
        return Runs(self.scale, self.noise, (*self.had, tuple(had)), (*self.us, us))


def expected(runs: Runs) -> Vector:
    """What each change adds, in the mean."""
    return _learned(runs, np.zeros_like(runs.scale), np.zeros(len(runs.us)))


def drawn(runs: Runs, dice: np.random.Generator) -> Vector:
    """The time that each change adds in one world among those that the runs leave possible: a world
    drawn before any run, corrected by what the runs say of it (Matheron's rule)."""
    world = runs.scale * dice.standard_normal(runs.scale.shape)
    return _learned(runs, world, runs.noise * dice.standard_normal(len(runs.us)))


def _learned(runs: Runs, world: Vector, errors: Vector) -> Vector:
    if not runs.us:
        return world
    table = np.zeros((len(runs.us), len(runs.scale)))
    for row, had in zip(table, runs.had, strict=True):
        row[list(had)] = 1
    spread = table * runs.scale**2
    between = spread @ table.T + runs.noise**2 * np.eye(len(runs.us))
    surprise = np.array(runs.us) - table @ world - errors
    return world + np.asarray(spread.T @ np.linalg.solve(between, surprise), dtype=np.float64)

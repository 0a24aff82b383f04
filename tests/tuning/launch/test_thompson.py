"""What many small changes add, learned from runs that had some of them at once."""

from __future__ import annotations

import numpy as np
import pytest

from anabranch.tuning.launch.thompson import Runs, drawn, expected

NONE = Runs(np.array([0.5, 0.5, 2.0]), 0.1)


def test_nothing_is_expected_before_any_run() -> None:
    assert expected(NONE).tolist() == [0, 0, 0]
    worlds = np.array([drawn(NONE, np.random.default_rng(i)) for i in range(2000)])
    assert worlds.std(axis=0) == pytest.approx(NONE.scale, rel=0.1)


def test_one_run_is_shared_out_by_how_much_each_may_add() -> None:
    """By the formula for two normal variables whose sum is seen with an error."""
    found = expected(NONE.and_also((0, 2), 1.0))
    share = 1.0 / (0.25 + 4.0 + 0.01)
    assert found == pytest.approx([0.25 * share, 0.0, 4.0 * share])


def test_runs_tell_apart_what_they_had_together() -> None:
    truth, dice = np.array([-1.0, 0.5, 2.0]), np.random.default_rng(3)
    runs = NONE
    for _ in range(60):
        had = tuple(np.flatnonzero(dice.random(3) < 0.5))
        runs = runs.and_also(had, truth[list(had)].sum() + 0.1 * dice.standard_normal())
    assert expected(runs) == pytest.approx(truth, abs=0.1)


def test_draws_lie_around_what_is_expected_as_widely_as_runs_leave_open() -> None:
    """As the posterior of a normal prior says in its closed form."""
    runs = NONE.and_also((0,), 0.4).and_also((0, 1), 0.1)
    table = np.array([[1.0, 0, 0], [1, 1, 0]])
    precision = np.diag(NONE.scale**-2.0) + table.T @ table / NONE.noise**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ table.T @ np.array(runs.us) / NONE.noise**2
    assert expected(runs) == pytest.approx(mean)
    dice = np.random.default_rng(0)
    worlds = np.array([drawn(runs, dice) for _ in range(4000)])
    assert worlds.mean(axis=0) == pytest.approx(mean, abs=0.1)
    assert np.cov(worlds.T) == pytest.approx(covariance, abs=0.15)

"""By hand: five and twenty samples whose percentiles and ratios can be read off."""

from __future__ import annotations

import pytest

from anabranch.bench.statistics import confident, paired, percentile, summary


def test_summary() -> None:
    found = summary([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.median, found.samples) == (3.0, 5)
    assert found.p10 == pytest.approx(1.4)
    assert found.p90 == pytest.approx(4.6)
    assert summary([7.0]).p10 == summary([7.0]).p90 == 7.0


def test_percentile_lies_between_neighbours() -> None:
    assert percentile([0.0, 10.0], 0) == 0.0
    assert percentile([0.0, 10.0], 100) == 10.0
    assert percentile([0.0, 10.0, 20.0], 75) == 15.0


def test_confidence_counts() -> None:
    """Of 20, the 6th to the 15th hold the median with 95.9%, the 7th to the 14th with 88.5%."""
    assert confident(20) == 5
    assert confident(9) == 1  # the 2nd to the 8th: 96.1%
    assert confident(5) == 0  # all of them: 93.8%, and there are no more
    assert confident(1) == 0


def test_drift_leaves_the_ratio_alone() -> None:
    ours = [1.0 + 0.1 * i for i in range(20)]
    found = paired([1.5 * ms for ms in ours], ours)
    assert found.ratio == pytest.approx(1.5)
    assert found.low == pytest.approx(1.5) and found.high == pytest.approx(1.5)
    assert not found.tie


def test_ties() -> None:
    ours = [1.0] * 20
    assert paired(ours, ours).tie
    assert paired([1.009] * 20, ours).tie  # certain, and too small to matter
    assert not paired([1.02] * 20, ours).tie
    noisy = [0.9, 1.2] * 10
    found = paired(noisy, ours)
    assert (found.low, found.high, found.tie) == (0.9, 1.2, True)


def test_one_outlier_does_not_matter() -> None:
    found = paired([2.0] * 19 + [50.0], [1.0] * 20)
    assert (found.ratio, found.low, found.high) == (2.0, 2.0, 2.0)

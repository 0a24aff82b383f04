"""Of the model of single kernels: what is said of networks that were held out."""

from __future__ import annotations

import pytest

from anabranch.bench.fit_kernels import Sample, TimedKernels, judged
from anabranch.costs.kernel_model import LaunchTerms, fit_factors, predicted_us


def sample(network: str, launches: float, steps: float, us: float) -> Sample:
    terms = (("one", launches), ("steps", steps))
    kernel = LaunchTerms("window", "templates", terms)
    return Sample(frozenset({network}), (kernel,), us, rough_us=2 * us)


@pytest.fixture
def gathered() -> TimedKernels:
    """Kernels that take two microseconds, and a half for each step; those of the last network take
    a tenth more."""
    samples = {
        f"{network}{i}": sample(network, 1.0, i, (2 + 0.5 * i) * slower)
        for network, slower in (("a", 1.0), ("b", 1.0), ("c", 1.1))
        for i in range(1, 11)
    }
    return TimedKernels(samples, {"a": ("a1", "a1", "a2"), "b": ("b3",), "c": ("c4",)})


def held_out(name: str, gathered: TimedKernels) -> dict[str, float]:
    rest = [s.timed for s in gathered.samples.values() if name not in s.networks]
    factors = fit_factors(rest)
    own = {key: s for key, s in gathered.samples.items() if name in s.networks}
    said = {key: predicted_us(factors, s.launches) for key, s in own.items()}
    assert None not in said.values()
    return {key: us for key, us in said.items() if us is not None}


def test_errors_are_those_of_kernels_that_the_fit_has_not_seen(gathered: TimedKernels) -> None:
    held = {name: held_out(name, gathered) for name in "abc"}
    errors, families, networks = judged(held, gathered)
    last = networks[2]
    assert last["network"] == "c" and last["kernels"] == 10
    assert last["median_error"] == pytest.approx(1 - 1 / 1.1, abs=0.002)
    assert last["sum"] == pytest.approx(1 / 1.1 - 1, abs=0.002)  # of its plan: too low
    assert all(row["roofline_median_error"] == row["roofline_sum"] == 1.0 for row in networks)
    assert 0 < networks[0]["sum"] < 0.1  # the others' fit leans to the slower one
    assert [row["family"] for row in families] == ["all", "window"]
    assert families[0]["kernels"] == errors["window"].kernels == 30
    # All of a network are off alike, and hardly any by itself.
    assert errors["window"].common > 10 * errors["window"].own

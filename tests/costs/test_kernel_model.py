"""The model of single kernels: factors that times are made of come back; intervals add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from anabranch.costs.forecast_interval import SIMULATED, UncertainKernel, interval_of
from anabranch.costs.kernel_model import (
    FEWEST_KERNELS,
    TENTH,
    FamilyError,
    FittedKernels,
    LaunchTerms,
    Modelled,
    Timed,
    fit_factors,
    load_kernel_model,
    predicted_us,
    save_kernel_model,
)
from anabranch.costs.recorded import Profile, Recorded, Timing, timing_key
from anabranch.costs.roofline import Roofline
from anabranch.errors import TargetError
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task


def _launch(steps: float, moved: float, family: str = "tile") -> LaunchTerms:
    return LaunchTerms(family, "pool", (("one", 1.0), ("steps", steps), ("moved", moved)))


def _samples() -> list[Timed]:
    sizes = [(s, m) for s in (1.0, 4.0, 9.0) for m in (0.5, 2.0, 3.0, 8.0)]
    return [Timed((_launch(s, m),), 1.2 + 0.1 * s + 0.4 * m) for s, m in sizes]


def test_factors_come_back_and_one_outlier_does_not_move_them() -> None:
    found = fit_factors([*_samples(), Timed((_launch(4.0, 2.0),), 900.0)])["tile"]
    assert found == pytest.approx({"one": 1.2, "steps": 0.1, "moved": 0.4}, rel=0.03)


def test_no_factor_is_negative() -> None:
    falling = [Timed((_launch(s, 1.0),), 10.0 - s / 2) for s in range(1, 11)]
    assert min(fit_factors(falling)["tile"].values()) >= 0


def test_launches_of_one_kernel_add_up() -> None:
    both = [
        Timed((_launch(s, 1.0), LaunchTerms("copy", "pool", (("one", 1.0),))), 3.0 + 0.1 * s)
        for s in range(1, 11)
    ]
    factors = fit_factors([*both, *_samples()])
    assert predicted_us(factors, both[4].launches) == pytest.approx(both[4].us, rel=0.02)


@pytest.mark.parametrize(("share", "us"), [(0.1, 2.1), (0.9, 2.46), (1.0, 2.6)])
def test_parts_of_a_launch_run_side_by_side(share: float, us: float) -> None:
    """Rests of 0.9 and 0.5 us: as long as the longer one, or as the GPU needs for both."""
    parts = (_launch(5.0, 1.0), replace(_launch(1.0, 1.0), beside=True))
    factors = {"tile": {"one": 1.2, "steps": 0.1, "moved": 0.4}}
    shared = tuple(replace(part, share=share) for part in parts)
    assert predicted_us(factors, shared) == pytest.approx(us)
    assert predicted_us(factors, (*shared, _launch(1.0, 1.0))) == pytest.approx(us + 1.7)


def test_walks_over_a_long_row_are_waited_for() -> None:
    """Whatever the factors say, but for the launch; and no longer where work takes longer."""
    factors = {"tile": {"one": 1.0, "steps": 0.1, "moved": 0.5}}
    short, long = _launch(10, 2.0), _launch(400, 2.0)
    assert predicted_us(factors, [short]) == pytest.approx(3.0)
    assert predicted_us(factors, [replace(short, walked=20.0)]) == pytest.approx(21.0)
    assert predicted_us(factors, [replace(long, walked=20.0)]) == pytest.approx(42.0)


def test_launches_of_parts_tell_a_fit_nothing() -> None:
    odd = Timed((_launch(1.0, 1.0), replace(_launch(9.0, 9.0), beside=True)), 0.1)
    assert fit_factors([*_samples(), *[odd] * 20]) == fit_factors(_samples())


def test_a_family_of_few_timings_is_estimated_by_its_pool() -> None:
    few = [Timed((_launch(1.0, 1.0, "rare"),), 1.7)] * (FEWEST_KERNELS - 1)
    factors = fit_factors([*_samples(), *few])
    assert "rare" not in factors
    assert predicted_us(factors, few[0].launches) == pytest.approx(1.7, rel=0.05)
    assert predicted_us(factors, (replace(few[0].launches[0], pool="else"),)) is None
    assert predicted_us(factors, ()) is None


def test_a_model_comes_back_and_damage_is_refused(tmp_path: Path) -> None:
    errors = {"": FamilyError(own=0.1, common=0.05, kernels=12)}
    model = FittedKernels(device="a GPU", factors=fit_factors(_samples()), errors=errors)
    save_kernel_model(model, tmp_path / "m.json")
    assert load_kernel_model(tmp_path / "m.json") == model
    text = (tmp_path / "m.json").read_text()
    for damage in ("", text.replace('"version": 1', '"version": 2'), text.replace("0.1", "-0.1")):
        (tmp_path / "bad.json").write_text(damage)
        with pytest.raises(TargetError, match="cannot read the model of kernels"):
            load_kernel_model(tmp_path / "bad.json")


def _terms(task: Task, spec: TargetSpec) -> tuple[LaunchTerms, ...]:
    return (_launch(4.0, 2.0),) if task.kernel else ()


@pytest.mark.parametrize(
    ("kernels", "own", "common"),
    [(FEWEST_KERNELS - 1, 0.2, 0.4), (FEWEST_KERNELS, 0.01, 0.4)],
)
def test_a_family_of_few_timings_is_off_as_far_as_all_are(
    make: Any, kernels: int, own: float, common: float
) -> None:
    """Or farther, where these few were."""
    few = FamilyError(own=0.01, common=0.4, kernels=kernels)
    errors = {"": FamilyError(own=0.2, common=0.1, kernels=900), "tile": few}
    model = FittedKernels(factors={"tile": {"one": 2.0}}, errors=errors)
    estimates = Modelled(model, _terms, make.spec)
    found = estimates.error(make.relu("a", width=8, ctas=4))
    assert (found.own, found.common) == (own, common)


def test_an_interval_adds_kernels_that_are_alike_and_squares_others(make: Any) -> None:
    model = FittedKernels(
        factors={"tile": {"one": 2.0}}, errors={"tile": FamilyError(own=0.2, common=0.1, kernels=9)}
    )
    estimates = Modelled(model, _terms, make.spec)
    known, one = make.relu("a", width=8, ctas=4), make.relu("b", width=9, ctas=4)
    again = replace(one, name="c")
    timing = Timing(us=4.0, spread=0.3)
    profile = Profile(spec=make.spec, tasks={timing_key(known, False): timing})
    costs = Recorded(profile, estimates)
    assert costs.task(one).us == 2.0
    plain = replace(one, kernel=None)
    assert estimates.task(plain) == Roofline(make.spec).task(plain)
    found = interval_of(8.0, make.graph(known, one, again), costs)
    own, common = TENTH * 0.2 * 4.0, TENTH * 0.1 * 4.0  # two kernels alike: of four microseconds
    half = (0.3**2 + own**2 + common**2 + (SIMULATED * 8.0) ** 2) ** 0.5
    assert (found.low, found.high) == pytest.approx((8.0 - half, 8.0 + half))
    assert found.recorded == 0.5
    variance = 0.3**2 + own**2 + common**2
    first, second = found.dominant
    assert first == UncertainKernel("b", 1, 4.0, "estimated", first.part)
    assert second == UncertainKernel("a", 0, 4.0, "recorded", second.part)
    parts = (own**2 / variance, 0.3**2 / variance)
    assert (first.part, second.part) == pytest.approx(parts)

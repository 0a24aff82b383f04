"""The fit against a machine of which all is known: it must find its numbers again."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from anabranch.costs.fit import ORDER, Case, fit, floored, judge, kendall, loss
from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.repeats import LIMIT_SIGMAS, Repeatability
from anabranch.costs.resource_demand import Demand
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec

SPEC = TargetSpec("cuda", "synthetic", sms=132, bandwidth=4e12, l2_bytes=50_000_000)
TRUTH = Calibration(start_us=4.0, launch_us=0.9, fork_us=0.35, dispatch_us=0.2, sharing=0.5)
START = Calibration(start_us=1.0, launch_us=0.4, fork_us=0.1, sharing=0.1)
FITTED = ("launch_us", "start_us", "fork_us", "dispatch_us", "sharing")


def case(name: str, n: int, kind: str = "network", noise: float = 0.0) -> Case:
    """A random graph under random schedules, timed by the true machine, with some noise."""
    rng = random.Random(name)
    edges = {(rng.randrange(max(0, i - 8), i), i) for i in range(1, n) for _ in range(2)}
    dag = Dag.of(tuple(f"t{i}" for i in range(n)), edges)
    demands = tuple(
        Demand(
            rng.uniform(1.2, 8), 1, rng.choice((4, 66, 132, 300)), rng.choice((1, 2, 4)), 0.3, 0.3
        )
        for _ in range(n)
    )
    simulator = Simulator.of(dag, demands, SPEC, TRUTH)
    streams = [[rng.randrange(k) for _ in range(n)] for k in (1, 2, 3, 5, 8)]
    launches = tuple(simulator.launches(range(n), each) for each in streams)
    us = tuple(simulator.run(each).latency * rng.gauss(1, noise) for each in launches)
    names = tuple((f"random-{len(set(each))}",) for each in streams)
    spreads = tuple(noise * value for value in us)
    return Case(name, kind, dag, demands, names, launches, us, spreads, tuple((t,) for t in us))


def fork(width: int) -> Case:
    """One task, `width` beside each other, one that waits for all, nine times."""
    n, edges = 9 * (width + 1) + 1, []
    for head in range(0, n - 1, width + 1):
        edges += [(head, head + i) for i in range(1, width + 1)]
        edges += [(head + i, head + width + 1) for i in range(1, width + 1)]
    dag = Dag.of(tuple(f"t{i}" for i in range(n)), edges)
    demands = (Demand(1.5, 1, 1, 8),) * n
    simulator = Simulator.of(dag, demands, SPEC, TRUTH)
    streams = [max(0, i % (width + 1) - 1) for i in range(n)]
    launches = simulator.launches(range(n), streams)
    us = simulator.run(launches).latency
    name = f"fork{width}"
    return Case(name, "steps", dag, demands, (("fork",),), (launches,), (us,), (0.0,), ((us,),))


def test_predicts_as_the_machine_does() -> None:
    """Together some numbers stand for each other in part; what they predict is the same."""
    cases = [case(f"a{i}", 24) for i in range(6)] + [fork(width) for width in (1, 2, 3, 6)]
    found = fit(cases, SPEC, START, FITTED)
    assert loss(cases, SPEC, found) < 1e-5 < loss(cases, SPEC, START)
    assert judge(case("unseen", 40), SPEC, found).error < 0.01


@pytest.mark.parametrize("name", FITTED)
def test_finds_each_number_of_the_machine_again(name: str) -> None:
    cases = [case(f"a{i}", 24) for i in range(6)] + [fork(width) for width in (1, 2, 3, 6)]
    start = replace(TRUTH, **{name: getattr(START, name)})
    found = fit(cases, SPEC, start, (name,))
    assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), abs=0.03)


def test_noise_does_not_mislead_it_on_what_it_has_not_seen() -> None:
    cases = [case(f"a{i}", 24, noise=0.03) for i in range(6)]
    found = fit(cases, SPEC, START, FITTED)
    unseen = [case(f"unseen{i}", 40) for i in range(9)]
    before = [judge(each, SPEC, START) for each in unseen]
    after = [judge(each, SPEC, found) for each in unseen]
    assert max(verdict.error for verdict in after) < 0.03
    errors = [statistics.fmean(verdict.error for verdict in each) for each in (before, after)]
    assert errors[1] < errors[0] / 2
    assert statistics.fmean(verdict.tau or 0.0 for verdict in after) > 0.9


def test_is_the_same_every_time_and_moves_only_what_it_may() -> None:
    cases = [case("a", 12), case("b", 12)]
    told: list[float] = []
    found = fit(cases, SPEC, START, ("fork_us",), lambda round, least: told.append(least))
    assert found == fit(cases, SPEC, START, ("fork_us",))
    assert replace(found, fork_us=START.fork_us) == START
    """Twice down: without the order, and from there with it."""
    rises = [i for i in range(1, len(told)) if told[i] > told[i - 1]]
    assert len(rises) <= 1


def test_order_counts_where_the_device_told_two_apart() -> None:
    """Two schedules, as predicted and the other way round, told apart by the device and not."""
    dag = Dag.of(("a", "b", "c"), [])
    demands = (Demand(4.0, 1, 2, 1),) * 3
    simulator = Simulator.of(dag, demands, SPEC, START)
    launches = tuple(simulator.launches(range(3), each) for each in ([0, 0, 0], [0, 0, 1]))
    slow, fast = (simulator.run(each).latency for each in launches)
    names = (("line",), ("beside",))

    def one(us: tuple[float, float], spread: float, kind: str = "network") -> float:
        times = tuple((t,) for t in us)
        each = Case("x", kind, dag, demands, names, launches, us, (spread, spread), times)
        return loss([each], SPEC, START)

    assert one((slow, fast), 0.0) == 0.0
    wrong = one((fast, slow), 0.0)
    assert wrong - one((fast, slow), 0.0, "copies") == pytest.approx(ORDER)
    assert wrong - one((fast, slow), slow) == pytest.approx(ORDER)


def test_spreads_are_no_less_than_what_repeats_show() -> None:
    """Of four repeats half as much as of one; who spreads more by itself keeps that."""
    drawn = case("a", 12)
    several = replace(
        drawn, spreads=(0.0, 0.0, 1e9, 0.0, 0.0), repeats=((5.0,) * 4, *((5.0,),) * 4)
    )
    known = Repeatability(0.01, 9)
    found = floored(several, known)
    assert found.spreads[0] == pytest.approx(LIMIT_SIGMAS / 4 * 0.01 * drawn.us[0])
    assert found.spreads[1] == pytest.approx(LIMIT_SIGMAS / 2 * 0.01 * drawn.us[1])
    assert found.spreads[2] == 1e9
    assert floored(several, Repeatability(0.0, 0)) == several


def test_networks_weigh_the_same_and_small_graphs_as_one() -> None:
    network, copy = case("a", 12), case("b", 12, "copies")
    alone = loss([network], SPEC, START), loss([copy], SPEC, START)
    assert loss([network, copy, copy], SPEC, START) == pytest.approx(sum(alone) / 2)


@pytest.mark.parametrize(
    ("predicted", "measured", "spreads", "tau"),
    [
        ((1, 2, 3), (1, 2, 3), (0, 0, 0), 1.0),
        ((3, 2, 1), (1, 2, 3), (0, 0, 0), -1.0),
        ((2, 1, 3), (1, 1.5, 3), (0.3, 0.3, 0), 1.0),
        ((1, 1, 1), (1, 2, 3), (0, 0, 0), 0.0),
        ((1, 1, 2), (1, 2, 3), (0, 0, 0), 2 / 6**0.5),
        ((1, 2), (5, 5.1), (0.1, 0.1), None),
    ],
)
def test_kendall(
    predicted: tuple[float, ...],
    measured: tuple[float, ...],
    spreads: tuple[float, ...],
    tau: float | None,
) -> None:
    found = kendall(predicted, measured, spreads)
    assert found is None if tau is None else found == pytest.approx(tau)

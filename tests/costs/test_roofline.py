"""Estimates: near what an H200 showed for small layers, near the bounds for large ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from anabranch.costs.roofline import Roofline
from anabranch.ir.graph import Graph
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Task

# C, H, K, R and the faster of cuDNN and Triton in us: fp16, batch 1, in a CUDA graph on an H200.
LAYERS = [
    (64, 56, 64, 1, 2.39),
    (64, 56, 64, 3, 4.40),
    (64, 56, 256, 1, 3.22),
    (256, 56, 64, 1, 3.17),
    (128, 28, 128, 3, 5.57),
    (512, 28, 128, 1, 3.49),
    (128, 28, 512, 1, 2.87),
    (256, 14, 256, 3, 6.22),
    (1024, 14, 256, 1, 3.99),
    (256, 14, 1024, 1, 3.17),
    (512, 7, 512, 3, 6.55),
    (2048, 7, 512, 1, 4.79),
    (512, 7, 2048, 1, 3.46),
    (768, 17, 192, 1, 3.65),
    (1280, 8, 384, 1, 4.21),
    (448, 8, 384, 3, 6.35),
]


# C, H, R, groups and the fastest of all that was tried, likewise; the first four with a relu.
GROUPED = [
    (128, 56, 3, 32, 5.09),
    (256, 28, 3, 32, 4.06),
    (512, 14, 3, 32, 2.62),
    (168, 42, 5, 84, 17.7),
    (168, 42, 5, 168, 3.03),
    (336, 21, 5, 336, 2.34),
]


@pytest.mark.parametrize(("c", "h", "r", "groups", "us"), GROUPED)
def test_groups_as_measured(make: Any, c: int, h: int, r: int, groups: int, us: float) -> None:
    """Those that do not fill tensor cores are slow, but for depthwise ones."""
    cost = Roofline(make.spec).task(make.conv(c, h, c, r, groups=groups))
    assert cost.us == pytest.approx(us, rel=0.22)


@pytest.mark.parametrize(("c", "h", "k", "r", "us"), LAYERS)
def test_small_layers_as_measured(make: Any, c: int, h: int, k: int, r: int, us: float) -> None:
    cost = Roofline(make.spec).task(make.conv(c, h, k, r))
    assert cost.source == "estimated"
    assert cost.us == pytest.approx(us, rel=0.22)


def test_large_layers_are_bound_by_arithmetic_or_traffic(make: Any) -> None:
    costs = Roofline(make.spec)
    wide = costs.task(make.conv(512, 256, 512, 3)).us
    flops_us = 2 * 512 * 512 * 9 * 256 * 256 / 9.89e14 * 1e6
    assert flops_us < wide < 2 * flops_us
    large = costs.task(make.relu("a", width=1 << 28)).us
    assert large == pytest.approx(4 * (1 << 28) / 4.8e12 * 1e6, rel=0.02)


def test_views_cost_nothing_and_launches_add_up(make: Any) -> None:
    costs = Roofline(make.spec)
    assert costs.task(Task("view", Graph("view", (), (), (), ()))).us == 0
    chain = make.graph(make.relu("a"), make.relu("b", ("a",)))
    one_stream = Schedule("s", (Launch("a", 0), Launch("b", 0)))
    alone = costs.task(chain.tasks[0]).us
    assert 1 < alone < 3
    assert costs.schedule(chain, one_stream).us == pytest.approx(2 * alone)
    assert costs.rank(chain, [one_stream, one_stream]) == [costs.schedule(chain, one_stream)] * 2
    assert costs.trial(chain.tasks) == [costs.task(task) for task in chain.tasks]
    assert costs.probe(chain) == {}


def test_a_cpu_has_no_ramp(make: Any) -> None:
    spec = replace(make.spec, kind="cpu", launch_us=5.0, bandwidth=1e10)
    assert Roofline(spec).task(make.relu("a", width=1000)).us == pytest.approx(5.4)

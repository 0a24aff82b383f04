"""Paths worked out by hand, and beside the model of kernels that share a machine."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs.alpha_cost import WITHOUT_OVERLAP_COST, mixed_price
from anabranch.costs.critical_path import longest_path
from anabranch.costs.gpu_simulator import Simulator
from anabranch.costs.resource_demand import Demand
from anabranch.ir.calibration import Calibration
from anabranch.ir.dag import Dag
from anabranch.ir.target import TargetSpec

FORK, LANE, SHORT, RELEASE = 0.25, 1.0, 2.0, 0.125
MACHINE = Calibration(fork_us=FORK, lane_us=LANE, short_us=SHORT, release_us=RELEASE)
Dags = tuple[list[float], list[list[int]]]


def path(times: list[float], preds: list[list[int]]) -> float:
    return longest_path(times, preds, MACHINE)


def test_a_chain_is_its_sum() -> None:
    assert path([], []) == 0
    assert path([2, 5, 1], [[], [0], [1]]) == 8


def test_a_fork_and_a_join() -> None:
    """The example of the docstring."""
    short = path([4, 5, 3, 2], [[], [0], [0], [1, 2]])
    assert short == 4 + max(RELEASE + 5, FORK + LANE + 3 + LANE) + 2
    assert longest_path([4, 5, 3, 2], [[], [0], [0], [1, 2]], WITHOUT_OVERLAP_COST) == 11


def test_nothing_is_made_ready_behind_a_short_launch() -> None:
    assert path([2, 5, 1], [[], [0], [0]]) == 2 + RELEASE + 5
    assert path([2, 1, 5, 5], [[], [0], [0], [0]]) == 2 + FORK + 5
    assert path([2.5, 1, 5, 5], [[], [0], [0], [0]]) == 2.5 + FORK + 0.5 + 5


def test_what_starts_a_graph_starts_one_after_another() -> None:
    assert path([5, 5, 1], [[], [], []]) == 5 + FORK


def test_an_edge_that_others_imply_is_no_fork() -> None:
    assert path([4, 4, 4], [[], [0], [0, 1]]) == 12


def test_what_takes_no_time_is_no_launch() -> None:
    """A concatenation that costs nothing, of two, which two read."""
    apart = path([4, 3, 0, 2, 1], [[], [], [0, 1], [2], [2]])
    assert apart == path([4, 3, 2, 1], [[], [], [0, 1], [0, 1]])
    assert path([4, 3, 0, 2], [[], [0], [0], [1, 2]]) == 9


@st.composite
def dags(draw: st.DrawFn) -> Dags:
    n = draw(st.integers(1, 8))
    times = [float(draw(st.integers(0, 9))) for _ in range(n)]
    preds = [
        sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else ()) for i in range(n)
    ]
    return times, preds


@given(dags())
def test_between_the_bare_path_and_the_sum_of_all_that_costs(dag: Dags) -> None:
    times, preds = dag
    bare = longest_path(times, preds, WITHOUT_OVERLAP_COST)
    found = path(times, preds)
    most = len(times) * (len(times) * FORK + LANE + RELEASE)
    assert bare <= found <= bare + most
    assert mixed_price(times, preds, 2.0, MACHINE).us == pytest.approx(2 * found + sum(times))


@given(dags())
def test_the_order_of_the_nodes_does_not_matter(dag: Dags) -> None:
    """Where no two have equally long to go."""
    times, preds = dag
    times = [time and time + 2**-i / 64 for i, time in enumerate(times)]
    order = list(range(len(times)))
    moved = sorted(order, key=lambda i: (_depth(i, preds), -i))
    place = {old: new for new, old in enumerate(moved)}
    again = [sorted(place[p] for p in preds[old]) for old in moved]
    assert path([times[old] for old in moved], again) == pytest.approx(path(times, preds))


def _depth(node: int, preds: list[list[int]]) -> int:
    return 1 + max((_depth(p, preds) for p in preds[node]), default=0)


@pytest.mark.parametrize(
    ("times", "preds"),
    [
        ([4.0, 5.0, 3.0, 2.0], [[], [0], [0], [1, 2]]),
        ([4.0, 5.0, 3.0, 2.0, 6.0], [[], [0], [0], [1, 2], [0]]),
        ([6.0, 3.5, 3.0, 2.75, 2.5, 4.0], [[], [0], [0], [0], [0], [1, 2, 3, 4]]),
    ],
)
def test_as_the_model_has_it_where_the_machine_is_wide(
    times: list[float], preds: list[list[int]]
) -> None:
    """In the best launch order, on a stream each, with tasks of one small block."""
    edges = [(p, i) for i, before in enumerate(preds) for p in before]
    dag = Dag.of(tuple(map(str, range(len(times)))), edges)
    demands = [Demand(us, 1, 1, 1, 0.0, 0.0) for us in times]
    spec = TargetSpec("cuda", "wide", sms=1000)
    model = Simulator.of(dag, demands, spec, MACHINE)
    found = min(
        model.latency(order, range(len(times)))
        for order in permutations(range(len(times)))
        if all(order.index(p) < order.index(i) for p, i in edges)
    )
    assert found == pytest.approx(path(times, preds))

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, bits
from anabranch.schedule.local.assignment import Placing
from anabranch.schedule.local.occupancy_model import (
    ROOM,
    edges,
    local_search,
    makespan,
    problem,
    starts,
)


@pytest.mark.parametrize(
    ("streams", "ticks"),
    [
        ((0, 0, 0, 0), 600),  # 1 + 2 + 2 + 1
        ((0, 0, 1, 0), 450),  # c starts half a fork late, d waits for two: .25 + .25
        ((0, 1, 2, 3), 450),
    ],
)
def test_a_diamond(diamond: Dag, streams: tuple[int, ...], ticks: int) -> None:
    given = problem(diamond, (1, 2, 2, 1), (0.1,) * 4, 0.5)
    assert makespan(given, Placing((0, 1, 2, 3), streams)) == ticks


def test_who_does_not_fit_waits_and_is_overtaken(diamond: Dag) -> None:
    """Of a (.7), b (.5) and c (.3), ready at once, b waits for a, c does not wait for b."""
    dag = Dag.of(("a", "b", "c"), [])
    given = problem(dag, (4, 3, 2), (0.7, 0.5, 0.3), 0.5)
    assert starts(given, Placing((0, 1, 2), (0, 1, 2))) == [0, 400, 0]


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_room_and_inputs_are_kept(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    n = len(dag.names)
    us = data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=n, max_size=n))
    shares = data.draw(st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0]), min_size=n, max_size=n))
    streams = tuple(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    given = problem(dag, us, shares, 0.5)
    placing = Placing(tuple(range(n)), streams)
    begun = starts(given, placing)
    ends = [at + length for at, length in zip(begun, given.ticks, strict=True)]
    for v in range(n):
        assert begun[v] >= max((ends[u] for u in bits(dag.preds[v])), default=0)
        together = [u for u in range(n) if begun[u] <= begun[v] < ends[u]]
        assert sum(given.rooms[u] for u in together) <= ROOM
    found = local_search(given, [placing], 4, 200)
    assert makespan(given, found) <= makespan(given, placing)


def test_an_edge_that_others_imply_is_none(diamond: Dag) -> None:
    """Where c follows b on its stream, d waits for c alone, and a starts b alone."""
    given = problem(diamond, [1.0] * 4, [0.5] * 4, 0.0)
    waiting, joins, dependents = edges(given, Placing((0, 1, 2, 3), (0, 0, 0, 0)))
    assert waiting == [0, 1, 1, 1] and joins == [0, 0, 0, 0]
    assert dependents == [[1], [2], [3], []]

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, bits
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.local.assignment import (
    AssignmentMoves,
    Placing,
    breaks,
    placing_of,
    schedule_of,
)


@given(data=st.data())
@settings(max_examples=30)
def test_every_step_is_legal(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    n = len(dag.names)
    movable = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    steps = AssignmentMoves(dag, sorted(movable), data.draw(st.integers(1, 4)), Random(n))
    placing = start = Placing(tuple(range(n)), (0,) * n)
    for _ in range(30):
        placing = steps.step(placing)
        found = schedule_of("any", dag, placing)
        verify_schedule(found, dag)
    still = set(range(n)) - set(movable)
    assert all(placing.stream_of[v] == start.stream_of[v] for v in still)
    assert [v for v in placing.order if v in still] == [v for v in start.order if v in still]


def test_all_placings_of_a_diamond_are_met(diamond: Dag) -> None:
    steps, placing = (
        AssignmentMoves(diamond, range(4), 2, Random(0)),
        Placing((0, 1, 2, 3), (0, 0, 0, 0)),
    )
    met = set()
    for _ in range(3000):
        placing = steps.step(placing)
        met.add(placing)
    assert {placing.order for placing in met} == {(0, 1, 2, 3), (0, 2, 1, 3)}
    assert len(met) == 2 * 2**4


def test_there_and_back(diamond: Dag) -> None:
    placing = Placing((0, 2, 1, 3), (0, 1, 0, 1))
    again = placing_of(schedule_of("any", diamond, placing), diamond)
    assert again == placing


@pytest.mark.parametrize(
    ("stream_of", "count"), [((0, 0, 0, 0), 1), ((0, 0, 1, 0), 1), ((0, 1, 2, 3), 3)]
)
def test_breaks(diamond: Dag, stream_of: tuple[int, ...], count: int) -> None:
    """In one stream c follows b, which it does not read; on four streams nobody follows."""
    assert breaks(diamond, Placing((0, 1, 2, 3), stream_of)) == count
    assert list(bits(diamond.preds[3])) == [1, 2]

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.ir.dag import Dag, parse_dag
from anabranch.schedule.streams import fewer


def test_a_finished_stream_is_taken_over() -> None:
    """No stream of its own for d: c is always before it.

    a --+--> b
        +--> c --> d
    """
    dag = parse_dag("a -> b c\nb\nc -> d\nd")
    assert fewer(dag, range(4), (0, 0, 1, 2), 16) == [0, 0, 1, 1]


def test_the_limit_holds_for_independent_nodes() -> None:
    """Five nodes, two streams."""
    dag = parse_dag("a\nb\nc\nd\ne")
    assert fewer(dag, range(5), range(5), 2) == [0, 1, 0, 1, 0]


@given(st.data())
def test_chains_stay_whole(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    n = len(dag.names)
    stream_of = data.draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    limit = data.draw(st.integers(1, 4))
    found = fewer(dag, range(n), stream_of, limit)
    assert len(set(found)) <= limit
    assert len(set(zip(stream_of, found, strict=True))) == len(set(stream_of))

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from anabranch.errors import VerifyError
from anabranch.ir.dag import Dag, parse_dag
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.event_waits import launches


def test_transitive_waits_are_dropped() -> None:
    """Three streams: c waits for b, and so for a.

    a --> b --> c
    +-----------^
    """
    dag = parse_dag("a -> b c\nb -> c")
    found = launches(dag, range(3), (0, 1, 2))
    assert [launch.waits for launch in found] == [(), ("a",), ("b",)]


def test_of_one_stream_only_the_last_is_waited_for() -> None:
    """Stream 0 has a and b, stream 1 has c.

    a --+
    b --+--> c
    """
    dag = parse_dag("a -> c\nb -> c\nc")
    assert launches(dag, (0, 1, 2), (0, 0, 1))[2].waits == ("b",)


def test_streams_are_numbered_as_they_appear() -> None:
    dag = parse_dag("a\nb\nc")
    found = launches(dag, (2, 0, 1), (7, 3, 7))
    assert found == (Launch("c", 0), Launch("a", 0), Launch("b", 1))


@given(st.data())
def test_legal_and_minimal(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    dag = data.draw(dags)
    order = _any_order(dag, data)
    streams = st.integers(0, 3)
    stream_of = data.draw(st.lists(streams, min_size=len(order), max_size=len(order)))
    schedule = Schedule("any", launches(dag, order, stream_of))
    verify_schedule(schedule, dag)
    for i, launch in enumerate(schedule.launches):
        for wait in launch.waits:
            fewer = replace(launch, waits=tuple(w for w in launch.waits if w != wait))
            broken = (*schedule.launches[:i], fewer, *schedule.launches[i + 1 :])
            with pytest.raises(VerifyError):
                verify_schedule(Schedule("any", broken), dag)


def _any_order(dag: Dag, data: st.DataObject) -> list[int]:
    order: list[int] = []
    done = 0
    while len(order) < len(dag.names):
        ready = [v for v, preds in enumerate(dag.preds) if not done >> v & 1 and not preds & ~done]
        order.append(data.draw(st.sampled_from(ready)))
        done |= 1 << order[-1]
    return order

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from tests.schedule.dags import components

from anabranch.ir.dag import Dag, bits
from anabranch.schedule.ios.endings import TooMany, endings, groups_of, reaches, states


def test_the_docstring(diamond: Dag) -> None:
    """
         +--> b --+
    a -->|        +--> d
         +--> c --+
    """
    assert [_text(diamond, state) for state in states(diamond)] == [
        *("", "a", "ab", "ac", "abc", "abcd")
    ]
    reach = reaches(diamond)
    assert {_text(diamond, e) for e in endings(reach, 0b1111)} == {"abcd", "bd", "cd", "d"}
    assert groups_of(reach, 0b0110) == (0b0010, 0b0100)
    assert components(reach, 0b1110) == (0b1110,)


def test_too_many() -> None:
    """Forty independent nodes have 2^40 states."""
    dag = Dag.of(tuple(f"n{i}" for i in range(40)), [])
    with pytest.raises(TooMany):
        states(dag, 1000)
    with pytest.raises(TooMany):
        endings(reaches(dag), (1 << 40) - 1, None, None, 1000)


@given(st.data())
def test_by_definition(dags: SearchStrategy[Dag], data: st.DataObject) -> None:
    """Every subset, judged as the paper and its code define states and endings."""
    dag = data.draw(dags)
    r = data.draw(st.none() | st.integers(1, 3))
    s = data.draw(st.none() | st.integers(1, 3))
    everything = range(1 << len(dag.names))
    closed = [x for x in everything if all(not dag.preds[v] & ~x for v in bits(x))]
    assert states(dag) == closed
    reach = reaches(dag)
    state = data.draw(st.sampled_from(closed))
    literal = [e for e in everything if e and not e & ~state and not _leaves(dag, e) & state & ~e]
    admitted = [
        e
        for e in literal
        if all(_sources(dag, g) == 1 and g.bit_count() <= (r or 99) for g in components(reach, e))
        and len(components(reach, e)) <= (s or 99)
    ]
    found = endings(reach, state, r, s)
    assert sorted(found) == admitted
    assert all(groups_of(reach, e) == components(reach, e) for e in found)


def _leaves(dag: Dag, ending: int) -> int:
    """What directly follows the ending."""
    after = 0
    for v in bits(ending):
        after |= dag.succs[v]
    return after


def _sources(dag: Dag, group: int) -> int:
    return sum(1 for v in bits(group) if not dag.preds[v] & group)


def _text(dag: Dag, mask: int) -> str:
    return "".join(dag.names[v] for v in bits(mask))

r"""Which launch goes on from which.

a -- b -- d        a fork, whose second branch begins a lane; the join goes on from the first
 \-- c --/
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs.graph_lanes import lanes


def test_a_join_goes_on_from_the_earliest() -> None:
    assert lanes(((), (0,), (0,), (1, 2))) == (0, 0, 1, 0)


def test_a_chain_on_many_streams_is_one_lane() -> None:
    """The edges to the last launch of the same stream do not matter where that was gone on from."""
    assert lanes(((), (0,), (0, 1), (1, 2), (2, 3))) == (0, 0, 0, 0, 0)


def test_what_nobody_went_on_from_draws_a_later_launch_away() -> None:
    """2 ends a lane of its own; 5 comes on its stream, and goes on there and not from 4."""
    assert lanes(((), (0,), (0,), (1, 2), (3,), (2, 4), (5,))) == (0, 0, 1, 0, 0, 1, 1)


def test_starts_have_lanes_of_their_own() -> None:
    assert lanes(((), (), ())) == (0, 1, 2)
    assert lanes(()) == ()


def test_who_waits_for_a_later_one_goes_on_from_none() -> None:
    assert lanes(((1,), (0,))) == (0, 0)


@given(st.lists(st.sets(st.integers(0, 30), max_size=4), max_size=30))
def test_from_each_launch_at_most_one_goes_on(drawn: list[set[int]]) -> None:
    preds = [sorted(p for p in direct if p < i) for i, direct in enumerate(drawn)]
    found = lanes(preds)
    last: dict[int, int] = {}
    for i, lane in enumerate(found):
        if lane in last:
            assert last[lane] in preds[i]
        last[lane] = i
    """Who begins a lane found all it waits for gone on from."""
    for i, lane in enumerate(found):
        if lane not in found[:i]:
            assert all(found[p] in found[p + 1 : i] for p in preds[i])

r"""Schedules as captured graphs: which edges matter, and which schedules are one graph.

a -- b -- d      b and c beside each other
 \-- c --/
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.costs.launches import Launches, launches_of, needed
from anabranch.ir.schedule import parse_schedule

NAMES = ("a", "b", "c", "d")


def of(*lines: str, bound: tuple[bool, ...] | None = None) -> Launches:
    text = "schedule some {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    return launches_of(parse_schedule(text), NAMES, bound)


def test_streams_that_add_no_edge_are_the_same_graph() -> None:
    two = of("a @0", "b @0", "c @1 after a", "d @0 after c")
    three = of("a @0", "b @2 after a", "c @1 after a", "d @5 after b c")
    """d on the stream of a, which is gone on from: an edge that those to b and c imply."""
    back = of("a @0", "b @2 after a", "c @1 after a", "d @0 after b c")
    assert two == three == back
    assert two.dependents == ((1, 2), (3,), (3,), ())
    assert two.lane == (0, 0, 1, 0)


def test_order_and_edges_that_matter_are_another_graph() -> None:
    two = of("a @0", "b @0", "c @1 after a", "d @0 after c")
    assert of("a @0", "c @1 after a", "b @0", "d @0 after c") != two
    assert of("a @0", "b @0", "c @1 after b", "d @0 after c") != two


def test_a_chain_on_many_streams_is_the_chain() -> None:
    chain = of("a @0", "b @0", "c @0", "d @0")
    """c on the stream of a and d on that of b: both implied."""
    assert of("a @0", "b @1 after a", "c @0 after b", "d @1 after c") == chain


def test_bound_tasks_go_on_along_their_stream_alone() -> None:
    lines = ("a @0", "b @1 after a", "c @1", "d @2 after c")
    assert of(*lines).lane == (0, 0, 0, 0)
    assert of(*lines, bound=(False, True, True, False)).lane == (0, 1, 1, 1)
    assert of(*lines, bound=(True,) * 4).lane == (0, 1, 1, 2)


@given(st.lists(st.sets(st.integers(0, 14), max_size=5), max_size=15))
def test_needed_are_the_fewest_that_imply_all(drawn: list[set[int]]) -> None:
    direct = [{p for p in waits if p < i} for i, waits in enumerate(drawn)]
    kept = needed(direct)
    reached = closure(direct)
    assert closure([set(waits) for waits in kept]) == reached
    for i, waits in enumerate(kept):
        assert set(waits) <= direct[i]
        assert not any(p in reached[q] for p in waits for q in waits)


def closure(direct: list[set[int]]) -> list[set[int]]:
    before: list[set[int]] = []
    for waits in direct:
        before.append(waits.union(*(before[p] for p in waits)))
    return before


def test_who_waits_for_a_later_one_keeps_all() -> None:
    assert needed([{1}, {0}]) == [[1], [0]]

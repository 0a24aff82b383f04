"""Cells: between bulges, one cut each, where few matches reach; equal ones alike."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from anabranch.search.engine.cell_cuts import cell_boundaries

Edges = list[tuple[int, int]]


def crossing(edges: Edges) -> list[tuple[int, tuple[int, ...]]]:
    """The values of these edges, by maker."""
    makers = dict.fromkeys(u for u, _ in edges)
    return [(u, tuple(v for w, v in edges if w == u)) for u in makers]


def cells(count: int, size: int, back: int = 1) -> Edges:
    """So many diamonds of so many branches, each of which also reads what is `back` before it.

    0 --> 1 ... size - 2 --> size - 1 -->
    """
    edges: Edges = []
    for i in range(count):
        first, last = i * size, (i + 1) * size - 1
        edges += [(first, v) for v in range(first + 1, last)]
        edges += [(v, last) for v in range(first + 1, last)]
        edges += [((j + 1) * size - 1, first) for j in range(max(0, i - back), i)]
    return edges


def test_a_cell_is_what_lies_between_narrow_places() -> None:
    found = cell_boundaries(range(30), crossing(cells(5, 6)), {}, 6)
    assert [len(cell) for cell in found] == [6] * 5
    assert list(chain(*found)) == list(range(30))


def test_cells_that_read_the_two_before_them_are_two_values_apart() -> None:
    found = cell_boundaries(range(48), crossing(cells(6, 8, back=2)), {}, 8)
    assert [len(cell) for cell in found] == [8] * 6


def test_what_all_cells_read_does_not_keep_them_together() -> None:
    """Cosines, sines, a mask and places, which stand before the first cell, and go with it."""
    edges = [(u + 4, v + 4) for u, v in cells(5, 6)]
    edges += [(shared, 4 + 6 * cell + 1) for cell in range(5) for shared in range(4)]
    found = cell_boundaries(range(34), crossing(edges), {}, 6)
    assert [len(cell) for cell in found] == [10, 6, 6, 6, 6]


def test_of_several_narrow_places_the_one_that_severs_the_fewest_matches() -> None:
    """Behind a diamond stand two nodes in a row: three narrow places."""
    edges = [*cells(1, 6), (5, 6), (6, 7), *((u + 8, v + 8) for u, v in cells(1, 6)), (7, 8)]
    plain = cell_boundaries(range(14), crossing(edges), {}, 6)
    assert [len(cell) for cell in plain] == [6, 8]
    tied = cell_boundaries(range(14), crossing(edges), {(5, 6): 2, (6, 7): 1, (7, 8): 0}, 6)
    assert [len(cell) for cell in tied] == [8, 6]


def test_crumbs_go_with_their_neighbours() -> None:
    found = cell_boundaries(range(20), crossing(cells(5, 4)), {}, 9)
    assert [len(cell) for cell in found] == [4] * 5
    joined = cell_boundaries(range(40), crossing(cells(10, 4)), {}, 15)
    assert [len(cell) for cell in joined] == [8] * 5


def test_what_has_no_waist_is_one_cell() -> None:
    everything = [(u, v) for v in range(20) for u in range(v)]
    assert cell_boundaries(range(20), crossing(everything), {}, 5) == [list(range(20))]
    assert cell_boundaries(range(7), crossing(cells(1, 7)), {}, 6) == [list(range(7))]


@given(st.integers(1, 40), st.sets(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60))
def test_cells_are_the_places_in_order(count: int, drawn: set[tuple[int, int]]) -> None:
    edges = sorted((u, v) for u, v in drawn if u < v)
    found = cell_boundaries(range(count), crossing(edges), {}, 4)
    assert list(chain(*found)) == list(range(count)) and all(found)

"""Dags: topological numbers, reachability, reductions, widths, and a text that reads back.

a --> b --> d        a comes before all, b and c are apart, and a -> d says nothing new
a --> c --> d
a --------> d
"""

from __future__ import annotations

from itertools import combinations

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import anabranch
from anabranch.errors import ScheduleError
from anabranch.ir.dag import LONG_BITS, Dag, bits, minimum_equivalent, parse_dag, text_dag, width

DIAMOND = Dag.of(("a", "b", "c", "d"), [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])


@st.composite
def dags(draw: st.DrawFn) -> Dag:
    n = draw(st.integers(1, 7))
    pairs = list(combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return Dag.of(tuple(f"n{i}" for i in range(n)), edges)


def as_networkx(dag: Dag) -> nx.DiGraph[int]:
    graph: nx.DiGraph[int] = nx.DiGraph(dag.edges())
    graph.add_nodes_from(range(len(dag.names)))
    return graph


def test_nodes_are_renumbered_only_where_edges_ask_for_it() -> None:
    assert Dag.of(("a", "b", "c"), [(0, 2)]).names == ("a", "b", "c")
    turned = Dag.of(("a", "b", "c"), [(2, 0)])
    assert turned.names == ("b", "c", "a") and list(turned.edges()) == [(1, 2)]


@pytest.mark.parametrize(
    ("edges", "said"), [([(0, 1), (1, 0)], "0 -> 1"), ([(0, 2)], "numbered 0 to 1")]
)
def test_what_is_no_dag_is_refused(edges: list[tuple[int, int]], said: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        Dag.of(("a", "b"), edges)
    assert said in refused.value.why


def test_what_comes_before_and_after() -> None:
    assert DIAMOND.ancestors() == (0b0000, 0b0001, 0b0001, 0b0111)
    assert DIAMOND.descendants() == (0b1110, 0b1000, 0b1000, 0b0000)
    assert DIAMOND.inputs() == ((), (0,), (0,), (0, 1, 2)) and width(DIAMOND) == 2


def test_a_part_has_the_edges_within_it() -> None:
    part = DIAMOND.restrict(0b1011)
    assert part.names == ("a", "b", "d") and list(part.edges()) == [(0, 1), (0, 2), (1, 2)]


@given(dags())
def test_reachability_reduction_and_width_are_those_of_networkx(dag: Dag) -> None:
    graph = as_networkx(dag)
    for i, mask in enumerate(dag.ancestors()):
        assert set(bits(mask)) == nx.ancestors(graph, i)
    assert set(minimum_equivalent(dag).edges()) == set(nx.transitive_reduction(graph).edges())
    assert width(dag) == max(len(chain) for chain in nx.antichains(graph))


@given(dags())
def test_the_text_reads_back(dag: Dag) -> None:
    assert parse_dag(text_dag(dag)) == dag


@pytest.mark.parametrize("line", ["a b", "-> b", "a ->", "a -> b -> c"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        parse_dag(f"a -> b  # a comment\n{line}\n")
    assert refused.value.what.startswith("line 2 ")


@given(st.sets(st.integers(0, 3 * LONG_BITS)))
def test_bits_of_masks_short_and_long(places: set[int]) -> None:
    assert list(bits(sum(1 << place for place in places))) == sorted(places)


@pytest.mark.parametrize("scheduler", ["ios", "wavefront", "nimble", "local"])
def test_random_numbers_are_drawn_in_the_models_order(scheduler: str) -> None:
    """Also where the second could be drawn long before the first."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        y = x
        for _ in range(4):
            y = y.sin() + y.softmax(-1)
        return torch.rand_like(y) * y, torch.rand(4, 6) + 1, torch.randn(3)

    x = torch.randn(4, 6)
    fast = anabranch.compile(
        model, (x,), target="cpu", cache_dir=None, search="none", scheduler=scheduler
    )
    for seed in range(3):
        torch.manual_seed(seed)
        want = model(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(fast(x), want)

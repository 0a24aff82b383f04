"""What was found for one part is the answer for another of the same signature, under its names."""

from __future__ import annotations

from dataclasses import replace

from tests.rewrite.graphs import equal, read
from tests.rewrite.searching import RULES, weighed

from anabranch.ir.graph import Graph
from anabranch.search.engine.backtracking import Budget, backtrack
from anabranch.search.engine.neighbours import Neighbours
from anabranch.search.engine.transfer import moved, renamed, signature


def twins(one: str, same: bool = False) -> Graph:
    """Two products of one input; `one` begins all names."""
    w, v = f"{one}w", f"{one}w" if same else f"{one}v"
    return read(f"""graph g {{
      input %{one}x: f32[4,4]
      const %{one}w: f32[4,4] = {w}
      const %{one}v: f32[4,4] = {v}
      %{one}: f32[4,4] = aten.mm.default(%{one}x, %{one}w)    # line {one}1
      %{one}b: f32[4,4] = aten.mm.default(%{one}x, %{one}v)    # line {one}2
      return %{one}, %{one}b
    }}""")


def test_names_and_content_do_not_count_but_equality_does() -> None:
    assert signature(twins("p")) == signature(twins("q"))
    assert signature(twins("p", same=True)) == signature(twins("q", same=True))
    assert signature(twins("p")) != signature(twins("p", same=True))


def test_a_solution_is_renamed_with_its_weights_and_lines() -> None:
    """Among the second graph's names are some that rewriting gave in the first."""
    first, second = twins("p"), twins("mm")
    found = backtrack(first, Neighbours(RULES), weighed(0.0), Budget(1.05, 5, 50, 2))
    assert len(found) == 2 and found[0].steps[0].nodes == ("p", "pb")
    merged, itself = (renamed(one, moved(one.graph, first, second)) for one in found)
    assert itself.graph is second and not itself.steps
    assert merged.price == found[0].price and merged.steps[0].nodes == ("mm", "mmb")
    equal(second, merged.graph)
    assert {c.digest for c in merged.graph.constants} == {"mmw", "mmv"}
    assert {line for node in merged.graph.nodes for line in node.origin.split(" + ")} == {
        "line mm1",
        "line mm2",
    }
    back, _ = moved(merged.graph, second, first)
    assert signature(back) == signature(replace(found[0].graph, name="g"))

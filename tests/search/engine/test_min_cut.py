"""Cutting: parts hold every node once, in order, below their size, and where rules do not reach."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, read

from anabranch.ir.graph import Graph
from anabranch.ir.rule import Rule, wild
from anabranch.rewrite.pattern_ops import call, relu, t
from anabranch.rewrite.rules.always import RULES
from anabranch.search.engine.min_cut import parts
from anabranch.search.engine.stitch import Wiring

x, y, w, v = wild("x y w v")
TWICE = Rule("relu(relu(x)) -> relu(x)", find=relu(relu(x)), replace=relu(x))
SISTERS = Rule(
    "x@w, x@v -> one product",
    find=(call("aten.mm.default", x, w), call("aten.mm.default", x, v)),
    replace=(x, x),
)


def chain(*ops: str) -> Graph:
    """Operators one after another: %n0 reads %x, and so on."""
    lines = [
        f"  %n{i}: f32[4,4] = aten.{op}.default(%{f'n{i - 1}' if i else 'x'})\n"
        for i, op in enumerate(ops)
    ]
    return read(
        "graph g {\n  input %x: f32[4,4]\n" + "".join(lines) + f"  return %n{len(ops) - 1}\n}}"
    )


@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 9), st.booleans())
@settings(max_examples=30)
def test_parts_hold_each_node_once_in_order(
    seed: int, size: int, size_l: int, between_cells: bool
) -> None:
    graph = drawn(seed, size)
    cut = parts(graph, RULES, size_l, between_cells)
    wiring = Wiring.of(graph)
    flat = [name for part in cut for name in part]
    assert sorted(flat) == sorted(node.name for node in graph.nodes)
    assert all(wiring.size(part) < max(size_l, 2) for part in cut)
    done = {value.name for value in graph.inputs} | {c.name for c in graph.constants}
    for name in flat:
        node = graph.nodes[wiring.place[name]]
        assert done.issuperset(node.uses)
        done.update(node.results)
    assert cut == parts(graph, RULES, size_l, between_cells)


def test_a_graph_without_nodes_has_no_parts() -> None:
    assert parts(read("graph g {\n  input %x: f32[4]\n  return %x\n}"), RULES, 4) == ()


def test_a_cut_spares_matches_before_it_looks_for_the_middle() -> None:
    """Equal otherwise, the middle is best; a match astride it moves the cut behind or before it."""
    plain = chain("neg", "relu", "sigmoid", "neg", "sigmoid", "neg", "exp", "neg")
    assert [len(part) for part in parts(plain, [TWICE], 5)] == [4, 4]
    astride = chain("neg", "relu", "sigmoid", "relu", "relu", "neg", "exp", "neg")
    for between_cells in (True, False):
        assert [len(part) for part in parts(astride, [TWICE], 6, between_cells)] == [5, 3]


def test_a_cut_spares_narrow_seams() -> None:
    """Two values cross the middle, one crosses before the last two nodes."""
    graph = read("""graph g {
      input %x: f32[4]
      %a: f32[4] = aten.neg.default(%x)
      %b: f32[4] = aten.exp.default(%a)
      %c: f32[4] = aten.exp.default(%b)
      %d: f32[4] = aten.neg.default(%b)
      %e: f32[4] = aten.sin.default(%c)
      %f: f32[4] = aten.cos.default(%d)
      %g: f32[4] = aten.add.Tensor(%e, %f)
      %h: f32[4] = aten.neg.default(%g)
      return %h
    }""")
    assert parts(graph, [], 7) == (("a", "b"), ("c", "d", "e", "f", "g", "h"))


def test_roots_of_one_match_stay_together() -> None:
    """No edge connects the two products; they are one match all the same, and the cut moves."""
    graph = read("""graph g {
      input %x: f32[4,4]
      const %w: f32[4,4] = w
      const %v: f32[4,4] = v
      %a: f32[4,4] = aten.mm.default(%x, %w)
      %b: f32[4,4] = aten.softmax.int(%a, 0)
      %c: f32[4,4] = aten.softmax.int(%b, 0)
      %d: f32[4,4] = aten.mm.default(%x, %v)
      %e: f32[4,4] = aten.mm.default(%c, %d)
      %f: f32[4,4] = aten.softmax.int(%e, 0)
      return %f
    }""")
    assert parts(graph, [], 5) == (("a", "b", "c"), ("d", "e", "f"))
    assert parts(graph, [SISTERS], 5) == (("a", "b", "c", "d"), ("e",), ("f",))


def test_what_becomes_one_launch_stays_together() -> None:
    """The middle lies between a convolution and its relu, and is one launch."""
    ops = ("t", "t", "t", "t", "neg", "t", "t", "t")
    assert [len(part) for part in parts(chain(*ops), [], 5)] == [3, 2, 3]


def test_equal_cells_are_cut_at_equal_places() -> None:
    """Whatever pieces the halving leaves, and though several seams are as narrow."""
    lines = []
    for i in range(13):
        x, y = (f"f{i - 1}", f"f{i - 2}" if i > 1 else "x") if i else ("x", "x")
        lines += [
            f"  %a{i}: f32[4] = aten.relu.default(%{x})",
            f"  %b{i}: f32[4] = aten.exp.default(%a{i})",
            f"  %c{i}: f32[4] = aten.neg.default(%a{i})",
            f"  %d{i}: f32[4] = aten.sub.Tensor(%b{i}, %{y})",
            f"  %e{i}: f32[4] = aten.mul.Tensor(%c{i}, %d{i})",
            f"  %f{i}: f32[4] = aten.add.Tensor(%e{i}, %b{i})",
        ]
    text = ["graph g {", "  input %x: f32[4]", *lines, "  return %f12", "}"]
    cut = parts(read("\n".join(text)), [], 12)
    # The last one has no reader of its own: there a relu is the only one of what it reads.
    starts = {part[0][0] for part in cut[1:-1]}
    assert len(starts) == 1 and len(cut) >= 7


def test_what_depends_on_constants_alone_stands_with_its_reader() -> None:
    graph = read("""graph g {
      input %x: f32[4,4]
      const %w: f32[4,4] = w
      %wt: f32[4,4]{1,4} = aten.t.default(%w)
      %a: f32[4,4] = aten.neg.default(%x)
      %b: f32[4,4] = aten.exp.default(%a)
      %c: f32[4,4] = aten.mm.default(%b, %wt)
      %d: f32[4,4] = aten.relu.default(%c)
      return %d
    }""")
    assert parts(graph, [Rule("t(t(x)) -> x", find=t(t(x)), replace=x)], 3) == (
        ("a", "b"),
        ("wt", "c", "d"),
    )


@pytest.mark.parametrize("size_l", [2, 5])
def test_only_constants(size_l: int) -> None:
    graph = read("""graph g {
      const %w: f32[4,4] = w
      %a: f32[4,4] = aten.neg.default(%w)
      return %a
    }""")
    assert parts(graph, [], size_l) == (("a",),)

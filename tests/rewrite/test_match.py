from __future__ import annotations

import pytest

from anabranch.errors import VerifyError
from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Each, Match, Rule, verify_rule, wild
from anabranch.ir.text import parse_graph
from anabranch.rewrite.match import matches, shared
from anabranch.rewrite.pattern_ops import call, cat, convolution, relu
from anabranch.rewrite.rules import ALL
from anabranch.search.engine.min_cut import parts

x, y, s, b, w = wild("x y s b w")

SUMS = parse_graph("""
graph sums {
  input %p: f32[2]
  input %q: f32[2]
  %a: f32[2] = aten.mul.Tensor(%p, %q)
  %b: f32[2] = aten.mul.Tensor(%q, %p)
  %c: f32[2] = aten.add.Tensor(%a, %b)
  %d: f32[2] = aten.add.Tensor(%c, %p, alpha=2)
  return %d, %a
}""")


def found(rule: Rule) -> list[str]:
    return [match.root.name for match in matches(SUMS, rule)]


def test_operands_of_sums_and_products_are_found_in_both_orders() -> None:
    rule = Rule("x*s + x*s -> 2*(x*s)", find=x * s + x * s, replace=(x * s) * 2)
    assert found(rule) == ["c", "c"]
    orders = {(m.x.arg, m.s.arg) for m in matches(SUMS, rule)}
    assert len(orders) == 2


def test_an_argument_left_out_must_have_its_default() -> None:
    assert set(found(Rule("x + y -> y + x", find=x + y, replace=y + x))) == {"c"}


def test_the_rest_is_captured_as_a_whole() -> None:
    plus = call("aten.add.Tensor", x, y, rest="rest")
    match = next(m for m in matches(SUMS, Rule("a -> b", plus, x)) if m.root.name == "d")
    assert match.rest.arg == (2,)


def test_a_number_is_no_truth_value() -> None:
    graph = parse_graph("""
    graph g {
      input %x: f32[2]
      %a: f32[2] = aten.mul.Tensor(%x, True)
      %b: f32[2] = aten.mul.Tensor(%x, 1.0)
      return %a, %b
    }""")
    assert [m.root.name for m in matches(graph, Rule("x*1 -> x", x * 1, x))] == ["b"]


def test_a_condition_refuses_with_a_sentence() -> None:
    heard: list[tuple[str, str]] = []

    def never(match: Match) -> Refused:
        return Refused(f"{match.x.shape} is too small")

    rule = Rule("x*s -> s*x", x * s, s * x, when=never)
    assert list(matches(SUMS, rule, lambda what, why: heard.append((what, why)))) == []
    assert heard[0] == ("x*s -> s*x at %a", "(2,) is too small")


def test_nodes_that_others_read_are_shared() -> None:
    rule = Rule("x*s + y -> y", find=x * s + y, replace=y)
    names = {tuple(node.name for node in shared(SUMS, match)) for match in matches(SUMS, rule)}
    assert names == {("a",), ()}


def test_lists_and_several_levels() -> None:
    graph = parse_graph("""
    graph g {
      input %i: f32[1,2,4,4]
      const %w: f32[2,2,1,1] = w
      %c: f32[1,2,4,4] = aten.convolution.default(%i, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
      %r: f32[1,2,4,4] = aten.relu.default(%c)
      %j: f32[1,4,4,4] = aten.cat.default([%r, %i], 1)
      return %j
    }""")  # noqa: E501
    rule = Rule("cat -> x", find=cat((relu(convolution(x, w, b, rest="window")), y), 1), replace=x)
    match = next(matches(graph, rule))
    assert [node.name for node in match.nodes] == ["j", "r", "c"]
    assert match.w.constant and not match.x.constant and match.b.arg is None
    assert match.window.arg == ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)


def test_a_concatenation_with_an_empty_vector_among_matrices_matches_nothing() -> None:
    graph = parse_graph("""
    graph g {
      input %x: f16[4,4]
      input %none: f32[0]
      %a: f32[4,8] = aten.cat.default([%none, %x, %x], 1)
      %b: f32[4,4] = aten.slice.Tensor(%a, 1, 2, 6)
      %c: f32[4,8] = aten.relu.default(%a)
      return %b, %c
    }""")
    heard: list[str] = []
    found = [m for rule in ALL for m in matches(graph, rule, lambda what, why: heard.append(why))]
    assert not [match for match in found if "a" in {node.name for node in match.nodes}]
    assert "%a joins values of several ranks" in heard


def test_a_condition_that_fails_is_a_refusal_where_refusals_are_heard() -> None:
    heard: list[str] = []

    def fails(match: Match) -> Refused | None:
        return Refused("it is empty") if match.x.shape[7] == 0 else None

    rule = Rule("x*s -> s*x", x * s, s * x, when=fails)
    assert list(matches(SUMS, rule, lambda what, why: heard.append(why))) == []
    assert set(heard) == {"its condition cannot be told: tuple index out of range"}
    with pytest.raises(IndexError):
        list(matches(SUMS, rule))
    assert parts(SUMS, [rule], 2)  # a graph is cut all the same


ROOTS = parse_graph("""
graph roots {
  input %p: f32[2]
  input %q: f32[2]
  %a: f32[2] = aten.relu.default(%p)
  %b: f32[2] = aten.relu.default(%q)
  %c: f32[2] = aten.neg.default(%p)
  %d: f32[6] = aten.cat.default([%c, %a, %b])
  %e: f32[6] = aten.cat.default([%a, %b, %c])
  %f: f32[6] = aten.cat.default([%b, %a, %b])
  return %d, %e, %f
}""")


def test_each_stands_for_as_many_calls_as_there_are() -> None:
    each = Each(relu(x))
    alone = Rule("cat(relu, ...) -> relu(cat)", cat((each,), y), x)
    behind = Rule("cat(y, relu, ...) -> relu(cat)", cat((s, each), y), x)
    before = Rule("cat(relu, ..., y) -> relu(cat)", cat((each, s), y), x)
    found = {
        rule.name: [(m.root.name, m.bound["x"]) for m in matches(ROOTS, rule)]
        for rule in (alone, behind, before)
    }
    p, q = Ref("p"), Ref("q")
    assert found == {
        alone.name: [("f", (q, p, q))],
        behind.name: [("d", (p, q)), ("f", (p, q))],
        before.name: [("e", (p, q)), ("f", (q, p))],
    }
    (match,) = matches(ROOTS, alone)
    assert [node.name for node in match.nodes] == ["f", "b", "a"]


def test_what_is_in_each_may_not_be_outside_of_it() -> None:
    with pytest.raises(VerifyError, match=r"'x'.*in and outside of each"):
        verify_rule(Rule("cat(x, relu(x), ...) -> x", cat((x, Each(relu(x))), y), y))


def test_each_is_once_in_a_tuple_and_of_what_is_found() -> None:
    each, other = Each(relu(x)), Each(relu(s))
    with pytest.raises(VerifyError, match="each of several"):
        verify_rule(Rule("cat(relu, ..., relu, ...) -> y", cat((each, other), y), y))
    with pytest.raises(VerifyError, match="only found"):
        verify_rule(Rule("y -> cat(relu, ...)", cat((each,), y), cat((each,), y)))

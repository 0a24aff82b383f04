from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.errors import VerifyError
from anabranch.ir.rule import Rule, verify_rule, wild
from anabranch.ir.text import text_graph
from anabranch.rewrite.apply import apply, apply_all
from anabranch.rewrite.match import matches
from anabranch.rewrite.pattern_ops import call, cat, linear, relu
from anabranch.rewrite.prove import different
from anabranch.rewrite.rules import CANDIDATES

x, s, t = wild("x s t")

FACTORED = Rule("x*s + x*t -> x*(s + t)", find=x * s + x * t, replace=x * (s + t))


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %a: f32[2,3]
      const %u: f32[3] = u
      const %v: f32[3] = v
      %m: f32[2,3] = aten.mul.Tensor(%u, %a)    # net.py:1
      %n: f32[2,3] = aten.mul.Tensor(%a, %v)    # net.py:2
      %add: f32[2,3] = aten.add.Tensor(%m, %n)    # net.py:2
      %out: f32[2,3] = aten.relu.default(%add)
      return %out
    }""")
    match = next(matches(graph, FACTORED))
    after = equal(graph, apply(graph, FACTORED, match))
    assert (
        text_graph(after)
        == """\
graph g {
  input %a: f32[2,3]
  const %u: f32[3] = u
  const %v: f32[3] = v
  %add_1: f32[3] = aten.add.Tensor(%u, %v)    # net.py:2 + net.py:1
  %add: f32[2,3] = aten.mul.Tensor(%a, %add_1)    # net.py:2 + net.py:1
  %out: f32[2,3] = aten.relu.default(%add)
  return %out
}
"""
    )


def test_a_replacement_of_another_shape_is_refused() -> None:
    graph = read("graph g {\n  input %a: f32[2,3]\n  %r: f32[2,3] = aten.relu.default(%a)\n"
                 "  return %r\n}")  # fmt: skip
    turned = Rule("relu(x) -> x.T", find=relu(x), replace=call("aten.t.default", x))
    with pytest.raises(ValueError, match=r"makes f32\[3,2\].* of f32\[2,3\]"):
        apply(graph, turned, next(matches(graph, turned)))
    broken = Rule("relu(x) -> x[]", find=relu(x), replace=call("aten.reshape.default", x, (7,)))
    with pytest.raises(ValueError, match="cannot be built"):
        apply(graph, broken, next(matches(graph, broken)))


def test_a_rule_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(VerifyError, match="does not bind"):
        verify_rule(Rule("relu(x) -> s", find=relu(x), replace=s))
    with pytest.raises(VerifyError, match="not an equation"):
        verify_rule(Rule("nothing", find=relu(x), replace=x))
    with pytest.raises(VerifyError, match="takes only 1"):
        verify_rule(Rule("relu(x, s) -> x", call("aten.relu.default", x, s), x))


w, v = wild("w v")
STACKED = Rule(
    "linear(x, w), linear(x, v) -> split(linear(x, cat(w, v)))",
    find=(linear(x, w), linear(x, v)),
    replace=lambda match: (
        call("aten.slice.Tensor", linear(x, cat((w, v))), 1, 0, match.w.shape[0]),
        call("aten.slice.Tensor", linear(x, cat((w, v))), 1, match.w.shape[0], 1000),
    ),
)

ENTANGLED = """
graph g {
  input %x: f32[2,3]
  const %w: f32[3,3] = w
  const %v: f32[3,3] = v
  %a: f32[2,3] = aten.linear.default(%x, %w)
  %r: f32[2,3] = aten.relu.default(%a)
  %t: f32[3,3] = aten.relu.default(%v)
  %d: f32[2,3] = aten.linear.default(%x, %t)
  %e: f32[2,3] = aten.linear.default(%r, %t)
  %f: f32[2,3] = aten.add.Tensor(%d, %e)
  return %f
}"""


def test_several_roots_are_replaced_together() -> None:
    """The reader of the first stands before what the second reads: it moves. The third reads what
    depends on the first, and with that one it can not be computed together."""
    verify_rule(STACKED)
    graph = read(ENTANGLED)
    found = list(matches(graph, STACKED))
    assert [[root.name for root in match.roots] for match in found] == [["a", "d"]]
    after = equal(graph, apply(graph, STACKED, found[0]))
    assert not different(graph, after)
    assert [n.name for n in after.nodes] == ["t", "cat", "linear", "a", "d_1", "r", "e", "f"]


def test_as_many_values_as_roots() -> None:
    with pytest.raises(VerifyError, match="finds 2 values and puts 1"):
        verify_rule(Rule("a, b -> c", find=(relu(x), relu(s)), replace=(relu(x),)))


CONV = "aten.convolution.default(%x, %w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)"
CUT = """
graph g {
  input %x: f32[2,4,5,5]
  const %w: f32[6,4,1,1] = w
  %c: f32[2,6,5,5] = CONV
  %s: f32[2,4,5,5]{150,25,5,1}, %s.1: f32[2,2,5,5]{150,25,5,1} = SPLIT
  %t: f32[2,4,5,5] = aten.tanh.default(%s)
  return %t, %s.1
}"""


@pytest.mark.parametrize(
    "split",
    ["aten.split.Tensor(%c, 4, 1)", "aten.split_with_sizes.default(%c, [4, 2], -3)"],
)
def test_each_result_is_replaced(split: str) -> None:
    """A split of what a convolution makes becomes slices, and these two convolutions."""
    rules = {
        rule.name: rule
        for name in ("concat_slice", "transposed_operands")
        for rule in CANDIDATES[name]
    }
    graph = read(CUT.replace("SPLIT", split).replace("CONV", CONV))
    apart = [rule for name, rule in rules.items() if name.startswith("split(")]
    cut = equal(graph, apply_all(graph, apart))
    assert kinds(cut) == ["convolution", "slice", "slice", "tanh"]
    through = rules["slice(conv(x, w, b), channels) -> conv(x, slice(w), slice(b))"]
    assert kinds(equal(graph, apply_all(cut, [through]))).count("convolution") == 2

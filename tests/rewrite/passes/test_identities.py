from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.graph import Ref
from anabranch.ir.rule import Match, Rule
from anabranch.ir.text import text_graph
from anabranch.rewrite import apply
from anabranch.rewrite.build import Builder
from anabranch.rewrite.passes.identities import identities
from anabranch.rewrite.rules.always import RULES
from anabranch.trace import Trace

IDLE = (
    *("add.Tensor({0}, -0.0)", "sub.Tensor({0}, 0)", "mul.Tensor({0}, 1.0)", "div.Tensor({0}, 1)"),
    *("pow.Tensor_Scalar({0}, 1)", "dropout.default({0}, 0.5, False)"),
    *(f"{kind}dropout.default({{0}}, 0.5, False)" for kind in ("feature_", "alpha_")),
    *("feature_alpha_dropout.default({0}, 0.5, False)", "alias.default({0})"),
    *("detach.default({0})", "lift_fresh.default({0})", "clone.default({0})"),
    *("_to_copy.default({0}, dtype=torch.float32)", "slice.Tensor({0}, 0, 0, 9)"),
    *("expand.default({0}, [4, 4])", "reshape.default({0}, [4, 4])"),
    *("permute.default({0}, [0, 1])", "transpose.int({0}, 1, 1)", "cat.default([{0}], 1)"),
)
"""Calls of what is 4 by 4 that give it back."""


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %d: f32[2,3] = aten.dropout.default(%x, 0.5, False)
      %a: f32[2,3] = aten.sub.Tensor(%d, 0.0)
      %t: f32[3,2]{1,3} = aten.t.default(%a)
      %u: f32[2,3] = aten.t.default(%t)
      %r: f32[2,3] = aten.relu.default(%u)
      return %r
    }""")
    after = equal(graph, identities(graph, Trace()))
    assert text_graph(after).splitlines()[2:-1] == [
        "  %r: f32[2,3] = aten.relu.default(%x)",
        "  return %r",
    ]


def test_zeros_keep_their_signs() -> None:
    """-0.0 + 0.0 is 0.0, and so is -0.0 - -0.0."""
    graph = read("""
    graph g {
      input %x: f32[2,3]
      input %i: i64[2,3]
      %a: f32[2,3] = aten.add.Tensor(%x, 0)
      %b: f32[2,3] = aten.add.Tensor(%a, 0.0)
      %c: f32[2,3] = aten.sub.Tensor(%b, -0.0)
      %j: i64[2,3] = aten.add.Tensor(%i, 0)
      %k: i64[2,3] = aten.neg.default(%j)
      return %c, %k
    }""")
    assert kinds(identities(graph, Trace())) == ["add", "add", "sub", "neg"]


def test_what_only_looks_idle_stays() -> None:
    """Adding zero may broadcast or promote; a clone may change strides; dropout may train."""
    graph = read("""
    graph g {
      input %x: f32[2,3]
      input %i: i64[2,3]
      const %z: f32[2,2,3] = z
      %p: f32[2,3] = aten.mul.Tensor(%i, 1.0)
      %t: f32[3,2]{1,3} = aten.t.default(%x)
      %c: f32[3,2] = aten.clone.default(%t, memory_format=torch.contiguous_format)
      %d: f32[2,3] = aten.dropout.default(%p, 0.5, True)
      return %p, %c, %d
    }""")
    assert kinds(identities(graph, Trace())) == ["mul", "t", "clone", "dropout"]


def test_a_copy_of_what_the_caller_owns_is_returned_as_a_copy() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %v: f32[3,2] = aten.reshape.default(%x, [3, 2])
      %c: f32[3,2] = aten.clone.default(%v)
      %r: f32[3,2] = aten.relu.default(%v)
      %d: f32[3,2] = aten.clone.default(%r)
      return %c, %d
    }""")
    after = equal(graph, identities(graph, Trace()))
    assert kinds(after) == ["reshape", "clone", "relu"]
    assert [ref.name for ref in after.outputs] == ["c", "r"]


def test_rows_are_counted_once() -> None:
    """A linear with its rows as one axis, as GPT-2 has it, is one of rows as they come; but not if
    somebody else reads it, too."""
    text = """
    graph g {{
      input %x: f32[2,3,4]
      const %w: f32[5,4] = w
      %r: f32[6,4] = aten.reshape.default(%x, [-1, 4])
      %l: f32[6,5] = aten.linear.default(%r, %w)
      %s: f32[2,3,5] = aten.reshape.default(%l, [2, 3, 5])
      return {0}
    }}"""
    alone, read_twice = (read(text.format(returned)) for returned in ("%s", "%s, %l"))
    after = equal(alone, identities(alone, Trace()))
    assert kinds(after)[-1] == "linear" and after.nodes[-1].type.shape == (2, 3, 5)
    assert identities(read_twice, Trace()) is read_twice


def test_every_rule_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somewhere in a graph that has each of them in the middle, and none is left in the end."""
    lines = ["%v0: f32[4,4] = aten.relu.default(%x)"]
    for i, call in enumerate(IDLE):
        lines.append(f"%v{i + 1}: f32[4,4] = aten.{call.format(f'%v{i}')}")
    graph = read(f"""
    graph g {{
      input %x: f32[4,4]
      const %w: f32[3,8] = w
      {"  ".join(f"{line}{chr(10)}" for line in lines)}
      %a: f32[4,4]{{1,4}} = aten.transpose.int(%v{len(IDLE)}, 0, 1)
      %b: f32[4,4] = aten.transpose.int(%a, 0, 1)
      %c: f32[4,4]{{1,4}} = aten.transpose.int(%b, 0, 1)
      %d: f32[4,4] = aten.transpose.int(%c, 1, 0)
      %e: f32[4,4]{{1,4}} = aten.t.default(%d)
      %f: f32[4,4] = aten.t.default(%e)
      %g: f32[4,4]{{1,4}} = aten.permute.default(%f, [1, 0])
      %h: f32[4,4] = aten.permute.default(%g, [1, 0])
      %i: f32[16] = aten.reshape.default(%h, [16])
      %j: f32[2,8] = aten.reshape.default(%i, [2, 8])
      %k: f32[2,3] = aten.linear.default(%j, %w)
      %l: f32[1,2,3] = aten.reshape.default(%k, [1, 2, 3])
      %m: f32[1,2,3] = aten.sum.dim_IntList(%l, [0], True)
      return %m
    }}""")
    applied, substitute = set[str](), apply.substitute

    def noted(builder: Builder, rule: Rule, match: Match) -> tuple[Ref, ...]:
        applied.add(rule.name)
        return substitute(builder, rule, match)

    monkeypatch.setattr(apply, "substitute", noted)
    after, before = identities(graph, Trace()), graph
    while after is not before:
        after, before = identities(after, Trace()), after
    assert [rule.name for rule in RULES if rule.name not in applied] == []
    assert kinds(equal(graph, after)) == ["relu", "reshape", "linear"]


def test_exactly_what_changes_the_sign_of_a_zero_stays() -> None:
    """-0 + 0 is 0; -0 * 1 is what it was."""
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %a: f32[2,3] = aten.add.Tensor(%x, 0)
      %r: f32[2,3] = aten.relu.default(%a)
      %b: f32[2,3] = aten.mul.Tensor(%r, 1)
      %s: f32[2,3] = aten.sin.default(%b)
      return %s
    }""")
    assert list(kinds(identities(graph, Trace(), exact=True))) == ["add", "relu", "sin"]

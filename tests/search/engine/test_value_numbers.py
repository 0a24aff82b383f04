"""Keys of graphs: blind to names and order, not to anything else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.rewrite.graphs import drawn, read

from anabranch.ir.graph import Graph
from anabranch.rewrite.build import drop_dead
from anabranch.rewrite.passes.cse import cse
from anabranch.search.engine.value_numbers import Expressions, repeated
from anabranch.trace import Trace


def graph(*lines: str) -> Graph:
    head = "  input %x: f32[4]\n  input %y: f32[4]\n  const %w: f32[4] = w\n"
    body = "".join(f"  %{line}\n" for line in lines[:-1])
    return read(f"graph g {{\n{head}{body}  return {lines[-1]}\n}}")


ONE = graph(
    "a: f32[4] = aten.exp.default(%x)",
    "b: f32[4] = aten.neg.default(%y)",
    "c: f32[4] = aten.add.Tensor(%a, %b)",
    "%c",
)


def test_names_order_and_spelling_do_not_count() -> None:
    other = graph(
        "m: f32[4] = aten.neg.default(%y)",
        "n: f32[4] = aten.exp.default(%x)",
        "c: f32[4] = aten.add.Tensor(%m, %n, alpha=1)",
        "%c",
    )
    swapped = graph(
        "m: f32[4] = aten.neg.default(%y)",
        "n: f32[4] = aten.exp.default(%x)",
        "s: f32[4] = aten.add.Tensor(%m, %n)",
        "%s",
    )
    keys = Expressions()
    assert keys.of(ONE) == keys.of(swapped)
    assert keys.of(ONE) != keys.of(other)  # an alpha could scale the second operand


def test_everything_else_counts() -> None:
    keys = Expressions()
    others = [
        graph("a: f32[4] = aten.exp.default(%y)", "%a"),
        graph("a: f32[4] = aten.exp.default(%x)", "%a"),
        graph("a: f32[4] = aten.exp.default(%w)", "%a"),
        graph("a: f32[4] = aten.neg.default(%x)", "%a"),
        graph("a: f32[4] = aten.neg.default(%x)", "%a, %a"),
        graph("a: f32[4] = aten.sub.Tensor(%x, %y)", "%a"),
        graph("a: f32[4] = aten.sub.Tensor(%y, %x)", "%a"),
        graph("a: f32[4] = aten.mul.Tensor(%x, 1)", "%a"),
        graph("a: f32[4] = aten.mul.Tensor(%x, 1.0)", "%a"),
    ]
    assert len({keys.of(other) for other in others}) == len(others)


def test_random_nodes_are_not_one() -> None:
    draws = ("a: f32[4] = aten.rand.default([4])", "b: f32[4] = aten.rand.default([4])")
    two = graph(*draws, "c: f32[4] = aten.sub.Tensor(%a, %b)", "%c")
    one = graph(*draws, "c: f32[4] = aten.sub.Tensor(%a, %a)", "%c")
    keys = Expressions()
    assert keys.of(two) != keys.of(one)
    assert not repeated(two, keys.keys(two))


@given(st.integers(0, 10**6))
def test_eliminating_what_is_repeated_keeps_the_key(seed: int) -> None:
    before = drop_dead(drawn(seed, 20))
    after = cse(before, Trace())
    keys = Expressions()
    assert keys.of(before) == keys.of(after)
    if len(after.nodes) < len(before.nodes):
        assert repeated(before, keys.keys(before))

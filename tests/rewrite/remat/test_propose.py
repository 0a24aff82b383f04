"""What is proposed to be computed again."""

from __future__ import annotations

from anabranch.ir import ops
from anabranch.ir.text import parse_graph
from anabranch.rewrite.remat.live_bytes import LiveBytes
from anabranch.rewrite.remat.propose import by_price, crossing, minimum_cut, segments


def chain(depth: int) -> str:
    """Products and activations, all of which a backward pass reads in the other order."""
    lines = ["graph g {", "  input %x: f32[64,64]", "  const %w: f32[64,64] = 1"]
    value = "x"
    for i in range(depth):
        lines.append(f"  %m{i}: f32[64,64] = aten.mm.default(%{value}, %w)")
        lines.append(f"  %r{i}: f32[64,64] = aten.relu.default(%m{i})")
        value = f"r{i}"
    for i in reversed(range(depth)):
        lines.append(f"  %g{i}: f32[64,64] = aten.mul.Tensor(%{value}, %r{i})")
        value = f"g{i}"
    return "\n".join([*lines, f"  return %{value}", "}"])


GRAPH = parse_graph(chain(6))
LIVE = LiveBytes.of(GRAPH)
BORDER = 11
"""The last activation."""


def names(numbers: object) -> set[str]:
    return {GRAPH.nodes[i].name for i in numbers}  # type: ignore[attr-defined]


def test_what_crosses_the_border_may_run_again() -> None:
    assert names(crossing(LIVE, BORDER)) == {f"r{i}" for i in range(6)}


def test_as_few_as_the_limit_asks_for_the_cheapest_first() -> None:
    us = [float(i) for i in range(len(GRAPH.nodes))]
    found = by_price(LIVE, BORDER, us, lambda again: len(again) >= 3)
    assert names(found) == {"r0", "r1", "r2"}
    assert len(by_price(LIVE, BORDER, us, lambda again: False)) == 6, "all, where none fit"


def test_products_are_kept_by_a_minimum_cut_if_they_are_heavy() -> None:
    heavy = {i for i, n in enumerate(GRAPH.nodes) if ops.info(n.op).kind == "contract"}
    assert minimum_cut(LIVE, BORDER, {*heavy, 11}) <= {1, 3, 5, 7, 9}, "no product"
    assert minimum_cut(LIVE, BORDER, ()) == frozenset(range(BORDER + 1)), "what is given is free"


def test_pieces_keep_what_crosses_their_ends() -> None:
    kept = [set(range(BORDER + 1)) - again for again in segments(LIVE, BORDER)]
    assert [names(one) for one in kept[:2]] == [{"r2"}, {"r1", "r3"}]
    kept_all = LIVE.peak(LIVE.order((), BORDER), LIVE.renewed((), BORDER), BORDER)
    for again in segments(LIVE, BORDER):
        runs, renewed = LIVE.order(again, BORDER), LIVE.renewed(again, BORDER)
        assert len(runs) == len(set(runs)), "each once, and once again"
        assert LIVE.peak(runs, renewed, BORDER)[0] < kept_all[0]

"""Which bytes live when a graph runs in its order, with and without values computed again."""

from __future__ import annotations

from anabranch.ir.text import parse_graph
from anabranch.rewrite.remat.live_bytes import LiveBytes

LATE = """graph g {
  input %x: f32[256]
  %a: f32[256] = aten.exp.default(%x)
  %v: f32[16,16] = aten.view.default(%a, [16, 16])
  %b: f32[256] = aten.neg.default(%a)
  %c: f32[256] = aten.sin.default(%b)
  %s: f32[] = aten.sum.default(%c)
  %d: f32[16,16] = aten.mul.Tensor(%v, %s)
  return %d
}"""
A, V, B, C, S, D = range(6)
KIB = 1024


def test_what_is_read_late_dies_early_if_it_runs_again() -> None:
    live = LiveBytes.of(parse_graph(LATE))
    assert live.roots == (A, A, B, C, S, D), "a view has the memory of what it shows"
    assert live.readers()[A] == [B, D]
    kept = live.order((), C)
    assert kept == [(i, False) for i in range(6)]
    assert live.peak(kept, live.renewed((), C), C) == (3 * KIB, 3), "a, b and c"
    again = live.order({A}, C)
    assert again == [*((i, False) for i in range(5)), (A, True), (V, True), (D, False)]
    assert live.peak(again, live.renewed({A}, C), C) == (2 * KIB + 4, 7), "a again, s and d"


STATES = """graph g {
  input %x: f32[256]
  state %n: f32[256] -> %n_2
  state %m: f32[256] -> %m_1
  %a: f32[256] = aten.add.Tensor(%x, %n)
  %n_1: f32[256] = aten.index_fill.int_Scalar(%n, 0, %i, 1.0)
  %b: f32[256] = aten.add.Tensor(%x, %m)
  %c: f32[256] = aten.mul.Tensor(%a, %b)
  %m_1: f32[256] = aten.copy.default(%m, %c)
  return %n_1, %m_1
}"""


def test_what_reads_a_state_may_run_again_until_that_is_written_over() -> None:
    text = STATES.replace("%n_2", "%n_1").replace("  input %x", "  input %i: i64[4]\n  input %x")
    live = LiveBytes.of(parse_graph(text))
    assert live.repeatable == {2, 3}, "a reads %n, which is written over before the end"
    assert [live.nbytes[1], live.nbytes[4]] == [0, 0], "these have the memory of their states"

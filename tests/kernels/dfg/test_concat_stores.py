"""Concatenations of parts that are computed in the body, and recurrences: several stores."""

from __future__ import annotations

import pytest
from tests.kernels.triton.bodies import gpu, read
from tests.kernels.triton.interpreter import check

from anabranch.kernels.dfg.expr import Dfg, all_parts
from anabranch.kernels.dfg.lower import lower
from anabranch.kernels.dfg.text import text_dfg
from anabranch.kernels.triton.codegen import variants


def recurrence(steps: int, channels: int, dtype: str = "f32") -> str:
    """c_t = f_t c_(t-1) + (1 - f_t) z_t and h_t = tanh(c_t), all h_t stacked."""
    row, rows = f"{dtype}[1,{channels}]", f"{dtype}[{steps},1,{channels}]"
    wide = f"{{{2 * channels},{2 * channels},1}}"
    lines = [
        f"input %lin: {dtype}[{steps},1,{2 * channels}]",
        f"input %c: {row}",
        f"%z: {rows}{wide}, %z.1: {rows}{wide} = aten.split.Tensor(%lin, {channels}, -1)",
        f"%f: {rows} = aten.sigmoid.default(%z.1)",
    ]
    before = "%c"
    for t in range(steps):
        lines += [
            f"%f{t}: {row} = aten.select.int(%f, 0, {t})",
            f"%z{t}: {row}{{{2 * channels},1}} = aten.select.int(%z, 0, {t})",
            f"%a{t}: {row} = aten.mul.Tensor(%f{t}, {before})",
            f"%o{t}: {row} = aten.rsub.Scalar(%f{t}, 1)",
            f"%b{t}: {row} = aten.mul.Tensor(%o{t}, %z{t})",
            f"%c{t}: {row} = aten.add.Tensor(%a{t}, %b{t})",
            f"%h{t}: {row} = aten.tanh.default(%c{t})",
        ]
        before = f"%c{t}"
    joined = ", ".join(f"%h{t}" for t in range(steps))
    lines.append(f"%s: {rows} = aten.stack.default([{joined}])")
    body = "\n".join(f"  {line}" for line in lines)
    return f"graph g {{\n{body}\n  return %s, {before}\n}}"


def test_each_step_is_a_store() -> None:
    found = lower(read(recurrence(2, 8)))
    assert isinstance(found, Dfg)
    assert (
        text_dfg(found)
        == """\
for n < 1, c < 8:
  t0 = sigmoid(lin[0, 0, c + 8])
  t1 = ((t0 * c[0, c]) + ((1.0 - t0) * lin[0, 0, c]))
  t2 = sigmoid(lin[1, 0, c + 8])
  t3 = ((t2 * t1) + ((1.0 - t2) * lin[1, 0, c]))
  s[0, 0, c] = tanh(t1)
  s[1, 0, c] = tanh(t3)
  c1[0, c] = t3"""
    )


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("steps", [2, 4])
def test_recurrences(steps: int, dtype: str) -> None:
    graph = read(recurrence(steps, 37, dtype))
    check(graph, variants(graph, gpu()))


def test_long_recurrences_are_lowered_without_depth() -> None:
    """As deep as 60 steps; each is computed once, however many read it."""
    found = lower(read(recurrence(60, 8)))
    assert isinstance(found, Dfg), found
    assert len(all_parts(*(store.expr for store in found.stores))) < 60 * 12


def test_parts_and_what_else_is_stored() -> None:
    """A cat along an axis the parts have, of another type and layout, beside a plain result."""
    graph = read("""
    graph g {
      input %x: f16[2,3,5]
      input %y: f32[2,3,5]
      %a: f16[2,3,5] = aten.relu.default(%x)
      %b: f32[2,3,5] = aten.exp.default(%y)
      %s: f32[2,6,5] = aten.cat.default([%a, %b], 1)
      %m: f32[2,3,5] = aten.mul.Tensor(%a, %b)
      return %m, %s
    }""")
    check(graph, variants(graph, gpu()))


def test_parts_of_several_sizes_are_chosen_between() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3,5]
      input %y: f32[2,1,5]
      %a: f32[2,3,5] = aten.relu.default(%x)
      %b: f32[2,1,5] = aten.exp.default(%y)
      %s: f32[2,4,5] = aten.cat.default([%a, %b], 1)
      %e: f32[2,4,5] = aten.exp.default(%s)
      return %s, %e
    }""")
    check(graph, variants(graph, gpu()))


def test_a_part_that_is_read_again() -> None:
    """A slice of a concatenation reads the one part it lies in."""
    graph = read("""
    graph g {
      input %x: f32[4,6]
      %a: f32[4,6] = aten.relu.default(%x)
      %b: f32[4,6] = aten.exp.default(%x)
      %s: f32[2,4,6] = aten.stack.default([%a, %b])
      %t: f32[4,6] = aten.select.int(%s, 0, 1)
      %r: f32[4,6] = aten.neg.default(%t)
      return %s, %r
    }""")
    found = lower(graph)
    assert isinstance(found, Dfg) and "where" not in text_dfg(found)
    check(graph, variants(graph, gpu()))

from __future__ import annotations

from dataclasses import replace

import torch
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.text import parse_graph
from anabranch.rewrite.passes.fold_constants import fold_constants
from anabranch.trace import Trace

TEXT = """
graph g {
  input %x: f32[2,3]
  const %w: f32[3,2] = w
  const %v: f32[2,3] = v
  %t: f32[2,3]{1,2} = aten.t.default(%w)
  %m: f32[2,3]{1,2} = aten.mul.Tensor(%t, %v)
  %e: f32[2,3]{1,2} = aten.exp.default(%m)
  %a: f32[3] = aten.arange.default(3, dtype=torch.float32)
  %y: f32[2,3] = aten.add.Tensor(%x, %e)
  %z: f32[2,3] = aten.add.Tensor(%y, %a)
  return %z
}"""


def test_only_what_is_read_from_outside_is_kept() -> None:
    graph = read(TEXT)
    after = equal(graph, fold_constants(graph, Trace()))
    assert kinds(after) == ["add", "add"]
    assert [constant.name for constant in after.constants] == ["e", "a"]
    assert after.constants[0].type.strides == (1, 2)
    assert fold_constants(after, Trace()) is after


def test_digests_name_the_expression_and_what_it_read() -> None:
    digests = [
        [c.digest for c in fold_constants(read(text), Trace()).constants]
        for text in (
            TEXT,
            TEXT.replace("%m", "%other").replace("%w", "%weight"),
            TEXT.replace("= w", "= u"),
            TEXT.replace("exp", "neg"),
        )
    ]
    assert digests[0] == digests[1]
    assert len({first for first, _ in digests}) == 3
    assert len({second for _, second in digests}) == 1


def test_without_values_nothing_is_folded() -> None:
    graph = parse_graph(TEXT)
    half = replace(graph, constants=(read(TEXT).constants[0], graph.constants[1]))
    assert kinds(fold_constants(graph, Trace())) == kinds(graph)[:3] + kinds(graph)[4:]
    assert "exp" in kinds(fold_constants(half, Trace()))


def test_a_large_value_of_small_ones_is_left_with_a_reason() -> None:
    graph = read("""
    graph g {
      input %x: f32[1024,1024]
      const %w: f32[1] = w
      %n: f32[1] = aten.neg.default(%w)
      %e: f32[1024,1024]{0,0} = aten.expand.default(%n, [1024, 1024])
      %f: f32[1024,1024] = aten.full.default([1024, 1024], 2.0)
      %y: f32[1024,1024] = aten.add.Tensor(%x, %e)
      %z: f32[1024,1024] = aten.add.Tensor(%y, %f)
      return %z
    }""")
    trace = Trace()
    after = equal(graph, fold_constants(graph, trace))
    assert kinds(after) == ["expand", "full", "add", "add"]
    assert [c.name for c in after.constants] == ["n"]
    assert [event.what for event in trace.events if event.kind == "refused"] == ["fold %f"]


def test_a_large_product_of_small_matrices_is_computed_once() -> None:
    """And what is made of it. Else its arithmetic would be done for each input."""
    graph = read("""
    graph g {
      input %x: f32[1024,1024]
      const %w: f32[1024,2] = w
      const %v: f32[1024,2] = v
      %p: f32[1024,1024] = aten.linear.default(%w, %v)
      %n: f32[1024,1024] = aten.neg.default(%p)
      %y: f32[1024,1024] = aten.add.Tensor(%x, %n)
      return %y
    }""")
    after = equal(graph, fold_constants(graph, Trace()))
    assert kinds(after) == ["add"] and [c.name for c in after.constants] == ["n"]


def test_copies_of_a_product_are_not_kept() -> None:
    """Only as much more as the products are."""
    graph = read("""
    graph g {
      input %x: f32[64,256,256]
      const %w: f32[256,2] = w
      const %v: f32[256,2] = v
      %p: f32[256,256] = aten.linear.default(%w, %v)
      %u: f32[1,256,256] = aten.unsqueeze.default(%p, 0)
      %r: f32[64,256,256] = aten.repeat.default(%u, [64, 1, 1])
      %y: f32[64,256,256] = aten.add.Tensor(%x, %r)
      return %y
    }""")
    after = equal(graph, fold_constants(graph, Trace()))
    assert kinds(after)[-2:] == ["repeat", "add"]
    assert max(c.type.numel for c in after.constants) == 256 * 256


def test_what_is_returned_is_computed_anew_each_time() -> None:
    graph = read(
        "graph g {\n  const %w: f32[2] = w\n  %a: f32[2] = aten.exp.default(%w)\n"
        "  %b: f32[2] = aten.neg.default(%a)\n  return %b\n}"
    )
    after = equal(graph, fold_constants(graph, Trace()))
    assert kinds(after) == ["neg"] and after.constants[0].name == "a"
    assert fold_constants(after, Trace()) is after


def test_weights_are_not_written_to() -> None:
    graph = read(TEXT)
    before = [c.value.clone() for c in graph.constants if c.value is not None]
    fold_constants(graph, Trace())
    now = [c.value for c in graph.constants if c.value is not None]
    assert all(map(torch.equal, before, now))


def test_what_the_table_lacks_is_folded_if_its_schema_says_that_it_may() -> None:
    """A weight that is made of a direction and a length; but nothing random, nothing unwritten."""
    graph = read("""
    graph g {
      input %x: f32[4]
      const %v: f32[3,4] = v
      const %s: f32[3,1] = s
      %w: f32[3,4], %w.1: f32[3,1] = aten._weight_norm_interface.default(%v, %s, 0)
      %y: f32[3] = aten.mv.default(%w, %x)
      %u: f32[3,4] = aten.uniform.default(%v)
      %e: f32[3,4] = aten.empty_strided.default([3, 4], [4, 1], dtype=torch.float32)
      %ue: f32[3,4] = aten.add.Tensor(%u, %e)
      return %y, %ue
    }""")
    after = fold_constants(graph, Trace())
    assert kinds(after) == ["mv", "uniform", "empty_strided", "add"]
    torch.manual_seed(0)
    held = {c.name: c.value for c in after.constants}
    w, v, s = held["w"], held["v"], graph.constants[1].value
    assert w is not None and v is not None and s is not None
    torch.testing.assert_close(w, v * s / v.norm(dim=1, keepdim=True))


def test_what_torch_refuses_to_compute_is_left_to_the_call_that_is_refused() -> None:
    graph = read("""
    graph g {
      input %x: i8[3]
      %a: i8[3] = aten.full.default([3], 1000, dtype=torch.int8)
      %n: i8[3] = aten.neg.default(%a)
      %r: i8[3] = aten.add.Tensor(%x, %n)
      return %r
    }""")
    trace = Trace(quiet=True)
    assert fold_constants(graph, trace) is graph
    (event,) = trace.events
    assert "without overflow" in event.why

from __future__ import annotations

from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.text import text_graph
from anabranch.rewrite.passes.identities import identities
from anabranch.trace import Trace


def test_one_graph_before_and_after() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %d: f32[2,3] = aten.dropout.default(%x, 0.5, False)
      %a: f32[2,3] = aten.add.Tensor(%d, 0.0)
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

from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.rewrite.passes.flatten_cat import flatten_cat
from anabranch.trace import Trace

TEXT = """
graph g {{
  input %x: f32[2,3]
  input %y: f32[2,4]
  %a: f32[2,7] = aten.cat.default([%x, %y], 1)
  %b: f32[2,9] = aten.cat.default([%y, %a, %x], {inner})
  %c: f32[2,14] = aten.cat.default([%b, %y], -1)
  return %c{also}
}}"""


def nested(inner: str = "1", also: str = "") -> str:
    return (
        TEXT.format(inner=inner, also=also)
        .replace("f32[2,9]", "f32[2,14]")
        .replace("%c: f32[2,14]", "%c: f32[2,18]")
    )


def test_one_is_left_with_all_parts_in_order() -> None:
    graph = read(nested())
    after = equal(graph, flatten_cat(graph, Trace()))
    assert kinds(after) == ["cat"]
    assert [ref.name for ref in after.nodes[0].args[0]] == ["y", "x", "y", "x", "y"]  # type: ignore[union-attr]
    assert flatten_cat(after, Trace()) is after


def test_what_others_read_or_the_caller_gets_stays() -> None:
    graph = read(nested(also=", %b"))
    after = equal(graph, flatten_cat(graph, Trace()))
    assert [len(node.args[0]) for node in after.nodes] == [4, 2]  # type: ignore[arg-type]


def test_other_axes_stay() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %a: f32[4,3] = aten.cat.default([%x, %x])
      %b: f32[4,6] = aten.cat.default([%a, %a], 1)
      return %b
    }""")
    assert flatten_cat(graph, Trace()) is graph


def test_empty_parts_go_whatever_their_rank() -> None:
    graph = read("""
    graph g {
      input %x: f32[2,3]
      %none: f32[0] = aten.full.default([0], 0.0)
      %thin: f32[2,0] = aten.full.default([2, 0], 0.0)
      %a: f32[2,6] = aten.cat.default([%none, %x, %thin, %x], 1)
      return %a
    }""")
    after = equal(graph, flatten_cat(graph, Trace()))
    assert [ref.name for ref in after.nodes[0].args[0]] == ["x", "x"]  # type: ignore[union-attr]


def test_empty_parts_stay_where_the_result_would_change() -> None:
    graph = read("""
    graph g {
      input %x: f16[2,3]
      %none: f32[0] = aten.full.default([0], 0.0)
      %thin: f32[2,0] = aten.full.default([2, 0], 0.0)
      %a: f32[2,3] = aten.cat.default([%none, %x], 1)
      %b: f32[2,0] = aten.cat.default([%none, %thin], 1)
      return %a, %b
    }""")
    assert flatten_cat(graph, Trace()) is graph


CUT = """
graph g {{
  input %x: f32[2,6,3]
  input %z: f32[2,1,3]
  {cut}
  %b: f32[2,{size},3] = aten.cat.default([{parts}], 1)
  return %b
}}"""
SPLIT = (
    "%s: f32[2,2,3]{18,3,1}, %s.1: f32[2,2,3]{18,3,1}, %s.2: f32[2,2,3]{18,3,1} = "
    "aten.split.Tensor(%x, 2, 1)"
)
SLICED = (
    "%s: f32[2,2,3]{18,3,1} = aten.slice.Tensor(%x, 1, 0, 2)\n"
    "  %t: f32[2,3,3]{18,3,1} = aten.slice.Tensor(%x, 1, 2, -1)\n"
    "  %u: f32[2,1,3]{18,3,1} = aten.slice.Tensor(%x, -2, 5, 9223372036854775807)"
)


@pytest.mark.parametrize("cut", [SPLIT, SLICED])
@pytest.mark.parametrize(
    ("given", "left"),
    [
        (("s", "t", "u", "z"), ("x", "z")),
        (("z", "s", "t", "u", "s", "t", "u"), ("z", "x", "x")),
        (("s", "t", "u", "u"), ("x", "u")),
        (("t", "u", "z"), ("t", "u", "z")),  # its start is missing
        (("s", "u", "t"), ("s", "u", "t")),
        (("s", "s", "t", "u"), ("s", "x")),
    ],
)
def test_slices_that_are_all_of_a_value_give_way_to_it(
    cut: str, given: tuple[str, ...], left: tuple[str, ...]
) -> None:
    widths = {"z": 1, "s": 2, **({"t": 2, "u": 2} if cut is SPLIT else {"t": 3, "u": 1})}
    size = sum(widths[name] for name in given)
    named = {"t": "s.1", "u": "s.2"} if cut is SPLIT else {}
    given, left = (tuple(named.get(name, name) for name in names) for names in (given, left))
    parts = ", ".join(f"%{name}" for name in given)
    graph = read(CUT.format(cut=cut, size=size, parts=parts))
    after = equal(graph, flatten_cat(graph, Trace()))
    assert tuple(ref.name for ref in after.nodes[-1].args[0]) == left  # type: ignore[union-attr]
    assert (after is graph) == (given == left)


def test_slices_of_another_axis_or_with_steps_stay() -> None:
    graph = read("""
    graph g {
      input %x: f32[4,4]
      %s: f32[2,4]{8,1} = aten.slice.Tensor(%x, 0, 0, 4, 2)
      %t: f32[2,4]{8,1} = aten.slice.Tensor(%x, 0, 1, 4, 2)
      %a: f32[4,4] = aten.cat.default([%s, %t])
      %u: f32[2,4]{4,1} = aten.slice.Tensor(%x, 0, 0, 2)
      %v: f32[2,4]{4,1} = aten.slice.Tensor(%x, 0, 2, 4)
      %b: f32[2,8] = aten.cat.default([%u, %v], 1)
      return %a, %b
    }""")
    assert flatten_cat(graph, Trace()) is graph

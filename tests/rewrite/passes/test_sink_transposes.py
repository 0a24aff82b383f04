"""Turns behind what is computed of a product, and where they stay before it."""

from __future__ import annotations

import pytest
from tests.rewrite.graphs import equal, kinds, read

from anabranch.ir.graph import Graph
from anabranch.rewrite.passes.sink_transposes import sink
from anabranch.trace import Trace

TEXT = """
graph g {
  input %x: f32[2,5,5,6]
  input %r: f32[2,4,5,5]{100,1,20,4}
  const %w: f32[4,6] = w
  const %s: f32[4,1,1] = s
  %y: f32[2,5,5,4] = aten.linear.default(%x, %w)
  %t: f32[2,4,5,5]{100,1,20,4} = aten.permute.default(%y, [0, 3, 1, 2])
  %m: f32[2,4,5,5]{100,1,20,4} = aten.mul.Tensor(%t, %s)
  %a: f32[2,4,5,5]{100,1,20,4} = aten.add.Tensor(%m, %r, alpha=2)
  %c: f32[2,4,5,5]{100,1,20,4} = aten.clamp.default(%a, 0.0, 6.0)
  return %c
}"""


def still(graph: Graph) -> Graph:
    while (after := sink(graph, Trace())) is not graph:
        graph = after
    return graph


def test_a_product_is_scaled_and_added_to_before_it_is_turned() -> None:
    text = TEXT.replace("[0, 3, 1, 2]", "[0, -1, 1, -2]")
    after = equal(read(text), still(read(text)))
    assert [kind for kind in kinds(after) if kind not in ("reshape", "permute")] == [
        *("linear", "mul", "add", "clamp")
    ]
    table = {node.name: node for node in after.nodes}
    product, factor = (table[name] for name in table["mul"].uses)
    assert product.name == "y" and factor.op == "aten.permute.default"
    last = after.nodes[-1]
    assert last.op == "aten.permute.default" and last.uses == ("clamp",)
    assert last.types == read(TEXT).nodes[-1].types and table["add"].kwargs == (("alpha", 2),)


def test_two_axes_that_change_places() -> None:
    text = """
    graph g {
      input %x: f32[2,5,6]
      input %r: f32[2,4,5]{20,1,4}
      const %w: f32[4,6] = w
      %y: f32[2,5,4] = aten.linear.default(%x, %w)
      %t: f32[2,4,5]{20,1,4} = aten.transpose.int(%y, -1, 1)
      %a: f32[2,4,5]{20,1,4} = aten.add.Tensor(%r, %t)
      return %a
    }"""
    after = equal(read(text), still(read(text)))
    assert kinds(after) == ["linear", "transpose", "add", "transpose"]


def test_whatever_else_is_read_is_turned_back() -> None:
    """The product with itself; another layout, which the result has then; a number."""
    text = TEXT.replace("(%t, %s)", "(%t, %t)").replace("%r: f32[2,4,5,5]{100,1,20,4}", "%r: f32[]")
    after = equal(read(text), still(read(text)))
    assert kinds(after)[:4] == ["linear", "mul", "add", "clamp"]
    rows = TEXT.replace("(%t, %s)", "(%q, %t)").replace("{100,1,20,4} = aten.mul", " = aten.mul")
    rows = rows.replace("  const %w", "  input %q: f32[2,4,5,5]\n  const %w")
    for name in ("a", "c"):
        rows = rows.replace(f"%{name}: f32[2,4,5,5]{{100,1,20,4}}", f"%{name}: f32[2,4,5,5]")
    after = equal(read(rows), still(read(rows)))
    assert kinds(after)[-1] == "permute" and after.nodes[-1].type.strides == (100, 25, 5, 1)


STAYS = {
    "read elsewhere": TEXT.replace("return %c", "return %c, %t"),
    "the product is read elsewhere": TEXT.replace("return %c", "return %c, %y"),
    "no product": TEXT.replace(
        "%y: f32[2,5,5,4] = aten.linear.default(%x, %w)",
        "%y: f32[2,5,5,4] = aten._softmax.default(%z, 3, False)",
    ).replace("  const %w", "  input %z: f32[2,5,5,4]\n  const %w"),
    "another product is read": TEXT.replace("(%t, %s)", "(%t, %d)")
    .replace(
        "  %t:",
        "  %d: f32[2,4,5,5]{100,1,20,4} = aten.convolution.default(%i, %k, None, [1, 1], [0, 0], "
        "[1, 1], False, [0, 0], 1)\n  %t:",
    )
    .replace(
        "  const %w",
        "  input %i: f32[2,3,5,5]{75,1,15,3}\n  const %k: f32[4,3,1,1] = k\n  const %w",
    ),
    "a keyword is read": TEXT.replace("aten.mul.Tensor(%t, %s)", "aten.clamp.Tensor(%t, max=%s)"),
}


@pytest.mark.parametrize("why", STAYS)
def test_turns_that_stay(why: str) -> None:
    graph = read(STAYS[why])
    assert sink(graph, Trace()) is graph

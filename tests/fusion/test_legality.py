from __future__ import annotations

from anabranch.fusion.legality import FusionFacts, why_not, why_not_pointwise
from anabranch.ir.refused import Refused
from anabranch.ir.text import parse_graph

GRAPH = parse_graph("""
graph g {
  input %x: f32[2,1]
  input %y: f32[2,3]
  const %w: f32[1,1] = w
  %a: f32[2,1] = aten.neg.default(%x)
  %b: f32[2,3] = aten.mul.Tensor(%a, %y)
  %c: f32[2,3] = aten.exp.default(%b)
  %l: f32[2,1] = aten.linear.default(%x, %w, None)
  %d: f32[2,3] = aten.add.Tensor(%c, %b)
  return %d, %l
}""")


def test_dependence() -> None:
    facts = FusionFacts.of(GRAPH)
    a, _, c, linear, d = GRAPH.nodes
    assert facts.depends(c, "a") and facts.depends(d, "b") and facts.depends(a, "x")
    assert not facts.depends(c, "l") and not facts.depends(a, "c")
    assert facts.depends(linear, "w")


def test_pointwise_reasons() -> None:
    facts = FusionFacts.of(GRAPH)
    a, b, c, linear, d = GRAPH.nodes
    assert why_not_pointwise(c, [d], facts) is None
    assert why_not_pointwise(b, [c, d], facts) is None
    assert why_not_pointwise(b, [c], facts) == Refused("%b is also read by %d")
    assert "%a is broadcast" in str(why_not_pointwise(a, [b, c, d], facts))
    assert why_not_pointwise(d, [linear], facts) == Refused("%d is returned")
    refused = why_not([linear], facts)
    assert refused and refused.sentence.startswith("the library's fused call adds a bias")

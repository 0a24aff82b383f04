"""New values of states come to their places, equal in value."""

from __future__ import annotations

import pytest
import torch

from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import random_inputs
from anabranch.ir.state import overwriting, settled
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.verify import verify_graph
from anabranch.rewrite.passes.place_states import place_states

COUNTER = """graph counter {
  input %x: f32[3]
  state %n: f32[3] -> %more
  %more: f32[3] = aten.add.Tensor(%n, %x)
  return %more
}
"""
EXCHANGE = """graph exchange {
  state %a: f32[3] -> %b
  state %b: f32[3] -> %a
  return %b, %a
}
"""
TWINS = """graph twins {
  input %x: f32[1,3]
  state %a: f32[2,3] -> %both
  state %b: f32[2,3] -> %both 1
  %both: f32[2,3] = aten.OP
  return %both, %both
}
"""
OLD = """graph old {
  state %n: f32[2,3] -> %more
  %more: f32[2,3] = aten.neg.default(%n)
  %row: f32[3] = aten.select.int(%n, 0, 1)
  return %row, %more
}
"""


def placed(text: str) -> Graph:
    before = parse_graph(text)
    after = place_states(before)
    verify_graph(after, infer=True)
    assert settled(after)
    assert place_states(after) is after
    given = random_inputs(before, 3)
    pairs = zip(eval_graph(before, given), eval_graph(after, given), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    return after


def test_a_value_computed_whole_is_copied_to_its_place() -> None:
    assert text_graph(placed(COUNTER)) == COUNTER.replace("-> %more", "-> %n_next").replace(
        "  return %more", "  %n_next: f32[3] = aten.copy.default(%n, %more)\n  return %n_next"
    )


def test_what_two_states_exchange_goes_through_a_copy() -> None:
    graph = placed(EXCHANGE)
    assert [node.op for node in graph.nodes].count("aten.copy.default") == 2
    assert [node.op for node in graph.nodes].count("aten.clone.default") == 1


@pytest.mark.parametrize("op", ["slice_scatter.default(%a, %x, 0, 0, 1)", "copy.default(%a, %b)"])
def test_two_states_with_one_new_value_each_get_it(op: str) -> None:
    graph = placed(TWINS.replace("OP", op))
    written = overwriting(graph)
    homes = {graph.outputs[state.output].name: state.name for state in graph.states}
    assert {name: written[name] for name in homes} == homes
    assert sorted(homes.values()) == ["a", "b"]


def test_what_a_state_was_is_returned_as_a_copy() -> None:
    graph = placed(OLD)
    assert graph.outputs[0].name == "clone"


def test_a_place_with_gaps_keeps_its_strides() -> None:
    graph = placed(COUNTER.replace("state %n: f32[3]", "state %n: f32[3]{2}"))
    assert graph.nodes[-1].type.strides == (2,)


def test_a_graph_without_states_is_the_same() -> None:
    graph = parse_graph("graph g {\n  input %x: f32[3]\n  return %x\n}\n")
    assert place_states(graph) is graph

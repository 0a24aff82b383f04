"""Which nodes write over which values, and in what order that may happen."""

from __future__ import annotations

import pytest
import torch

from anabranch.errors import VerifyError
from anabranch.fusion.partition import singly
from anabranch.ir.dag import dag_of, in_launch_order, waiting
from anabranch.ir.eval import eval_graph
from anabranch.ir.key import structure_key
from anabranch.ir.state import elementwise, overwriting, settled
from anabranch.ir.task import TaskGraph, places
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.verify import verify_graph

CACHE = """
graph cache {
  input %x: f32[1,4]
  input %at: i64[1]
  state %k: f32[8,4] -> %two
  %before: f32[4] = aten.sum.dim_IntList(%k, [0])
  %one: f32[8,4] = aten.index_copy.default(%k, 0, %at, %x)
  %next: i64[1] = aten.add.Tensor(%at, 1)
  %two: f32[8,4] = aten.index_copy.default(%one, 0, %next, %x)
  %y: f32[4] = aten.sum.dim_IntList(%two, [0])
  return %y, %before, %two
}
"""


def test_text_parses_back_and_the_key_says_the_pair() -> None:
    graph = parse_graph(CACHE)
    assert parse_graph(text_graph(graph)) == graph
    assert [value.name for value in graph.call_inputs] == ["x", "at"]
    other = parse_graph(
        CACHE.replace("-> %two", "-> %one").replace("%before, %two", "%before, %one")
    )
    assert structure_key(other) != structure_key(graph)


def test_one_value_that_is_returned_twice_says_which_is_the_states() -> None:
    text = "graph g {\n  state %n: f32[2] -> %a 1\n  %a: f32[2] = aten.neg.default(%n)\n"
    graph = parse_graph(f"{text}  return %a, %a\n}}\n")
    assert graph.states[0].output == 1
    assert parse_graph(text_graph(graph)) == graph


def test_the_oracle_gives_the_new_value_as_a_result() -> None:
    k, x, at = torch.zeros(8, 4), torch.ones(1, 4), torch.tensor([2])
    y, before, after = eval_graph(parse_graph(CACHE), [x, at, k])
    assert (y == 2).all() and (before == 0).all() and (after[2:4] == 1).all()
    assert (k == 0).all(), "a graph writes nothing"


def test_a_chain_of_writes_is_one_place() -> None:
    graph = parse_graph(CACHE)
    verify_graph(graph)
    assert overwriting(graph) == {"one": "k", "two": "one"}
    assert settled(graph)


LATE = """
graph late {
  input %x: f32[1,4]
  state %k: f32[8,4] -> %one
  %one: f32[8,4] = aten.slice_scatter.default(%k, %x, 0, 2, 3)
  %sum: f32[] = aten.sum.default(%one)
  %y: f32[8,4] = aten.mul.Tensor(%k, %sum)
  return %y, %one
}
"""


@pytest.mark.parametrize(
    "text",
    [
        CACHE.replace("return %y", "return %y, %k"),  # the old value is returned
        CACHE.replace("return %y", "return %y, %one"),  # and one on the way
        LATE,  # who reads the old value needs the new one
        CACHE.replace("%next, %x)", "%next, %row)").replace(
            "  %two", "  %row: f32[1,4] = aten.slice.Tensor(%one, 0, 0, 1)\n  %two"
        ),  # it is written with a view of itself
    ],
)
def test_what_is_still_needed_is_not_written_over(text: str) -> None:
    assert not settled(parse_graph(text))


def test_a_state_is_an_input_and_becomes_a_value_of_its_type() -> None:
    graph = parse_graph(CACHE)
    for wrong, said in (
        ("state %k: f32[8,4] -> %y", "becomes"),
        ("state %k: f32[8,4] -> %two 7", "no output 7"),
    ):
        text = CACHE.replace("state %k: f32[8,4] -> %two", wrong)
        with pytest.raises(VerifyError, match=said):
            verify_graph(parse_graph(text))
    with pytest.raises(ValueError, match="not returned"):
        parse_graph(CACHE.replace("%before, %two", "%before"))
    assert graph.states[0].path == "k"


def tasks(text: str = CACHE) -> TaskGraph:
    return singly(parse_graph(text))


def test_readers_of_the_old_value_come_before_who_writes_over_it() -> None:
    found = tasks()
    assert places(found) == {"one": "k", "two": "k"}
    dag = dag_of(found)
    number = {name: i for i, name in enumerate(dag.names)}
    assert dag.preds[number["one"]] >> number["before"] & 1
    assert not waiting(found)
    assert in_launch_order(found) == found


UPDATE = """
graph update {
  input %m: f32[4,3]
  input %g: f32[4,3]
  input %s: f32[]
  %k: f32[4,3] = aten.neg.default(%g)
  %half: f32[4,3] = aten.mul.Tensor(%m, %s)
  %n: f32[4,3] = aten.add.Tensor(%half, %k)
  return %n
}
"""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%m: f32[4,3]", "%m: f16[4,3]"),  # of another type
        ("%m: f32[4,3]", "%m: f32[4,3]{1,4}"),  # other elements lie there
        ("%m: f32[4,3]", "%m: f32[3]"),  # read again for each row
        ("aten.mul.Tensor(%m, %s)", "aten.flip.default(%m, [0])"),
        ("aten.mul.Tensor(%m, %s)", "aten.cumsum.default(%m, 0)"),
        ("aten.mul.Tensor(%m, %s)", "aten.dropout.default(%m, 0.5, True)"),
        ("aten.add.Tensor(%half, %k)", "aten.add.Tensor(%k, %g)"),  # nothing of it is read
        ("  return %n", "  %all: f32[] = aten.sum.default(%n)\n  return %n, %all"),
        (
            "  return %n",  # a result of another shape, of the same part
            "  %y: f32[3] = aten.select.int(%k, 0, 0)\n  return %n, %y",
        ),
    ],
)
def test_what_looks_at_other_elements_writes_over_none(before: str, after: str) -> None:
    assert elementwise(parse_graph(UPDATE), "n", "m") and elementwise(parse_graph(UPDATE), "n", "g")
    assert before in UPDATE
    assert not elementwise(parse_graph(UPDATE.replace(before, after)), "n", "m")
    assert not elementwise(parse_graph(UPDATE), "n", "no input")

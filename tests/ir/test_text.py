"""What is printed parses back to an equal object, whatever its arguments are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ir.graph import Arg, Constant, Graph, Input, Node, Ref
from anabranch.ir.schedule import Launch, Schedule, parse_schedule, text_schedule
from anabranch.ir.text import parse_graph, parse_node, text_graph
from anabranch.ir.types import DTYPES, TensorType

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from([torch.float16, torch.channels_last, torch.strided]),
    st.sampled_from([Ref("x"), Ref("w")]),
)
arguments: st.SearchStrategy[Arg] = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6
)
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(
    st.lists(arguments, max_size=4),
    st.dictionaries(st.sampled_from(["alpha", "dim", "dtype"]), arguments, max_size=2),
    shapes,
    st.sampled_from(sorted(DTYPES)),
)
def test_graphs_parse_back(
    args: list[Arg], kwargs: dict[str, Arg], shape: tuple[int, ...], dtype: str
) -> None:
    type = TensorType(shape, DTYPES[dtype])
    node = Node(
        "n", "aten.op.default", tuple(args), tuple(kwargs.items()), (type, type), "net.py:7"
    )
    graph = Graph(
        "g", (Input("x", type),), (Constant("w", type, "1f"),), (node,), (Ref("n"), Ref("n.1"))
    )
    assert parse_graph(text_graph(graph)) == graph
    assert parse_graph(text_graph(graph)).nodes[0].origin == "net.py:7"


def test_special_floats() -> None:
    node = Node(
        "n",
        "aten.full.default",
        ((2,), math.inf, -math.inf),
        (),
        (TensorType((2,), torch.float32),),
    )
    graph = Graph("g", (), (), (node,), (Ref("n"),))
    assert parse_graph(text_graph(graph)) == graph
    nan = Node("n", "aten.full.default", ((2,), math.nan), (), node.types)
    back = parse_graph(text_graph(Graph("g", (), (), (nan,), (Ref("n"),)))).nodes[0].args[1]
    assert isinstance(back, float) and math.isnan(back)


def test_strides_are_written_only_where_they_are_not_row_major() -> None:
    dense, last = (
        TensorType((1, 2, 3, 3), torch.half),
        TensorType((1, 2, 3, 3), torch.half, (18, 1, 6, 2)),
    )
    assert dense.text == "f16[1,2,3,3]" and last.text == "f16[1,2,3,3]{18,1,6,2}"
    assert last.nbytes == dense.nbytes == 36


@pytest.mark.parametrize(
    ("comment", "origin"),
    [
        ("", ""),
        ("    # net.py:7", "net.py:7"),
        ("    # a    # %b", "a    # %b"),
        (" # %x of net.py", "%x of net.py"),
        ("#net.py", "net.py"),
    ],
)
def test_nodes_that_differ_in_names_alone_are_not_mixed_up(comment: str, origin: str) -> None:
    """They are read once: names, comments and strings that look like names are their own."""
    for name, op in [("a", "aten.relu.default"), ("b.c", "my.op.default"), ("a", "my.op.default")]:
        node = parse_node(f"%{name}: f32[2] = {op}(%x.{name}, [%y, 2.5], s='%z  # q', k=%{name}1)")
        args = (Ref(f"x.{name}"), (Ref("y"), 2.5))
        kwargs = (("s", "%z  # q"), ("k", Ref(f"{name}1")))
        assert node == Node(name, op, args, kwargs, (TensorType((2,), torch.float32),))
        told = parse_node(f"%{name}: f32[2], %{name}.1: f32[3] = {op}(%{name}x, 1){comment}")
        assert (told.name, told.args, told.origin) == (name, (Ref(f"{name}x"), 1), origin)
        assert told.results == (name, f"{name}.1")


def test_a_broken_line_shows_where() -> None:
    with pytest.raises(ValueError, match=r"\^"):
        parse_graph("graph g {\n  %y: f32[2] = aten.relu.default(%x\n}")


def test_schedules_parse_back() -> None:
    launches = (Launch("a", 0), Launch("b", 2), Launch("c", 0, ("a", "b")))
    schedule = Schedule("ios", launches, ((("a",), ("b",)), (("c",),)))
    assert parse_schedule(text_schedule(schedule)) == schedule
    with pytest.raises(ValueError, match="expected"):
        parse_schedule("schedule ios {\n  a on stream 0\n}")


@pytest.mark.parametrize("strides", ["{8,1", "{8,1.5}", "{=8,1}"])
def test_strides_that_are_none_are_refused(strides: str) -> None:
    line = f"  input %x: f16[1,8]{strides}"
    with pytest.raises(ValueError):
        parse_graph(f"graph g {{\n{line}\n  return %x\n}}")


def test_strides_may_stand_apart() -> None:
    graph = parse_graph("graph g {\n  input %x: f16[8, 8] {1, 8}\n  return %x\n}")
    assert graph.inputs[0].type.strides == (1, 8)

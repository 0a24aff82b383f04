"""The op table: every entry names an operator that torch has; views, types and writes are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from anabranch.ir import ops
from anabranch.ir.graph import Node, Ref
from anabranch.ir.text import parse_graph
from anabranch.ir.types import TensorType, meta, type_of

X = TensorType((2, 6), torch.float32)


def test_every_operator_of_the_table_exists() -> None:
    split = (name.partition(".") for name in ops.OPS)
    missing = [name for space, _, name in split if not hasattr(getattr(torch.ops, space), name)]
    assert not missing


def test_unknown_operators_are_opaque_and_foreign_names_refused() -> None:
    assert ops.info("mylib.secret.default").kind == "opaque"
    for name in ("aten.nothing.default", "aten.add", "load_library.__call__.__call__"):
        with pytest.raises(KeyError):
            ops.resolve(name)


def test_reshape_is_a_view_where_strides_allow_it() -> None:
    dense = ops.make_node("y", "aten.reshape.default", (Ref("x"), (3, 4)), {"x": X})
    turned = {"x": TensorType((2, 6), torch.float32, (1, 2))}
    copied = ops.make_node("y", "aten.reshape.default", (Ref("x"), (3, 4)), turned)
    assert ops.is_view(dense, {"x": X}) and not ops.is_view(copied, turned)


def test_a_convolution_answers_in_channels_last_if_either_side_is() -> None:
    x = TensorType((1, 8, 6, 6), torch.float16)
    w = type_of(torch.empty(4, 8, 3, 3, dtype=torch.half).to(memory_format=torch.channels_last))
    args = (Ref("x"), Ref("w"), None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    (found,) = ops.infer("aten.convolution.default", args, (), {"x": x, "w": w})
    assert found.strides == (144, 1, 24, 4)


def test_operations_and_bytes_are_counted() -> None:
    table = {"x": TensorType((8, 16), torch.half), "w": TensorType((16, 4), torch.half)}
    node = ops.make_node("y", "aten.mm.default", (Ref("x"), Ref("w")), table)
    assert ops.flops(node, table) == 2 * 8 * 4 * 16
    assert ops.traffic(node, table) == 2 * (8 * 16 + 16 * 4 + 8 * 4)


def test_of_a_table_no_more_is_read_than_is_found_there() -> None:
    table = {"w": TensorType((1000, 8), torch.half), "i": TensorType((3,), torch.int64)}
    few = ops.make_node("y", "aten.embedding.default", (Ref("w"), Ref("i")), table)
    assert ops.reads(few, table) == {"w": 3 * 8 * 2, "i": 3 * 8}
    assert ops.traffic(few, table) == 2 * (3 * 8 * 2) + 3 * 8
    table = {"w": TensorType((2, 8), torch.half), "i": TensorType((3,), torch.int64)}
    assert ops.reads(few, table)["w"] == 2 * 8 * 2


def test_attention_multiplies_each_query_with_each_key_and_each_weight_with_a_value() -> None:
    sizes = {"q": (2, 8, 5, 16), "k": (2, 4, 9, 16), "v": (2, 4, 9, 6)}
    table = {name: TensorType(shape, torch.half) for name, shape in sizes.items()}
    op, args = "aten.scaled_dot_product_attention.default", (Ref("q"), Ref("k"), Ref("v"))
    node = ops.make_node("y", op, args, table, (("enable_gqa", True),))
    assert ops.flops(node, table) == 2 * (2 * 8) * 5 * 9 * (16 + 6)


def test_a_node_knows_what_it_reads() -> None:
    node = Node("y", "aten.cat.default", ((Ref("a"), Ref("b")), 1), (("z", Ref("a")),), (X,))
    assert node.uses == ("a", "b", "a")
    assert meta(X).shape == (2, 6)


def test_types_are_inferred_once_for_alike_nodes_and_scalars_of_each_sort_apart() -> None:
    ints = {"a": TensorType((3,), torch.int64), "b": TensorType((3,), torch.int64)}
    found = [ops.infer("aten.add.Scalar", (Ref("a"), one), (), ints) for one in (1, 1.0, True)]
    assert [types[0].dtype for types in found] == [torch.int64, torch.float32, torch.int64]
    assert ops.infer("aten.add.Scalar", (Ref("b"), 1), (), ints) is found[0]


def test_attention_answers_in_the_order_of_its_query_without_gaps() -> None:
    """As fused kernels do, whether queries are a tensor of their own or a slice of a product."""
    name = "aten.scaled_dot_product_attention.default"
    alone = TensorType((1, 12, 128, 64), torch.half, (98304, 64, 768, 1))
    part = TensorType((1, 12, 128, 64), torch.half, (294912, 64, 2304, 1))
    heads = TensorType((1, 12, 128, 64), torch.half)
    args = tuple(map(Ref, "qkv"))
    for asked, strides in ((alone, alone.strides), (part, alone.strides), (heads, heads.strides)):
        (found,) = ops.infer(name, args, (), {"q": asked, "k": part, "v": part})
        assert found.strides == strides
    x = torch.randn(1, 16, 48)
    parts = [x[..., i : i + 16].view(1, 16, 2, 8).transpose(1, 2) for i in (0, 16, 32)]
    known = dict(zip("qkv", map(type_of, parts), strict=True))
    query, key, value = parts
    answer = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert ops.infer(name, args, (), known)[0] == type_of(answer)


def test_recurrences_multiply_each_step_with_all_weights_and_wait_for_each() -> None:
    weights = [(32, 8), (32, 16), (32,), (32,), (32, 16), (32, 16), (32,), (32,)]
    table = {f"w{i}": TensorType(shape, torch.float32) for i, shape in enumerate(weights)}
    table |= {"h": TensorType((2, 3, 16), torch.float32)}
    params = tuple(Ref(f"w{i}") for i in range(len(weights)))
    for first, shape in ((False, (7, 3, 8)), (True, (3, 7, 8))):
        table["x"] = TensorType(shape, torch.float32)
        args = (Ref("x"), Ref("h"), params, True, 2, 0.0, False, False, first)
        node = Node("r", "aten.gru.input", args, (), ())
        assert ops.flops(node, table) == 2 * 7 * 3 * (32 * 8 + 3 * 32 * 16)
        assert ops.serial(node, table) == 8
    relu = Node("r", "aten.relu.default", (Ref("x"),), (), (table["x"],))
    assert ops.serial(relu, table) == 1


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("aten.sub.Tensor", (Ref("1"), Ref("0")), (("alpha", 2),)),
        ("aten.cat.default", ((Ref("1"), Ref("0"), Ref("1")), 1), ()),
        ("aten.view.default", (Ref("0"), (3, 2)), ()),
        ("aten.full.default", ((2, 3), 1.5), (("device", "meta"),)),
        ("aten.clamp.Tensor", (Ref("0"),), (("max", Ref("1")),)),
        ("aten.topk.default", (Ref("0"), 2), ()),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_is_prepared_runs_as_it_is_called(op: str, args: Any, kwargs: Any) -> None:
    node, cpu = Node("n", op, args, kwargs, ()), torch.device("cpu")
    run = ops.prepared(node, cpu)
    for shift in (0.0, 1.0):
        # A view of strides that allow none.
        operands = [torch.randn(3, 2).t() + shift, torch.randn(2, 3)]
        wanted = ops.call(node, dict(zip("01", operands, strict=True)).__getitem__, cpu)
        found = run(operands)
        assert len(found) == len(wanted) and all(map(torch.equal, found, wanted))


@pytest.mark.parametrize(
    ("call", "draws"),
    [
        ("aten.rand.default([3,4])", True),
        ("aten.bernoulli.default(%x)", True),
        ("aten.dropout.default(%x, 0.5, True)", True),
        ("aten.dropout.default(%x, 0.5, False)", False),
        ("aten.scaled_dot_product_attention.default(%x, %x, %x)", False),
        ("aten.scaled_dot_product_attention.default(%x, %x, %x, None, 0.1)", True),
        ("aten.uniform.default(%x)", True),
        ("aten.poisson.default(%x)", True),
        ("aten.sin.default(%x)", False),
    ],
)
def test_who_draws_random_numbers(call: str, draws: bool) -> None:
    graph = parse_graph(f"""
graph one {{
  input %x: f32[3,4]
  %y: f32[3,4] = {call}
  return %y
}}""")
    assert ops.draws(graph.nodes[0]) == draws

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from tests.frontend.onnx.files import make_graph, make_node, model, value, weight, written
from tests.frontend.onnx.test_importer_networks import agree, exported

import anabranch
from anabranch.frontend.onnx.importer import from_onnx
from anabranch.models.load import load_model


def numbers(**of: float) -> list[Any]:
    return [weight(name, np.array(one, dtype=np.float32)) for name, one in of.items()]


def _gelu() -> Any:
    nodes = [
        make_node("Div", ["x", "root"], ["a"]),
        make_node("Erf", ["a"], ["b"]),
        make_node("Add", ["one", "b"], ["c"]),
        make_node("Mul", ["x", "c"], ["d"]),
        make_node("Mul", ["d", "half"], ["y"]),
    ]
    return nodes, numbers(root=math.sqrt(2), one=1, half=0.5), ["Gelu"]


def _gelu_by_tanh() -> Any:
    nodes = [
        make_node("Pow", ["x", "three"], ["x3"]),
        make_node("Mul", ["x3", "small"], ["a"]),
        make_node("Add", ["x", "a"], ["b"]),
        make_node("Mul", ["b", "scale"], ["c"]),
        make_node("Tanh", ["c"], ["d"]),
        make_node("Add", ["d", "one"], ["e"]),
        make_node("Mul", ["half", "x"], ["f"]),
        make_node("Mul", ["f", "e"], ["y"]),
    ]
    of = numbers(three=3, small=0.044715, scale=math.sqrt(2 / math.pi), one=1, half=0.5)
    return nodes, of, ["Gelu"]


def _silu() -> Any:
    nodes = [make_node("Sigmoid", ["x"], ["s"]), make_node("Mul", ["s", "x"], ["y"])]
    return nodes, [], ["Swish"]


def _mish() -> Any:
    nodes = [
        make_node("Softplus", ["x"], ["s"]),
        make_node("Tanh", ["s"], ["t"]),
        make_node("Mul", ["x", "t"], ["y"]),
    ]
    return nodes, [], ["Mish"]


def _softplus(edge: float = 20.0) -> Any:
    nodes = [
        make_node("Softplus", ["x"], ["s"]),
        make_node("Greater", ["x", "edge"], ["above"]),
        make_node("Where", ["above", "x", "s"], ["y"]),
    ]
    return nodes, numbers(edge=edge), ["Softplus"]


def _no_softplus() -> Any:
    nodes, of, _ = _softplus(0.5)
    return nodes, of, None


def _group_norm() -> Any:
    """Of three channels, each a group of its own, as the shape of x is given twice."""
    nodes = [
        make_node("Reshape", ["x", "groups"], ["g"]),
        make_node("InstanceNormalization", ["g", "ones", "zeros"], ["n"]),
        make_node("Shape", ["x"], ["shape"]),
        make_node("Reshape", ["n", "shape"], ["b"]),
        make_node("Mul", ["b", "scale"], ["s"]),
        make_node("Add", ["s", "bias"], ["y"]),
    ]
    rows = [weight(k, np.array(row, dtype=np.float32)) for k, row in GROUPED.items()]
    return nodes, [weight("groups", np.array([0, 3, -1])), *rows], ["Shape", "GroupNorm"]


GROUPED = {
    "ones": [1, 1, 1],
    "zeros": [0, 0, 0],
    "scale": [[[1]], [[2]], [[3]]],
    "bias": [[[0.5]], [[1]], [[2]]],
}


def _no_group_norm() -> Any:
    """Scales are those of the last axis: no norm of torch, but what the file says."""
    nodes, of, ops = _group_norm()
    of[-2] = weight("scale", np.linspace(1, 2, 8, dtype=np.float32))
    return nodes, of, ops


def _no_silu() -> Any:
    """The sigmoid of something else."""
    nodes = [
        make_node("Neg", ["x"], ["n"]),
        make_node("Sigmoid", ["n"], ["s"]),
        make_node("Mul", ["x", "s"], ["y"]),
    ]
    return nodes, [], None


def _no_gelu() -> Any:
    """Half of x twice: one factor more than there should be."""
    nodes, of, _ = _gelu()
    return [*nodes[:-1], make_node("Mul", ["d", "third"], ["y"])], [*of, *numbers(third=0.3)], None


def _shared() -> Any:
    """What somebody else reads stays."""
    nodes, of, _ = _gelu()
    nodes[-1] = make_node("Mul", ["d", "half"], ["e"])
    return [*nodes, make_node("Add", ["e", "b"], ["y"])], of, None


def _layer_norm() -> Any:
    nodes = [
        make_node("ReduceMean", ["x"], ["m"], axes=[-1]),
        make_node("Sub", ["x", "m"], ["c"]),
        make_node("Pow", ["c", "two"], ["s"]),
        make_node("ReduceMean", ["s"], ["v"], axes=[-1]),
        make_node("Add", ["v", "eps"], ["e"]),
        make_node("Sqrt", ["e"], ["r"]),
        make_node("Div", ["c", "r"], ["n"]),
        make_node("Mul", ["n", "scale"], ["p"]),
        make_node("Add", ["p", "bias"], ["y"]),
    ]
    rows = [weight(k, np.linspace(1, 2, 8, dtype=np.float32)) for k in ("scale", "bias")]
    return nodes, [*numbers(two=2, eps=1e-5), *rows], ["LayerNormalization"]


def _attention() -> Any:
    """Queries are x, scaled; keys x again, moved; a mask, and values from the same."""
    nodes = [
        make_node("Mul", ["x", "by"], ["q"]),
        make_node("Transpose", ["x"], ["k"], perm=[0, 1, 3, 2]),
        make_node("MatMul", ["q", "k"], ["s"]),
        make_node("Add", ["s", "mask"], ["m"]),
        make_node("Softmax", ["m"], ["p"], axis=-1),
        make_node("MatMul", ["p", "x"], ["y"]),
    ]
    mask = weight("mask", np.triu(np.full((4, 4), -1e4, dtype=np.float32), 1))
    return nodes, [*numbers(by=0.25), mask], ["Attention"]


def _linear() -> Any:
    nodes = [make_node("MatMul", ["x", "w"], ["h"]), make_node("Add", ["b", "h"], ["y"])]
    square = weight("w", np.arange(64, dtype=np.float32).reshape(8, 8) / 64)
    return nodes, [square, weight("b", np.arange(8, dtype=np.float32))], ["Gemm"]


@pytest.mark.parametrize(
    "make",
    [
        *(_gelu, _gelu_by_tanh, _no_gelu, _silu, _no_silu, _mish, _softplus, _no_softplus),
        *(_group_norm, _no_group_norm),
        *(_shared, _layer_norm, _attention, _linear),
    ],
)
def test_what_is_spelled_out_is_one_operator_and_the_same(make: Any, tmp_path: Path) -> None:
    nodes, weights, ops = make()
    made = model(nodes, [value("x", 2, 3, 4, 8)], [value("y", 2, 3, 4, 8)], weights, opset=17)
    path = written(tmp_path, made)
    net = from_onnx(path)
    found = [node.op for node in net.graph.nodes]
    assert found == (ops if ops is not None else [node.op_type for node in nodes])
    torch.manual_seed(0)
    agree(net, path, (torch.randn(2, 3, 4, 8),))


@pytest.mark.parametrize("how", [(False, 17), (True, 18)])
def test_modules_of_torch_come_back_as_they_were(how: tuple[bool, int], tmp_path: Path) -> None:
    """By the functions that they call, though files have no operators for some of them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.GroupNorm(4, 8),
        torch.nn.SiLU(),
        torch.nn.ReflectionPad2d((1, 2, 0, 1)),
        torch.nn.Mish(),
        torch.nn.ReplicationPad2d(1),
        torch.nn.PReLU(8),
        torch.nn.Softplus(),
        torch.nn.BatchNorm2d(8, eps=1e-3),
        torch.nn.LeakyReLU(0.1),
    ).eval()
    with torch.no_grad():
        net.get_parameter("1.weight").uniform_(0.5, 2.0)
    x = torch.randn(2, 3, 12, 12)
    path = exported(net, (x,), tmp_path / "net.onnx", dynamo=how[0], opset_version=how[1])
    imported = from_onnx(path)
    agree(imported, path, (x,))
    calls = [operators(torch.export.export(m, (x,), strict=False)) for m in (net, imported)]
    assert calls[0] == calls[1]


def test_equal_weights_are_found_behind_what_passes_them_on(tmp_path: Path) -> None:
    """Exporters write weights that are equal once, with an Identity for each further use."""
    layers = [(torch.nn.Conv2d(8, 8, 1), torch.nn.GroupNorm(4, 8)) for _ in range(3)]
    net = torch.nn.Sequential(*(layer for pair in layers for layer in pair)).eval()
    x = torch.randn(2, 8, 6, 6)
    path = exported(net, (x,), tmp_path / "net.onnx", dynamo=False, opset_version=17)
    ops = [node.op_type for node in onnx.load(path).graph.node]
    assert "Identity" in ops
    imported = from_onnx(path)
    found = [node.op for node in imported.graph.nodes if node.op != "Shape"]
    assert found == ["Conv", "GroupNorm"] * 3
    agree(imported, path, (x,))


def test_branches_read_what_is_passed_on_around_them(tmp_path: Path) -> None:
    """And an Identity that makes an output stays."""
    same = make_graph([make_node("Identity", ["b"], ["t"])], "then", [], [value("t", 4)])
    twice = make_graph([make_node("Add", ["b", "b"], ["e"])], "else", [], [value("e", 4)])
    nodes = [
        make_node("Identity", ["x"], ["a"]),
        make_node("Identity", ["a"], ["b"]),
        make_node("If", ["c"], ["y"], then_branch=same, else_branch=twice),
        make_node("Identity", ["b"], ["z"]),
    ]
    inputs = [value("x", 4), value("c", kind=9)]
    path = written(tmp_path, model(nodes, inputs, [value("y", 4), value("z", 4)]))
    net, x = from_onnx(path), torch.randn(4)
    assert [node.op for node in net.graph.nodes] == ["If", "Identity"]
    for condition in (True, False):
        agree(net, path, (x, torch.tensor(condition)))


class Shared(torch.nn.Module):
    """Four heads of queries for two of keys, which exporters repeat, join and take apart."""

    def forward(self, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, kv, kv, is_causal=True, enable_gqa=True)


def test_keys_that_heads_share_are_repeated(tmp_path: Path) -> None:
    args = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8)
    path = exported(Shared(), args, tmp_path / "net.onnx", dynamo=True, opset_version=18)
    net = from_onnx(path)
    assert "Attention" in [node.op for node in net.graph.nodes]
    agree(net, path, args)


def test_bags_of_embeddings_are_added_in_a_loop_of_known_length(tmp_path: Path) -> None:
    """Whose bounds are cast like others that are known."""
    bag, x = torch.nn.EmbeddingBag(20, 8, mode="sum"), torch.randint(0, 20, (3, 4))
    path = exported(bag, (x,), tmp_path / "net.onnx", dynamo=True, opset_version=18)
    fast = anabranch.compile(from_onnx(path), (x,), target="cpu", search="none", fullgraph=True)
    torch.testing.assert_close(fast(x), bag(x))


def operators(program: Any) -> list[str]:
    """The operators of a captured model, some with the last number that they are told, but for
    those that only look at shapes."""
    views = ("aten.view", "aten.reshape", "aten.permute", "aten.transpose")
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    told = ("aten.batch_norm.default", "aten.group_norm.default", "aten.leaky_relu.default")
    numbers_of = {
        n: [a for a in n.args if isinstance(a, float) and str(n.target) in told] for n in calls
    }
    named = [f"{node.target} {numbers[-1:]}" for node, numbers in numbers_of.items()]
    return [name for name in named if not name.startswith(views)]


def test_a_file_takes_as_long_as_the_model_that_it_was_exported_from(tmp_path: Path) -> None:
    """By forecast, within two in a hundred: attention, gelu, norms and linear layers are found."""
    model, args = load_model("zoo:bert_base/tiny")
    path = exported(model, args, tmp_path / "net.onnx", dynamo=False, opset_version=16)
    net, took = from_onnx(path), []
    for one, given in ((model, args), (net, args[: len(net.names)])):
        fast = anabranch.compile(one, given, target="sim:h200", search="none")
        took.append(fast.known["latency_ms"])
    assert took[1] == pytest.approx(took[0], rel=0.02)


def _softmax_over(axis: int, *masked: Any) -> list[Any]:
    """Attention over five axes or fewer, whose softmax is not over keys where `axis` is not."""
    return [
        make_node("Transpose", ["k"], ["t"], perm=[0, 1, 2, 4, 3]),
        make_node("MatMul", ["q", "t"], ["s"]),
        *masked,
        make_node("Softmax", ["m" if masked else "s"], ["p"], axis=axis),
        make_node("MatMul", ["p", "v"], ["y"]),
    ]


MASKED = make_node("Add", ["s", "mask"], ["m"])
LARGE = (2, 2, 3, 4, 8), (2, 2, 3, 4, 8), (2, 2, 3, 4, 8)
ATTENTIONS: dict[str, tuple[list[Any], tuple[tuple[int, ...], ...]]] = {
    "over queries": (_softmax_over(3), LARGE),
    "over keys": (_softmax_over(4), LARGE),
    "a mask of more examples": (
        _softmax_over(-1, MASKED),
        ((1, 1, 3, 4, 8), (1, 1, 3, 5, 8), (1, 1, 3, 5, 8), (2, 2, 3, 4, 5)),
    ),
    "a mask of more keys": (
        _softmax_over(-1, MASKED),
        ((1, 2, 3, 4, 8), (1, 2, 3, 1, 8), (1, 2, 3, 5, 8), (4, 5)),
    ),
    "a mask of more queries": (
        _softmax_over(-1, MASKED),
        ((1, 2, 3, 1, 8), (1, 2, 3, 5, 8), (1, 2, 3, 5, 8), (4, 5)),
    ),
}


@pytest.mark.parametrize("case", ATTENTIONS)
def test_what_looks_like_attention_is_what_the_file_says(case: str, tmp_path: Path) -> None:
    nodes, shapes = ATTENTIONS[case]
    names = ("q", "k", "v", "mask")[: len(shapes)]
    inputs = [value(name, *shape) for name, shape in zip(names, shapes, strict=True)]
    path = written(tmp_path, model(nodes, inputs, [value("y", *[None] * 5)], opset=17))
    torch.manual_seed(0)
    agree(from_onnx(path), path, tuple(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("half", [0.5004, np.full((1, 1, 1, 1, 1), 0.5)])
def test_numbers_that_are_nearly_those_of_gelu_are_others(half: Any, tmp_path: Path) -> None:
    """Or have more axes than what they are multiplied with."""
    nodes, weights, _ = _gelu()
    weights[-1] = weight("half", np.array(half, dtype=np.float32))
    made = model(
        nodes, [value("x", 3, 4, 8)], [value("y", *[None] * max(3, np.ndim(half)))], weights
    )
    path = written(tmp_path, made)
    net = from_onnx(path)
    assert [node.op for node in net.graph.nodes] == [node.op_type for node in nodes]
    torch.manual_seed(0)
    agree(net, path, (torch.randn(3, 4, 8),))

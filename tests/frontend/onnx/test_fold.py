from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontend.onnx.files import make_node, model, value, weight, written
from tests.frontend.onnx.test_importer_networks import runtime_answers

from anabranch.frontend.onnx.importer import from_onnx


def _made(nodes: list[Any], **numbers: Any) -> Any:
    weights = [weight(name, np.array(one, dtype=np.int64)) for name, one in numbers.items()]
    return model(nodes, [value("x", 2, 3)], [value("y")], weights)


def test_what_small_constants_make_is_known(tmp_path: Path) -> None:
    nodes = [
        make_node("Mul", ["two", "three"], ["six"]),
        make_node("Pow", ["six", "one"], ["shape"]),
        make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    net = from_onnx(written(tmp_path, _made(nodes, two=[2], three=[3], one=[1])))
    assert [node.op for node in net.graph.nodes] == ["Reshape"]
    x = torch.randn(2, 3)
    assert torch.equal(net(x), x.reshape(6))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", ["large"]),
        ("Expand", ["one", "large"]),
        ("Tile", ["one", "large"]),
        ("Range", ["zero", "far", "step"]),
    ],
)
def test_nothing_is_filled_while_a_file_is_read(op: str, inputs: list[str], tmp_path: Path) -> None:
    """A hundred bytes that say terabytes: the node stays, and takes them if somebody calls it."""
    nodes = [make_node(op, inputs, ["a"]), make_node("Size", ["a"], ["y"])]
    far = 1 << 41
    made = _made(nodes, large=[far], one=[1], zero=0, far=far, step=1)
    net = from_onnx(written(tmp_path, made))
    assert net.graph.nodes[0].op == op


I32, I64, F32 = np.int32, np.int64, np.float32
ODD: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "a quotient by zero": ("Div", [F32(1), F32(0)], {}),
    "zero by zero": ("Div", [F32(0), F32(0)], {}),
    "a quotient of whole floats": ("Div", [F32(5), F32(2)], {}),
    "no whole number": ("Ceil", [F32(np.inf)], {}),
    "not a number": ("Floor", [F32(np.nan)], {}),
    "a root of less than nothing": ("Sqrt", [F32(-1)], {}),
    "too large for int64": ("Mul", [I64(1 << 40), I64(1 << 40)], {}),
    "too large for int32": ("Mul", [I32(1 << 20), I32(1 << 20)], {}),
    "too large for the type of a cast": ("Cast", [I64((1 << 31) + 5)], {"to": 6}),
    "too large for float32": ("Mul", [F32(3e38), F32(3e38)], {}),
    "the largest of none": ("Max", [F32(1), F32(np.nan)], {}),
    "a rest of zero": ("Mod", [F32(-7.5), F32(0)], {"fmod": 1}),
    "a size without a sign": ("Abs", [np.array(-(1 << 63), I64)], {}),
    "nothing to sum over": ("ReduceSum", [np.arange(5)], {"noop_with_empty_axes": 1}),
    "backwards from before the first": (
        "Slice",
        [np.arange(5), *(np.array([at]) for at in (-10, -20, 0, -1))],
        {},
    ),
}
"""Operators on constants for which Python's arithmetic is another than ONNX's."""


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ODD)
def test_constants_are_computed_as_tensors_are(case: str, tmp_path: Path) -> None:
    op, operands, attributes = ODD[case]
    names = [f"c{at}" for at in range(len(operands))]
    nodes = [make_node(op, names, ["a"], **attributes), make_node("Cast", ["a"], ["y"], to=11)]
    weights = [weight(name, x) for name, x in zip(names, operands, strict=True)]
    path = written(tmp_path, model(nodes, [value("x", 2)], [value("y", kind=11)], weights))
    (expected,) = runtime_answers(path, (torch.ones(2),))
    torch.testing.assert_close(from_onnx(path)(torch.ones(2)), expected, equal_nan=True)


def test_a_quotient_of_numbers_that_were_rounded_is_no_whole_number(tmp_path: Path) -> None:
    nodes = [
        make_node("Ceil", ["a"], ["b"]),
        make_node("Ceil", ["c"], ["d"]),
        make_node("Div", ["b", "d"], ["y"]),
    ]
    weights = [weight("a", F32(4.5)), weight("c", F32(1.5))]
    net = from_onnx(written(tmp_path, model(nodes, [value("x", 2)], [value("y")], weights)))
    assert float(net(torch.ones(2))) == 2.5


@pytest.mark.parametrize(("op", "inputs"), [("Range", ["none", "one", "one"]), ("Tile", ["", ""])])
def test_what_says_no_size_is_left_to_whoever_runs_it(
    op: str, inputs: list[str], tmp_path: Path
) -> None:
    nodes = [make_node(op, inputs, ["y"])]
    net = from_onnx(written(tmp_path, _made(nodes, none=[], one=1)))
    assert [node.op for node in net.graph.nodes] == [op]

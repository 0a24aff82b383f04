from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.frontend.onnx.files import make_node, model, value, weight, written

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

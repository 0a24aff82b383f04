from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from tests.frontend.onnx.files import linear, make_node, model, value, written

from anabranch.frontend import capture
from anabranch.frontend.onnx.importer import from_onnx


def test_operators_say_which_node_of_the_file_they_come_from(tmp_path: Path) -> None:
    made = linear()
    made.graph.node[0].name = "encoder/fc:1"
    net = from_onnx(written(tmp_path, made, "net.onnx"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # capturing finds nothing that a call changes
        captured = capture(net, (torch.randn(4, 3),))
    assert {node.origin for node in captured.graph.nodes} == {
        "net.onnx#encoder.fc:1:1 in forward",
        "net.onnx#Relu:2 in forward",
    }


def test_what_fails_while_it_runs_names_its_node(tmp_path: Path) -> None:
    node = make_node("MatMul", ["x", "x"], ["y"], name="square")
    net = from_onnx(written(tmp_path, model([node], [value("x", 2, 3)], [value("y", 2, 2)])))
    with pytest.raises(RuntimeError) as failed:
        net(torch.ones(2, 3))
    assert failed.value.__notes__ == ["in MatMul square of the ONNX graph"]

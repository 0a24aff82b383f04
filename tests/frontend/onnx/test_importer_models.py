"""Models that come with the package onnx: layers and pieces that torch wrote once, opset 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.frontend.onnx.node_tests import same, tensor

from anabranch.errors import OnnxError
from anabranch.frontend.onnx.importer import from_onnx

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
REFUSED = {"gradient": "ai.onnx.preview.training.Gradient", "strnorm": "STRING"}
"""Which kinds are refused, by a part of their name, and with which word."""


@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_they_give_what_is_beside_them(kind: str) -> None:
    tried = 0
    for path in sorted((DATA / kind).glob("*/model.onnx")):
        name = path.parent.name
        said = next((word for part, word in REFUSED.items() if part in name), None)
        if said is not None:
            with pytest.raises(OnnxError, match=said):
                from_onnx(path)
            continue
        model = from_onnx(path)
        for folder in path.parent.glob("test_data_set_*"):
            inputs, answers = read(folder, "input"), read(folder, "output")
            with torch.no_grad():
                results = model(*inputs[: len(model.names)])
            results = results if isinstance(results, tuple) else (results,)
            for ours, theirs in zip(results, answers, strict=True):
                same(ours, theirs, 1e-3, 1e-6)
            tried += 1
    assert tried >= 15


def read(folder: Path, which: str) -> list[Any]:
    """The tensors of a test, in order."""
    count = len(list(folder.glob(f"{which}_*.pb")))
    files = [folder / f"{which}_{number}.pb" for number in range(count)]
    protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return [tensor(one) if which == "input" else one for one in protos]

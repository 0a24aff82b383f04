"""Small files of ONNX, as whoever writes them may: right ones, and wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def value(name: str, *shape: int | str | None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, list(shape))


def weight(name: str, array: Any) -> Any:
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
    weights: Sequence[Any] = (),
    opset: int = 18,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(list(nodes), "main", list(inputs), list(outputs), list(weights))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(one, 1) for one in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def written(folder: Path, made: Any, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def external(name: str, location: str, shape: Sequence[int], **said: int) -> Any:
    """A weight whose data are in another file."""
    tensor = TensorProto(name=name, data_type=FLOAT, dims=list(shape))
    tensor.data_location = TensorProto.EXTERNAL
    for key, one in {"location": location, **said}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(one)
    return tensor


def adding(tensor: Any) -> Any:
    """X + w, of four numbers."""
    return model(
        [helper.make_node("Add", ["x", "w"], ["y"])], [value("x", 4)], [value("y", 4)], [tensor]
    )


def linear(opset: int = 18) -> Any:
    """relu(x w^T + b) of a batch that varies."""
    generator = np.random.default_rng(0)
    return model(
        [
            helper.make_node("Gemm", ["x.1", "fc.weight", "fc.bias"], ["h"], transB=1),
            helper.make_node("Relu", ["h"], ["out"]),
        ],
        [value("x.1", "batch", 3)],
        [value("out", "batch", 2)],
        [
            weight("fc.weight", generator.standard_normal((2, 3), dtype=np.float32)),
            weight("fc.bias", generator.standard_normal(2, dtype=np.float32)),
        ],
        opset,
    )


make_node = helper.make_node
make_function = helper.make_function
make_opsetid = helper.make_opsetid
make_graph = helper.make_graph
Model = onnx.ModelProto


def images() -> Any:
    """A convolution, a norm, an activation, a mean and a linear layer, of a batch that varies."""
    generator = np.random.default_rng(0)

    def drawn(name: str, *shape: int) -> Any:
        return weight(name, generator.uniform(0.1, 1, shape).astype(np.float32))

    return model(
        [
            make_node("Conv", ["x", "conv.weight"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
            make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
            make_node("LeakyRelu", ["n"], ["r"], alpha=0.1),
            make_node("GlobalAveragePool", ["r"], ["g"]),
            make_node("Flatten", ["g"], ["f"]),
            make_node("Gemm", ["f", "fc.weight"], ["y"], transB=1),
        ],
        [value("x", "batch", 3, 16, 16)],
        [value("y", "batch", 5)],
        [
            drawn("conv.weight", 8, 3, 3, 3),
            *(drawn(name, 8) for name in ("scale", "bias", "mean", "var")),
            drawn("fc.weight", 5, 8),
        ],
    )

"""What users call: a file of ONNX -> a module.

model = anabranch.from_onnx("model.onnx")
fast = anabranch.compile(model, (x,))
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from dataclasses import replace
from functools import cache

import torch

from anabranch.errors import OnnxError, OptionError
from anabranch.frontend.onnx.check_graph import checked
from anabranch.frontend.onnx.fold import folded
from anabranch.frontend.onnx.graph import OnnxGraph, all_nodes, counted
from anabranch.frontend.onnx.matches import OWN_DOMAIN
from anabranch.frontend.onnx.module import OnnxModule, onnx_module
from anabranch.frontend.onnx.operators import OPERATORS
from anabranch.frontend.onnx.opset import modern
from anabranch.frontend.onnx.patterns import with_patterns
from anabranch.frontend.onnx.read import read_onnx
from anabranch.frontend.onnx.symbolic import Sizes, check_sizes

HALVES = (torch.float32, torch.float16, torch.bfloat16)


def from_onnx(
    path: str | os.PathLike[str],
    *,
    sizes: Sizes | None = None,
    dtype: torch.dtype = torch.float32,
) -> OnnxModule:
    """A model in ONNX's format as a module of torch that computes the same.

    Nothing is read but the file, and files in its folder that it names; no code of its author runs.

    Args:
        path: A file of any opset up to 28, with its weights, or with files of them beside it.
        sizes: Sizes that the file leaves open, by the file's names for them: a number, or
            the least and the largest: `{"batch": 8, "sequence": (1, 512)}`. Those that are not
            given vary without an end.
        dtype: What 32-bit floats of the file become: weights, and what nodes cast to them.

    Returns:
        A module in eval mode whose parameters and buffers are the file's weights by their names,
        and whose arguments are called as the file's inputs are. `compile` takes it like any
        module, and its `dynamic_shapes` are those of the sizes that vary.

    Raises:
        OnnxError: The file is damaged or not what it says, reads beyond its folder, or has
            operators that are not supported, all of which are named.
        OptionError: The packages of the extra `onnx` are missing, or `sizes` names what the file
            does not have.
    """
    if dtype not in HALVES:
        raise OptionError(
            f"floats cannot be {dtype}", "weights are cast to it", f"choose one of {HALVES}"
        )
    file = modern(read_onnx(path, dtype))
    _check_known(file.graph)
    _check_inputs(file.graph)
    file = with_patterns(folded(file))
    file = replace(file, graph=checked(file.graph, {*file.tensors, *file.scalars}))
    return onnx_module(file, dtype, check_sizes(file.graph.inputs, sizes or {}))


def _check_inputs(graph: OnnxGraph) -> None:
    """OnnxError for a node with fewer inputs than its operator needs, or more than it takes."""
    for node in all_nodes(graph):
        try:
            _signature(node.full_name).bind(None, *node.inputs)
        except TypeError as wrong:
            raise OnnxError(
                f"{node.full_name} {node.name or node.outputs[0]} has {len(node.inputs)} inputs",
                str(wrong),
                "the file is damaged: export the model again",
            ) from None


@cache
def _signature(operator: str) -> inspect.Signature:
    return inspect.signature(OPERATORS[operator].run)


def _check_known(graph: OnnxGraph) -> None:
    """OnnxError that names all operators without a function, those that occur most first."""
    unknown = Counter(
        {
            name: times
            for name, times in counted(graph).items()
            if name not in OPERATORS or name.startswith(f"{OWN_DOMAIN}.")
        }
    )
    if unknown:
        listed = ", ".join(f"{name} ({times})" for name, times in unknown.most_common())
        raise OnnxError(
            f"{len(unknown)} operators are not supported"
            if len(unknown) > 1
            else "an operator is not supported",
            f"by name, and how often each occurs: {listed}",
            "export the model without them, or run these parts with another program",
        )

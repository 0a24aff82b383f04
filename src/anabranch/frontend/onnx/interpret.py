"""Runs a graph: each node's function in order, on tensors, and on Python numbers where they do.

torch.export follows it as it follows any forward: the graph is Python data, and what is decided
by it is decided while capturing.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.graph import OnnxGraph, OnnxNode
from anabranch.frontend.onnx.host import MOST_HOST, Host, tensors_of
from anabranch.frontend.onnx.host_operators import HOST_OPERATORS
from anabranch.frontend.onnx.operators import OPERATORS
from anabranch.frontend.onnx.operators.operator import OnnxOperator

HOST_DTYPES = (
    *(torch.int64, torch.int32, torch.bool, torch.float32, torch.float64),
    *(torch.float16, torch.bfloat16),  # what floats of a file may have become: not rounded to
)
"""Whose arithmetic is Python's, once it is rounded."""
MOST_SHOWN = 60
"""Characters of a node's name."""


@dataclass(frozen=True, slots=True)
class Surface:
    """Where a graph runs: its constants by name, the device of its inputs, what floats are, and the
    name of its file."""

    constants: Mapping[str, Any]
    device: torch.device
    floats: torch.dtype
    name: str = ""


def run_graph(
    graph: OnnxGraph, inputs: Sequence[Any], outer: Mapping[str, Any], surface: Surface
) -> list[Any]:
    """The outputs of a graph: tensors, Host values, lists of them, or None."""
    own: dict[str, Any] = {
        declared.name: value for declared, value in zip(graph.inputs, inputs, strict=False)
    }
    values = ChainMap(own, outer)  # type: ignore[arg-type]  # it is only read
    for number, node in enumerate(graph.nodes, 1):
        frame = _frame(surface.name, node.name or node.op, number)
        try:
            frame(partial(_run_node, node, own, values, surface))
        except Exception as failed:
            failed.add_note(f"in {node.full_name} {node.name or node.outputs[0]} of the ONNX graph")
            raise
        for name in node.unused:
            own.pop(name, None)
    return [values[name] for name in graph.outputs]


@lru_cache(maxsize=1 << 14)
def _frame(file: str, node: str, number: int) -> Callable[[Callable[[], None]], None]:
    """What calls its argument from a frame that says where in the file it is: of an operator,
    torch.export keeps the frames of functions called forward. "net.onnx#fc1:12 in forward"."""
    plain = re.sub(r"[^\w.:-]", ".", node)[-MOST_SHOWN:].strip(".")
    code = (lambda work: work()).__code__
    code = code.replace(co_filename=f"{file}#{plain}", co_firstlineno=number, co_name="forward")
    return FunctionType(code, {})


def _run_node(
    node: OnnxNode, own: dict[str, Any], values: Mapping[str, Any], surface: Surface
) -> None:
    def run(body: OnnxGraph, inputs: Sequence[Any]) -> list[Any]:
        return run_graph(body, inputs, values, surface)

    call = OnnxCall(node, surface.floats, surface.device, run)
    operands = [values[name] if name else None for name in node.inputs]
    answer = _on_host(call, operands)
    if answer is None:
        operator = OPERATORS[node.full_name]
        answer = operator.run(call, *arguments(operator, operands, surface.device))
    results = answer if isinstance(answer, tuple) else (answer,)
    for name, value in zip(node.outputs, results, strict=False):
        if name:
            own[name] = value


def _on_host(call: OnnxCall, operands: Sequence[Any]) -> Any:
    """The answer in Python, None if there is none."""
    function = HOST_OPERATORS.get(call.node.op) if not call.node.domain else None
    if function is None or not operands or operands[0] is None:
        return None
    for value in operands:
        if value is not None and not (
            isinstance(value, Host) and value.dtype in HOST_DTYPES and value.array.size <= MOST_HOST
        ):
            return None
    try:
        return function(call, *operands)
    except (ArithmeticError, ValueError):  # of infinities, zeros and the like tensors know more
        return None


def arguments(operator: OnnxOperator, operands: Sequence[Any], device: torch.device) -> list[Any]:
    """The inputs as the operator wants them: tensors, numbers, or as they are."""
    if operator.as_given:
        return list(operands)
    converted = []
    for place, value in enumerate(operands):
        if place in operator.numbers:
            converted.append(numbers_of(value))
        elif isinstance(value, Host) and place in operator.either and not value.array.ndim:
            converted.append(value.array.item())
        else:
            converted.append(tensors_of(value, device))
    if converted and operator.either and not any(isinstance(item, Tensor) for item in converted):
        return [tensors_of(value, device) for value in operands]
    return converted


def numbers_of(value: Any) -> Any:
    """A number, or nested lists of numbers; a tensor is asked for its values."""
    if isinstance(value, Host):
        return value.array.tolist()
    return value.tolist() if isinstance(value, Tensor) else value

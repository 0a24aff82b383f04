"""Sequences and optional values: lists of tensors, and None."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.host import host
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable


def construct(call: OnnxCall, *tensors: Tensor) -> list[Tensor]:
    """SequenceConstruct."""
    return list(tensors)


def empty(call: OnnxCall) -> list[Tensor]:
    """SequenceEmpty."""
    return []


def at(call: OnnxCall, sequence: list[Tensor], place: Any) -> Tensor:
    """SequenceAt."""
    return sequence[place[0] if isinstance(place, list) else place]


def insert(call: OnnxCall, sequence: list[Tensor], x: Tensor, place: Any = None) -> list[Tensor]:
    """SequenceInsert, at the end by default."""
    elements = list(sequence)
    at = place[0] if isinstance(place, list) else place
    elements.insert(len(elements) if at is None else at, x)
    return elements


def erase(call: OnnxCall, sequence: list[Tensor], place: Any = None) -> list[Tensor]:
    """SequenceErase, of the last by default."""
    elements = list(sequence)
    at = place[0] if isinstance(place, list) else place
    del elements[-1 if at is None else at]
    return elements


def length(call: OnnxCall, sequence: list[Tensor]) -> Any:
    """SequenceLength."""
    return host(len(sequence), torch.int64)


def concat(call: OnnxCall, sequence: list[Tensor]) -> Tensor:
    """ConcatFromSequence, along an axis or a new one."""
    axis = call.need("axis", int)
    return torch.stack(sequence, axis) if call.get("new_axis", 0) else torch.cat(sequence, axis)


def split(call: OnnxCall, x: Tensor, sizes: Any = None) -> list[Tensor]:
    """SplitToSequence: parts of a size, of sizes, or one by one."""
    axis = call.get("axis", 0)
    if sizes is not None:
        return list(torch.split(x, sizes, axis))
    parts = list(torch.split(x, 1, axis))
    return parts if call.get("keepdims", 1) else [part.squeeze(axis) for part in parts]


def optional(call: OnnxCall, x: Any = None) -> Any:
    """Optional: the value itself, or None."""
    return x


def has_element(call: OnnxCall, x: Any = None) -> Any:
    """OptionalHasElement."""
    return host(x is not None, torch.bool)


SEQUENCE: OperatorTable = {
    "ConcatFromSequence": OnnxOperator(concat),
    "Optional": OnnxOperator(optional),
    "OptionalGetElement": OnnxOperator(optional),
    "OptionalHasElement": OnnxOperator(has_element),
    "SequenceAt": OnnxOperator(at, numbers=(1,)),
    "SequenceConstruct": OnnxOperator(construct),
    "SequenceEmpty": OnnxOperator(empty),
    "SequenceErase": OnnxOperator(erase, numbers=(1,)),
    "SequenceInsert": OnnxOperator(insert, numbers=(2,)),
    "SequenceLength": OnnxOperator(length),
    "SplitToSequence": OnnxOperator(split, numbers=(1,)),
}

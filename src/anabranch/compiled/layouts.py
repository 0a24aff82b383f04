"""Results that lie in memory as eager's would: where inputs lie otherwise than the example's.

    compiled with x in channels_last    results of the plan are channels_last, whatever a call gives
    called with x contiguous            the model would return contiguous results

A plan copies inputs into buffers that lie as the example did, so its results lie as the example's.
How the model's would lie follows from the captured graph: the types of its values, inferred once
for each way in which inputs lie. A result that would lie otherwise is copied. A loaded plan has no
captured graph any more: it says once that strides may differ. Numbers are the same in any case.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from anabranch.compiled.entry import Entry
from anabranch.frontend.relayout import Strides, types_for
from anabranch.ir import ops
from anabranch.ir.graph import Graph, types
from anabranch.ir.task import value_types
from anabranch.ir.types import TensorType

Relaid = Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]
MOST_LAYOUTS = 64
"""Ways in which inputs lie that are remembered; more are looked at each time."""
OTHERWISE = (
    "inputs lie in memory otherwise than those that {name} was compiled with, and its results lie "
    "as they would for those: their numbers are right, their strides may not be the model's; call "
    ".contiguous() on results whose strides matter, or compile it for such inputs"
)


def relaid(entry: Entry) -> Relaid | None:
    """What gives results of a call the strides that the model's have; None where the strides of
    inputs make no difference."""
    tasks, table = entry.plan.tasks, value_types(entry.plan.tasks)
    results = [table[ref.name] for ref in tasks.outputs]
    kept = {state.output for state in tasks.states}
    if not any(_wide(type) for i, type in enumerate(results) if i not in kept):
        return None
    watched = [(i, v.type.strides) for i, v in enumerate(tasks.call_inputs) if _wide(v.type)]
    if not watched:
        return None
    compilation, cached = entry.compilation, dict[tuple[Strides, ...], list[Strides | None]]()
    graph, device = None if compilation is None else compilation.captured.graph, entry.device
    told = [False]

    def wanted(tensors: Sequence[Tensor]) -> list[Strides | None]:
        key = tuple(tensor.stride() for tensor in tensors)
        if key in cached:
            return cached[key]
        inferred = None if graph is None or device is None else model_strides(graph, key, device)
        if inferred is None and not told[0]:
            told[0] = True
            warnings.warn(OTHERWISE.format(name=tasks.name), stacklevel=5)
        changes = [
            None if i in kept else strides
            for i, strides in enumerate(inferred or [None] * len(results))
        ]
        if len(cached) < MOST_LAYOUTS:
            cached[key] = changes
        return changes

    def relay(tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> Sequence[Tensor]:
        for place, strides in watched:
            if tensors[place].stride() != strides:
                break
        else:
            return outputs
        changes = wanted(tensors)
        if not any(changes):
            return outputs
        return [
            output.detach() if strides is None else _as(output, strides)
            for output, strides in zip(outputs, changes, strict=True)
        ]

    return relay


def model_strides(
    graph: Graph, input_strides: Sequence[Strides], device: torch.device
) -> list[Strides | None] | None:
    """The strides of the graph's outputs for inputs with these strides on this device, None for an
    output that has those that it has for the example's; None where they cannot be inferred."""
    own, table = types(graph), types_for(graph, input_strides, device)
    if table is None:
        return None
    pairs = ((own[ref.name], table[ref.name]) for ref in graph.outputs)
    return [None if ops.same_layout(old, new) else new.strides for old, new in pairs]


def _wide(type: TensorType) -> bool:
    """Whether it has two axes that may lie in either order."""
    return sum(size > 1 for size in type.shape) > 1


def _as(tensor: Tensor, strides: Strides) -> Tensor:
    """A copy in these strides; what is the same along an axis (stride 0) is written once."""
    single = tensor.detach()
    for axis, stride in enumerate(strides):
        if stride == 0 and tensor.shape[axis] > 1:
            single = single.narrow(axis, 0, 1)
    result = torch.empty_strided(
        single.shape, strides, dtype=tensor.dtype, device=tensor.device, requires_grad=False
    )
    return result.copy_(single).expand(tensor.shape)

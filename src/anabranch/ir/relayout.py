"""The types of a graph's values for inputs that lie in memory otherwise than the example's.

    %relu = relu(%x)       x in channels_last: the result, too
    %mm = mm(%flat, %w)    contiguous, however x lies
    %new = select_scatter(%x, %row, 0, 1)    x with gaps: as a clone of x, without

Shapes and dtypes stay: strides alone are inferred anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, Ref, types
from anabranch.ir.types import TensorType

Strides = tuple[int, ...]
VIEW, RESHAPE = "aten.view.default", "aten.reshape.default"
CLONE, VIEW_OF_COPY = "aten.clone.default", "aten._unsafe_view.default"
"""The operator that a reshape is captured as where the example lay so that it copied."""
WRITTEN = frozenset(
    f"aten.{name}.default"
    for name in (
        "copy",
        "select_scatter",
        "slice_scatter",
        "diagonal_scatter",
        "as_strided_scatter",
    )
)
"""What writes to a clone of its operand became, which is not there any more. Torch keeps gaps."""


def types_for(graph: Graph, input_strides: Sequence[Strides]) -> dict[str, TensorType] | None:
    """The types of all values, by name, for inputs of a call with these strides; None where they
    cannot be inferred."""
    own, table = types(graph), types(graph)
    copies = {node.name: node.uses[0] for node in graph.nodes if node.op == CLONE}
    for value, strides in zip(graph.call_inputs, input_strides, strict=True):
        table[value.name] = TensorType(value.type.shape, value.type.dtype, strides)
    try:
        for node in graph.nodes:
            copied = copies.get(node.uses[0]) if node.op == VIEW_OF_COPY else None
            if any(table[name] != own[name] for name in (*node.uses, copied) if name is not None):
                table.update(zip(node.results, _inferred(node, table, copied), strict=True))
    except (RuntimeError, ValueError, TypeError, NotImplementedError):  # whatever torch says
        return None
    return table


def _inferred(
    node: Node, table: Mapping[str, TensorType], copied: str | None
) -> Sequence[TensorType]:
    """The types of its results. A view of what lies otherwise is a copy, as a reshape makes one;
    and what was a view of a copy (of `copied`) may be none of a copy."""
    if copied is not None:
        return ops.infer(RESHAPE, (Ref(copied), *node.args[1:]), node.kwargs, table)
    try:
        types = ops.infer(node.op, node.args, node.kwargs, table)
    except RuntimeError:
        if node.op != VIEW:
            raise
        return ops.infer(RESHAPE, node.args, node.kwargs, table)
    return [_without_gaps(type) for type in types] if node.op in WRITTEN else types


def _without_gaps(type: TensorType) -> TensorType:
    """As a clone of such a tensor lies."""
    tensor = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device="meta")
    return TensorType(type.shape, type.dtype, torch.empty_like(tensor).stride())

"""Calls of `contiguous()` as nodes of the graph, also where the example lies in one row already.

    x.contiguous().relu()     example contiguous, call transposed

    without the node   %relu = relu(%x)                     the strides of x
    with it            %clone = clone(%x, contiguous)       the strides of eager
                       %relu = relu(%clone)

Torch answers such calls without an operator where there is nothing to do. Here they become copies
that no kernel makes for inputs that lie as the example's, where nobody can tell a copy from a view.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
CALLED: Any = Tensor.contiguous


class ContiguousByOperator(TorchFunctionMode):
    """Within it contiguous() of a tensor is an operator, of another view of it: others still read
    the tensor as it lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is CALLED and not isinstance(args[0], nn.Parameter) and _several(args[0]):
            return aten.contiguous.default(aten.alias.default(args[0]), **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def copy_contiguous(program: ExportedProgram) -> None:
    """Write calls of `contiguous` that give back what they are given as copies, in place, but for
    those of views of weights and buffers, which always lie alike. For programs in which no write
    tells a copy from a view."""
    specs = program.graph_signature.input_specs
    fixed = {spec.arg.name for spec in specs if spec.kind is not InputKind.USER_INPUT}
    for node in program.graph.nodes:
        operands = node.all_input_nodes
        if node.op == "call_function" and all(operand.name in fixed for operand in operands):
            fixed.add(node.name)
        elif node.target is aten.contiguous.default:
            format = node.kwargs.get("memory_format") or torch.contiguous_format
            source, value = operands[0].meta["val"], node.meta["val"]
            strides = source.clone(memory_format=format).stride()
            if source.stride() == value.stride() == strides:  # of axes of one a copy has its own
                node.target, node.kwargs = aten.clone.default, {"memory_format": format}


def _several(tensor: Any) -> bool:
    """Whether it may lie in several ways: two of its axes are longer than one."""
    return isinstance(tensor, Tensor) and sum(size != 1 for size in tensor.shape) > 1

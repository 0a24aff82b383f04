"""Calls that lay a tensor in a memory format, as nodes of the graph, where the example lies so too.

    x.contiguous().relu()     example contiguous, call transposed

    without the node   %relu = relu(%x)                     the strides of x
    with it            %clone = clone(%x, contiguous)       the strides of eager
                       %relu = relu(%clone)

    x.to(memory_format=torch.channels_last)      %clone = clone(%x, channels_last)

Torch answers `contiguous()` without an operator where there is nothing to do, and takes `to()` for
its operand. Here they become copies that no kernel makes for inputs that lie as the example's,
where nobody can tell a copy from a view.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
CALLED: Any = Tensor.contiguous
IMAGES = (4, 5)
"""Axes of a tensor that may lie in a channels_last format."""


class ContiguousByOperator(TorchFunctionMode):
    """Within it contiguous() of a tensor is an operator, of another view of it: others still read
    the tensor as it lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is CALLED and not isinstance(args[0], nn.Parameter) and _several(args[0]):
            return aten.contiguous.default(aten.alias.default(args[0]), **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def copy_contiguous(program: ExportedProgram) -> None:
    """Write calls of `contiguous`, and of `to` with a memory format, that give back their operand
    as copies, in place, but for those of views of weights and buffers, which always lie alike. For
    programs in which no write tells a copy from a view."""
    specs = program.graph_signature.input_specs
    fixed = {spec.arg.name for spec in specs if spec.kind is not InputKind.USER_INPUT}
    for node in program.graph.nodes:
        operands = node.all_input_nodes
        if node.op == "call_function" and all(operand.name in fixed for operand in operands):
            fixed.add(node.name)
        elif (format := asked_format(node)) is not None:
            source, value = operands[0].meta["val"], node.meta["val"]
            strides = source.clone(memory_format=format).stride()
            same = source.stride() == value.stride() == strides  # axes of one get others in a copy
            if same and (source.dtype, source.device) == (value.dtype, value.device):
                node.target, node.args = aten.clone.default, (operands[0],)
                node.kwargs = {"memory_format": format}


def asked_format(node: fx.Node) -> torch.memory_format | None:
    """The memory format that a call of `contiguous` or `to` asks for; None of others, and where it
    makes no difference: to(memory_format=torch.contiguous_format) copies images and volumes in a
    channels_last format alone."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return None
    packet = op.overloadpacket
    if packet not in (aten.contiguous, aten.to):
        return None
    arguments = dict(zip((a.name for a in op._schema.arguments), node.args, strict=False))
    arguments |= node.kwargs
    format: Any = arguments.get("memory_format")
    if packet is aten.contiguous:
        return format or torch.contiguous_format
    if format in (None, torch.preserve_format):
        return None
    rows = format is torch.contiguous_format and node.meta["val"].dim() not in IMAGES
    return None if rows else format


def _several(tensor: Any) -> bool:
    """Whether it may lie in several ways: two of its axes are longer than one."""
    return isinstance(tensor, Tensor) and sum(size != 1 for size in tensor.shape) > 1

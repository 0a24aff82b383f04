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

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.overrides import TorchFunctionMode

from anabranch.ir import custom_ops

aten = torch.ops.aten
TO_CONTIGUOUS = custom_ops.OPS.to_contiguous.default
CALLED: Any = Tensor.contiguous
IMAGES = (4, 5)
"""Axes of a tensor that may lie in a channels_last format."""
LAID = "memory format"
"""By this name the `meta` of a node has the format that its call asks for."""


class ContiguousByOperator(TorchFunctionMode):
    """Within it contiguous() of a tensor is an operator, of another view of it: others still read
    the tensor as it lies."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is CALLED and not isinstance(args[0], nn.Parameter) and _long(args[0]):
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
            if node.target.overloadpacket is aten.to and format is torch.contiguous_format:
                _write_to(node, operands[0])
            else:
                _write_copy(node, operands[0], format)


class LaidByCopies(TorchFunctionMode):
    """Within it a call that asks for a memory format and gives back its operand gives an alias of
    it. `mark`: told the format of it, while the alias is traced. For traces below composites, which
    do not see such calls."""

    def __init__(self, mark: Callable[[torch.memory_format], AbstractContextManager[None]]) -> None:
        super().__init__()
        self._mark = mark

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        default = torch.contiguous_format if func is CALLED else torch.preserve_format
        format = kwargs.get("memory_format", default)
        if not args or result is not args[0] or not several(result):
            return result
        if format is torch.preserve_format or (func is not CALLED and _keeps(format, args[0])):
            return result
        with self._mark(format):
            return aten.alias.default(result)


def copy_laid(graph: fx.Graph, held: Collection[str]) -> None:
    """Write aliases that were marked, by a memory format in `meta[LAID]`, as copies, in place, but
    for those of what is computed of nothing but tensors of the model: placeholders called `held`,
    and constants."""
    fixed = set[fx.Node]()
    for node in graph.nodes:
        called = node.op == "call_function" and fixed.issuperset(node.all_input_nodes)
        if called or node.name in held or node.op == "get_attr":
            fixed.add(node)
        elif LAID in node.meta and node.target is aten.alias.default:
            _write_copy(node, node.args[0], node.meta[LAID])


def _write_copy(node: fx.Node, source: Any, format: torch.memory_format) -> None:
    """Have the node copy, where that gives what it gives: axes of one have other strides in a copy
    at times."""
    was, value = source.meta["val"], node.meta["val"]
    strides = was.clone(memory_format=format).stride()
    same = was.stride() == value.stride() == strides
    if same and (was.dtype, was.device) == (value.dtype, value.device):
        node.target, node.args = aten.clone.default, (source,)
        node.kwargs = {"memory_format": format}


def _write_to(node: fx.Node, source: Any) -> None:
    """Have the node say that it lays images in rows that are channels_last, and no others."""
    was, value = source.meta["val"], node.meta["val"]
    if (was.dtype, was.device) == (value.dtype, value.device) and not _copies(node):
        node.target, node.args, node.kwargs = TO_CONTIGUOUS, (source,), {}


def _copies(node: fx.Node) -> bool:
    """Whether a call of `to` copies in any case."""
    op: Any = node.target
    arguments = zip((a.name for a in op._schema.arguments), node.args, strict=False)
    return bool({**dict(arguments), **node.kwargs}.get("copy"))


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
    format = arguments.get("memory_format")
    if not isinstance(format, torch.memory_format):
        return torch.contiguous_format if packet is aten.contiguous else None
    if packet is aten.contiguous:
        return format
    if format is torch.preserve_format or _keeps(format, node.meta["val"]):
        return None
    return format


def _keeps(format: torch.memory_format, tensor: Tensor) -> bool:
    """Whether `to` gives tensors of this rank back, however they lie."""
    return format is torch.contiguous_format and tensor.dim() not in IMAGES


def _long(tensor: Any) -> bool:
    """Whether it may lie in several ways, with gaps between its elements among them."""
    return isinstance(tensor, Tensor) and any(size != 1 for size in tensor.shape)


def several(tensor: Any) -> bool:
    """Whether it may lie in several ways: two of its axes are longer than one, or may be."""
    if not isinstance(tensor, Tensor):
        return False
    return sum(type(size) is not int or size != 1 for size in tensor.shape) > 1

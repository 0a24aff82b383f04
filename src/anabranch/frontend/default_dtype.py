"""Which calls give tensors of torch's default dtype, and how they say of what dtype.

    ones([4])          under float64   ->   ones([4], dtype=float64)
    div(i, 3)          under float64   ->   div(_to_copy(i, dtype=float64), 3)

All rooms but this one run under float32, whatever the model was captured under. A model that sets
another default in forward is told so before anything traces it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.node import map_aggregate

from anabranch.ir import ops
from anabranch.ir.graph import Arg, Ref
from anabranch.ir.types import TensorType

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
Kwargs = tuple[tuple[str, Arg], ...]


def undeclared(
    default: torch.dtype,
    args: Iterable[Arg],
    kwargs: Kwargs,
    results: Iterable[TensorType],
    types: Mapping[str, TensorType],
) -> bool:
    """Whether a result has the default dtype, and no operand or argument said so. `types`: those
    of operands."""
    if not any(type.dtype in (default, COMPLEX.get(default)) for type in results):
        return False
    arguments = [*args, *(arg for _, arg in kwargs)]
    for arg in arguments:
        arguments += arg if isinstance(arg, tuple) else ()
    read = (types[arg.name].dtype for arg in arguments if isinstance(arg, Ref))
    real = any(dtype.is_floating_point or dtype.is_complex for dtype in read)
    return not real and not any(isinstance(arg, torch.dtype) for arg in arguments)


def declared(
    default: torch.dtype,
    op: str,
    args: tuple[Arg, ...],
    kwargs: Kwargs,
    cast: Callable[[Ref], Ref],
) -> tuple[tuple[Arg, ...], Kwargs]:
    """The arguments to call the operator with, so that it gives the same under float32: told the
    dtype, or with operands that have it, which `cast` makes."""
    if default == torch.float32:
        return args, kwargs
    if any(argument.name == "dtype" for argument in ops.resolve(op)._schema.arguments):
        return args, (*(pair for pair in kwargs if pair[0] != "dtype"), ("dtype", default))

    def real(arg: Arg) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(real, arg))
        return cast(arg) if isinstance(arg, Ref) else arg

    return tuple(map(real, args)), tuple((key, real(arg)) for key, arg in kwargs)


def declare(graph: fx.Graph) -> None:
    """Say in the graph of an export of what dtype calls are that are of another than the default,
    because the model had set that meanwhile: the next trace knows nothing of it."""
    default = torch.get_default_dtype()
    for node in list(graph.nodes):
        value, op = node.meta.get("val"), node.target
        if not (
            isinstance(op, OpOverload) and op.namespace == "aten" and isinstance(value, Tensor)
        ):
            continue
        if not _by_another(node, value.dtype, default):
            continue
        if any(argument.name == "dtype" for argument in op._schema.arguments):
            node.kwargs = {**node.kwargs, "dtype": value.dtype}
        elif torch.Tag.pointwise in op.tags:
            _cast_operands(graph, node, value.dtype)


def _by_another(node: fx.Node, dtype: torch.dtype, default: torch.dtype) -> bool:
    """Whether the dtype is a default that is not the one of now: no operand or argument says so."""
    real = dtype.is_floating_point or dtype.is_complex
    if not real or dtype in (default, COMPLEX.get(default)):
        return False
    read = (source.meta.get("val") for source in node.all_input_nodes)
    dtypes = [x.dtype for x in read if isinstance(x, Tensor)]
    told: list[bool] = [x.is_floating_point or x.is_complex for x in dtypes]
    map_aggregate((node.args, node.kwargs), lambda x: told.append(isinstance(x, torch.dtype)))
    return not any(told)


def _cast_operands(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> None:
    for source in node.all_input_nodes:
        value = source.meta.get("val")
        if isinstance(value, Tensor):
            with graph.inserting_before(node):
                cast = graph.call_function(
                    torch.ops.aten._to_copy.default, (source,), {"dtype": dtype}
                )
            cast.meta = {**node.meta, "val": value.to(dtype)}
            node.replace_input_with(source, cast)

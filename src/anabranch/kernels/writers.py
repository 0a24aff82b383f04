"""How ATen operators write into memory they are given.

A plan places every value before anything runs, so a kernel must be able to write *there*. ATen has
`out=` overloads for all operators, but many only compute elsewhere and copy; only overloads with a
kernel of their own count. For some operators that lack one, another operator computes the same and
has one (`relu` is `clamp_min` with 0; a copy is `copy_`). Convolutions have neither.

    writer("aten.add.Tensor")    add.out(x, y, out=memory)
    writer("aten.relu.default")  clamp_min.out(x, 0, out=memory)
    writer("aten.conv2d.default")  None: allocates its result
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.ir import ops
from anabranch.ir.graph import Node
from anabranch.ir.types import TensorType

aten = torch.ops.aten
ResultOrDtype = Tensor | torch.dtype
Writer = Callable[..., None]
"""Called with the result tensors (the dtype of a result that nobody reads), then the operator's
own arguments."""


DENSE = frozenset(
    f"aten.{name}{rank}d"
    for rank in (1, 2, 3)
    for name in (
        *("reflection_pad", "replication_pad", "upsample_nearest", "_upsample_nearest_exact"),
        *("upsample_linear", "upsample_bilinear", "upsample_trilinear"),
    )
)
"""Moves whose kernels walk over memory as they would have laid it out, and not as it lies."""


PRODUCTS = frozenset(f"aten.{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "linear"))
"""Their results are contiguous, however what they read lies."""
LAID_ALIKE = {
    "aten.mean.dim": "aten.sum.dim_IntList",
    "aten.adaptive_avg_pool2d.default": "aten._adaptive_avg_pool2d.default",
}
"""What takes the same arguments and lays its result alike. Of these, and of products, torch imports
torch.compile to infer a type, a third of a second to two in each process that loads a plan."""
WITHOUT_OUT = frozenset(("aten.narrow_copy", "aten._fft_r2c", "aten._fft_c2c", "aten._fft_c2r"))
"""Their `out=` is not used. That of `narrow_copy` is for a CPU alone. Those of transforms compute
elsewhere and copy; on a GPU they also multiply by a complex number, even where that is 1: an
infinity that the operator itself returns becomes NaN."""
EMBEDDING_GRADIENT = "aten.embedding_dense_backward"
ROUNDABOUT = frozenset((EMBEDDING_GRADIENT,))
"""What is written by another operator that may be much slower: where all indices are the same, say.
Who offers kernels offers the operator itself as well."""


def can_write(node: Node) -> bool:
    """Whether the node's operator can put its results into given memory without an extra copy."""
    if node.op in ("aten.linear.default", "aten.embedding.default"):
        return node.type.contiguous
    if node.op in ops.VIEW_IF_POSSIBLE:
        return node.type.contiguous
    if ops.packet_name(node.op) == EMBEDDING_GRADIENT:
        return not ops.arguments(node)["scale_grad_by_freq"]
    if ops.packet_name(node.op) == "aten.max_pool2d_with_indices":
        return True
    return writer(node.op) is not None


def writes_there(node: Node, table: Mapping[str, TensorType]) -> bool:
    """Whether it can, and its results have strides that its writer keeps. Element by element any
    strides will do; kernels over windows and axes ignore those of the memory they are given."""
    if not can_write(node):
        return False
    if ops.kind_of(node) in ("pointwise", "move") and ops.packet_name(node.op) not in DENSE:
        return True
    if ops.packet_name(node.op) in PRODUCTS:
        return ops.same_layout(TensorType(node.type.shape, node.type.dtype), node.type)
    try:
        inferred = ops.infer(LAID_ALIKE.get(node.op, node.op), node.args, node.kwargs, table)
    except NotImplementedError:  # torch computes it, and cannot say how it would lay it out
        return False
    return all(map(ops.same_layout, inferred, node.types))


@functools.cache
def writer(op: str) -> Writer | None:
    """The call that writes, or None."""
    if ops.packet_name(op) in WRITERS:
        return WRITERS[ops.packet_name(op)]
    overload = native_out(op)
    return functools.partial(_call_out, overload) if overload is not None else None


@functools.cache
def native_out(op: str) -> torch._ops.OpOverload | None:
    """The overload with the same arguments and `out`, if it has a kernel of its own.

    Asked of the CPU dispatch key on purpose: structured and TensorIterator kernels exist for CPU
    and CUDA alike, and a build without CUDA must give the same answer.
    """
    if ops.packet_name(op) in WITHOUT_OUT:
        return None
    functional = ops.resolve(op)
    wanted = [(a.name, str(a.type)) for a in functional._schema.arguments]
    if any(name == "reduction" for name, _ in wanted):
        return None  # some losses make the memory larger, fill it, and make it small again
    packet = functional.overloadpacket
    for name in packet.overloads():
        candidate: torch._ops.OpOverload = getattr(packet, name)
        arguments = candidate._schema.arguments
        outs = [a for a in arguments if a.is_out]
        if not outs or [(a.name, str(a.type)) for a in arguments if not a.is_out] != wanted:
            continue
        if torch._C._dispatch_has_kernel_for_dispatch_key(
            candidate._schema.name + "." + name, "CPU"
        ):
            return candidate
    return None


def overwriter(node: Node) -> Writer:
    """The call that writes the node's result over its first operand: called with the one memory,
    then the operator's own arguments. ValueError for an operator that has none."""
    packet, _, overload = node.op.rpartition(".")
    if packet in OVERWRITERS:
        return OVERWRITERS[packet]
    name = packet.removeprefix("aten.").lstrip("_").removeprefix("unsafe_")
    in_place = getattr(getattr(aten, f"{name}_", None), overload, None)
    if in_place is None:
        raise ValueError(f"no operator writes {node.op} in place")
    return lambda results, _, *args, **kwargs: in_place(results[0], *args, **kwargs)


def _call_out(
    overload: torch._ops.OpOverload, results: Sequence[ResultOrDtype], *args: Any, **kwargs: Any
) -> None:
    names = [a.name for a in overload._schema.arguments if a.is_out]
    example = next(result for result in results if isinstance(result, Tensor))
    for name, result in zip(names, results, strict=True):
        kwargs[name] = result
        if not isinstance(result, Tensor):
            kwargs[name] = example.new_empty(0, dtype=result)
    overload(*args, **kwargs)


def _copy(results: Sequence[Tensor], source: Tensor, *_: Any, **__: Any) -> None:
    results[0].copy_(source)


def _copy_other(
    results: Sequence[Tensor], like: Tensor, source: Tensor, *_: Any, **__: Any
) -> None:
    results[0].copy_(source)


def _set_slice(
    results: Sequence[Tensor],
    _: Tensor,
    source: Tensor,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> None:
    aten.slice.Tensor(results[0], dim, start, end, step).copy_(source)


def _set_selected(
    results: Sequence[Tensor], _: Tensor, source: Tensor, dim: int, index: int
) -> None:
    results[0].select(dim, index).copy_(source)


def _slice_scatter(results: Sequence[Tensor], x: Tensor, *args: Any, **named: Any) -> None:
    results[0].copy_(x)
    _set_slice(results, x, *args, **named)


def _select_scatter(results: Sequence[Tensor], x: Tensor, *args: Any, **named: Any) -> None:
    results[0].copy_(x)
    _set_selected(results, x, *args, **named)


def _copy_reshaped(results: Sequence[Tensor], source: Tensor, *_: Any) -> None:
    results[0].view(source.shape).copy_(source)


def _relu(results: Sequence[Tensor], x: Tensor) -> None:
    aten.clamp_min.out(x, 0, out=results[0])


def _linear(results: Sequence[Tensor], x: Tensor, w: Tensor, bias: Tensor | None = None) -> None:
    flat = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)  # reshape(-1, 0) means nothing
    out = results[0].view(flat.shape[0], w.shape[0])
    if bias is None:
        aten.mm.out(flat, w.t(), out=out)
    else:
        aten.addmm.out(bias, flat, w.t(), out=out)


def _wide_mm(results: Sequence[Tensor], a: Tensor, b: Tensor) -> None:
    if a.is_cuda and a.dtype in (torch.float16, torch.bfloat16):
        aten.mm.dtype_out(a, b, torch.float32, out=results[0])
    else:
        wide = results[0].dtype
        aten.mm.out(a.to(wide), b.to(wide), out=results[0])


def _embedding(results: Sequence[Tensor], table: Tensor, indices: Tensor, *_: Any) -> None:
    out = results[0].view(-1, table.shape[1])
    aten.index_select.out(table, 0, indices.reshape(-1), out=out)


def _embedding_gradient(
    results: Sequence[Tensor],
    gradient: Tensor,
    indices: Tensor,
    rows: int,
    padding: int,
    by_count: bool,
) -> None:
    """In one order always: torch's sums over indices are sorted first on a GPU."""
    assert not by_count, "nobody says that it writes that"
    table, flat = results[0].zero_(), indices.reshape(-1).long()
    gradients = gradient.reshape(-1, gradient.shape[-1])
    if gradient.is_cuda:
        # Unsafe only in that the host does not look at the indices, which no graph can.
        aten._index_put_impl_.default(table, [flat], gradients, True, True)
    else:
        table.index_add_(0, flat, gradients)
    if 0 <= padding < rows:
        table[padding].zero_()


def _max_pool(results: Sequence[ResultOrDtype], x: Tensor, *args: Any) -> None:
    values, indices = (*results, torch.int64)[:2]
    if not isinstance(values, Tensor):
        assert isinstance(indices, Tensor), "a call nobody reads"
        values = torch.empty_like(indices, dtype=x.dtype)
    if not isinstance(indices, Tensor):
        indices = torch.empty_strided(
            values.shape, values.stride(), dtype=torch.int64, device=x.device
        )
    aten.max_pool2d_with_indices.out(x, *args, out=values, indices=indices)


def _adaptive_avg_pool(results: Sequence[Tensor], x: Tensor, size: Sequence[int]) -> None:
    if list(size) == [1, 1]:
        aten.mean.out(x, [-2, -1], True, out=results[0])
    else:
        aten.adaptive_avg_pool2d.out(x, size, out=results[0])


def _stack(results: Sequence[Tensor], tensors: Sequence[Tensor], dim: int = 0) -> None:
    dim = dim % results[0].dim()
    aten.cat.out([tensor.unsqueeze(dim) for tensor in tensors], dim, out=results[0])


def _rsub(results: Sequence[Tensor], x: Tensor, other: Any, alpha: Any = 1) -> None:
    """Writes other - alpha * x; a number becomes a tensor of no dimension, held by the host."""
    if not isinstance(other, Tensor):
        other = torch.tensor(other)
    aten.sub.out(other, x, alpha=alpha, out=results[0])


def _pad(results: Sequence[Tensor], x: Tensor, pad: Sequence[int], value: Any = 0) -> None:
    inner = results[0]
    inner.fill_(value)
    for i in range(len(pad) // 2):
        dim, before, after = x.dim() - 1 - i, pad[2 * i], pad[2 * i + 1]
        x = x.narrow(dim, max(-before, 0), x.shape[dim] - max(-before, 0) - max(-after, 0))
        inner = inner.narrow(dim, max(before, 0), x.shape[dim])
    inner.copy_(x)


WRITERS: dict[str, Writer] = {
    "aten.clone": _copy,
    "aten.contiguous": _copy,
    "aten._to_copy": _copy,
    "aten.reshape": _copy_reshaped,
    "aten._unsafe_view": _copy_reshaped,
    "aten.relu": _relu,
    "aten.linear": _linear,
    "anabranch.wide_mm": _wide_mm,
    "aten.embedding": _embedding,
    EMBEDDING_GRADIENT: _embedding_gradient,
    "aten.max_pool2d": _max_pool,
    "aten.max_pool2d_with_indices": _max_pool,
    "aten.adaptive_avg_pool2d": _adaptive_avg_pool,
    "aten._adaptive_avg_pool2d": _adaptive_avg_pool,
    "aten.constant_pad_nd": _pad,
    "aten.rsub": _rsub,
    "aten.stack": _stack,
    # Where x lies with gaps, ATen's own copy all that x lies in: of a plan, the arena.
    **{"aten.slice_scatter": _slice_scatter, "aten.select_scatter": _select_scatter},
    "aten.copy": _copy_other,
}


OVERWRITERS: dict[str, Writer] = {
    "aten.copy": _copy_other,
    "aten.slice_scatter": _set_slice,
    "aten.select_scatter": _set_selected,
}
"""Where ATen has no operator that writes in place."""

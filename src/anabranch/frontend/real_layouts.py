"""Operators of which torch says, where there are no values, that they lie otherwise than they do.

    torch.roll(x, 1, 2)       x in channels_last on a CPU: so is the result; torch says in rows
    2.0 ** x                  in rows, however x lies; torch says as x
    torch.copysign(x, y)      as its operands; torch says in rows

Torch computes such a result by one function and infers its strides by another. In our traces it
lies as it does in eager. That matters wherever strides decide: random numbers are drawn in the
order of memory, a reshape is a view or a copy, and results of a plan lie as those of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import _prims_common as prims
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from anabranch.ir import ops

Lying = Callable[..., Tensor]
"""lying(result, *args, **kwargs): a result, without values, in its own strides; from the one that
torch infers, and what the operator is called with."""


def _in_rows(result: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty(result.shape, device="meta")


def _in_format_of_first(result: Tensor, first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """In channels_last if the first operand is, else in rows."""
    format = suggest_memory_format(first)
    return torch.empty(result.shape, memory_format=format, device="meta")


def _as_first(result: Tensor, first: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As a clone of the first operand; a sum of all losses as torch says."""
    return _elementwise(result, first) if result.dim() else result


def _as_second(result: Tensor, first: Tensor, second: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As a clone of the second operand."""
    return _as_first(result, second)


def _elementwise(result: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """As the sum of all operands."""
    operands = [arg for arg in args if isinstance(arg, Tensor)]
    bare = [*map(_bare, operands)]
    if not any(map(_varies, operands)):
        return sum(bare[1:], bare[0] + 0)
    alike: Any = torch.broadcast_tensors(*bare)  # type: ignore[no-untyped-call]
    strides: Any = prims.compute_elementwise_output_strides(*alike)
    return torch.empty_strided(result.shape, strides, device="meta")


def _as_two_parts(result: Tensor, first: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    """As its parts lie that a roll joins, dimension by dimension: in rows where one is empty."""
    rolled = _bare(first if dims else result.contiguous())
    for shift, dim in zip(shifts, dims, strict=False):
        size = rolled.shape[dim]
        start = (size - shift) % size if size else 0
        rolled = torch.cat(
            [rolled.narrow(dim, start, size - start), rolled.narrow(dim, 0, start)], dim
        )
    return rolled


def _on_cpu(laid: Lying, names: tuple[str, ...]) -> dict[str, Lying]:
    def on_cpu(result: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return laid(result, *args, **kwargs) if result.device.type == "cpu" else result

    return dict.fromkeys(names, on_cpu)


def laying(infer: Callable[..., Any]) -> Callable[..., Any]:
    """FakeTensorMode's method that says what an operator gives, with results that lie as eager's.
    `infer`: torch's."""

    def inferred(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        results = infer(mode, func, types, args, kwargs)
        laid = LAID.get(func)
        if laid is None:
            return results
        first, *rest = results if isinstance(results, (tuple, list)) else (results,)
        operands = [arg for arg in args if isinstance(arg, Tensor)]
        if mode.propagate_real_tensors or not all(map(_is_asked, (first, *operands))):
            return results
        with torch._C._DisableTorchDispatch():
            strides = laid(first, *args, **kwargs).stride()
            if not _varies(first) and strides == first.stride():
                return results
            lies = torch.empty_strided(first.shape, strides, dtype=first.dtype, device="meta")
        lying = FakeTensor(mode, lies, first.device)
        return (lying, *rest) if isinstance(results, (tuple, list)) else lying

    return inferred


def lying_as(op: Any, by: Callable[..., Any]) -> Callable[..., Any]:
    """`by`, which takes this operator apart, with a first result that lies as the operator's: by
    itself it lies as the operands of its arithmetic, in their order there."""
    laid = LAID.get(op)
    if laid is None:
        return by

    def decomposed(*args: Any, **kwargs: Any) -> Any:
        results = by(*args, **kwargs)
        first, *rest = results if isinstance(results, (tuple, list)) else (results,)
        if not all(map(_is_asked, (first, *(arg for arg in args if isinstance(arg, Tensor))))):
            return results
        with torch._C._DisableTorchDispatch():
            lies = laid(first, *args, **kwargs)
            if lies.stride() == first.stride():
                return results
            order, _ = prims.compute_elementwise_output_logical_to_physical_perm(lies)
        lying = (
            first.permute(order).contiguous().permute([order.index(d) for d in range(lies.dim())])
        )
        return (lying, *rest) if isinstance(results, (tuple, list)) else lying

    return decomposed


def _is_asked(tensor: Tensor) -> bool:
    """Whether it has strides, which are numbers, or symbols with a guard on what is said of them:
    torch.compile has those. Where torch.export has symbols, no layout is asked."""
    if tensor.layout is not torch.strided:
        return False
    if not _varies(tensor):
        return True
    return not (torch.compiler.is_exporting() or free_unbacked_symbols(tensor))


def _bare(tensor: Tensor) -> Tensor:
    """One number for each of its elements, of any dtype, that lies as it does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), device="meta")


def _varies(tensor: Tensor) -> bool:
    return bool(tensor._has_symbolic_sizes_strides)


_BY_NAME: Mapping[str, Lying] = {
    **dict.fromkeys(("isin.Tensor_Tensor", "isin.Tensor_Scalar", "pow.Scalar"), _in_rows),
    **dict.fromkeys(("nll_loss2d_forward.default", "rrelu_with_noise.default"), _in_rows),
    "rrelu_with_noise_functional.default": _in_rows,
    **dict.fromkeys(("index_fill.int_Scalar", "index_fill.int_Tensor"), _as_first),
    **dict.fromkeys(("copysign.Tensor", "div.Tensor_mode", "floor_divide.default"), _elementwise),
    **dict.fromkeys(("heaviside.default", "logaddexp.default", "xlogy.Tensor"), _elementwise),
    **dict.fromkeys(("logical_and.default", "logical_or.default"), _elementwise),
    **dict.fromkeys(("logical_xor.default", "special_xlog1py.default"), _elementwise),
    "binary_cross_entropy.default": _as_first,
    "binary_cross_entropy_backward.default": _as_second,
    "logit_backward.default": _elementwise,
    **_on_cpu(_in_rows, ("log_sigmoid_forward.default",)),
    **_on_cpu(_as_two_parts, ("roll.default",)),
    **_on_cpu(
        _in_format_of_first,
        (
            *("channel_shuffle.default", "max_unpool2d.default"),
            *("reflection_pad3d.default", "replication_pad3d.default"),
            *("native_batch_norm.default", "_native_batch_norm_legit_no_training.default"),
            *("_native_batch_norm_legit.default", "_native_batch_norm_legit.no_stats"),
            "_native_batch_norm_legit_functional.default",
        ),
    ),
}
LAID: Mapping[Any, Lying] = {ops.resolve(f"aten.{name}"): laid for name, laid in _BY_NAME.items()}
"""By operator how its first result lies. That of a GPU's kernels is torch's, where none is said."""

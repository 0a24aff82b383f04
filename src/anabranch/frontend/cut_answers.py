"""What operators answer that ask for values: a call of the model -> answers in their order.

    y[y.sum(-1) > 0]        index    f32[5,8], strides (8, 1)
    y.max().item()          item     2.5
    (y > 0).nonzero()       nonzero  i64[7,2], strides (1, 7)

A trace has no values, and takes these in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from anabranch.errors import CaptureError
from anabranch.frontend.observe import own_inputs, unchanged
from anabranch.frontend.packed_sequences import PackedSequences
from anabranch.frontend.recorder import CallRecorder
from anabranch.frontend.source import raised_at, running_at
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.traced import NEEDS_GRADIENTS
from anabranch.frontend.value_checks import one_hot
from anabranch.frontend.written_by_strides import WrittenByStrides

BY_VALUES = frozenset((torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output))
PAST_OPERATORS = frozenset(
    (Tensor.numpy, Tensor.data_ptr, Tensor.__dlpack__, Tensor.untyped_storage, Tensor.storage)
)
IN_PLACE = {
    Tensor.__ior__: Tensor.bitwise_or_,
    Tensor.__iand__: Tensor.bitwise_and_,
    Tensor.__ixor__: Tensor.bitwise_xor_,
}
"""`mask |= other` is an operator of its own, which torch does not make functional in a trace."""
TORCH_NAMESPACES = ("aten", "prims", "prim", "anabranch")
"""Operators of torch and ours, which say by tags whether they ask for values; others do not."""


@dataclass(frozen=True, slots=True)
class ValueAnswer:
    """What an operator gave: a number, or of each tensor its shape and strides."""

    op: Any
    result: Any


@dataclass(frozen=True, slots=True)
class LaidTensor:
    """How a tensor that an operator gave lies in memory."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def answers_of(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    surroundings: Surroundings,
) -> tuple[list[ValueAnswer], Any, dict[str, Tensor], list[Tensor], str | None]:
    """The answers of operators that may ask for values, in order, the results of the call, which is
    made on inputs of its own, by name the tensors of the model that it wrote to, as it left them,
    so the tensors among its inputs, and the line of a write that reaches more in one layout than
    in another. CaptureError for a model that takes gradients in forward."""
    held = dict[str, Tensor]()
    if isinstance(model, nn.Module):
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    recorder = CallRecorder(held, ())
    with unchanged(model, args, kwargs), torch.no_grad(), surroundings.restored():
        args, kwargs = own_inputs(args, kwargs)
        try:
            by_strides = WrittenByStrides(held.values())
            noting, packing = _Noting(by_strides), PackedSequences(values=True)
            with by_strides, ByNumbers(refuse=False), packing, recorder, noting:
                results = recorder.of_its_own(model(*args, **kwargs))
            left = {name: held[name].detach().clone() for name in _written(recorder, held)}
            leaves = pytree.tree_leaves((args, kwargs))
            inputs = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
        except RuntimeError as refused:
            if not NEEDS_GRADIENTS.search(str(refused)):
                raise
            raise CaptureError(
                "the model asks for values of its tensors, and takes gradients in forward",
                "it would be cut where it asks, and a gradient reaches over such a cut",
                "choose by torch.where, or compile the part that takes the gradients",
                raised_at(refused),
            ) from refused
        finally:
            recorder.restore()
    left = {name: value for name, value in left.items() if not torch.equal(value, held[name])}
    return noting.answers, results, left, inputs, by_strides.line


def _written(recorder: CallRecorder, held: Mapping[str, Tensor]) -> list[str]:
    """The tensors in memory that was written to."""
    memories = {held[name].untyped_storage()._cdata for name in recorder.written if name in held}
    return [
        name
        for name, tensor in held.items()
        if tensor.layout is torch.strided and tensor.untyped_storage()._cdata in memories
    ]


class ByNumbers(TorchFunctionMode):
    """Reads lists of numbers one by one, for a trace sees each of these, has `one_hot` ask with
    values what it asks in a trace, and calls operators in place by their names. `refuse`:
    CaptureError for what reads memory past all operators: a trace has none to read, and no sizes
    as plain numbers, which torch's `linear` takes of rows on several axes."""

    def __init__(self, refuse: bool) -> None:
        super().__init__()
        self._refuse = refuse

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.tolist:
            return _listed(args[0])
        if func is torch.nn.functional.one_hot:
            named = dict(kwargs or {})
            classes = args[0] if args else named.pop("input")
            return one_hot(classes, *args[1:], **named)
        if self._refuse and func is torch.nn.functional.linear and _of_symbols(args):
            x = args[0]
            rows = func(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), *args[1:], **kwargs or {})
            return rows.reshape(*x.shape[:-1], rows.shape[-1])
        if self._refuse and func in PAST_OPERATORS:
            raise CaptureError(
                f"the model calls {func.__name__} of a tensor",
                "what reads the memory of a tensor by other ways than operators cannot be traced",
                "compile the parts before and after it, or put it behind a custom operator",
                running_at(),
            )
        return IN_PLACE.get(func, func)(*args, **(kwargs or {}))


def _of_symbols(args: Sequence[Any]) -> bool:
    """Whether the first of these is a tensor with rows on several axes, whose sizes values say."""
    several = bool(args) and isinstance(args[0], Tensor) and args[0].dim() > 2
    return several and any(type(size) is not int for size in args[0].shape)


def _listed(tensor: Tensor) -> Any:
    return [_listed(row) for row in tensor] if tensor.dim() else tensor.item()


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch annotates none of it
    supports_higher_order_operators = True

    def __init__(self, by_strides: WrittenByStrides) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self.answers: list[ValueAnswer] = []
        self._by_strides = by_strides

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._by_strides.wrote(func, args)
        result = func(*args, **(kwargs or {}))
        if may_ask(func, args):
            self.answers.append(ValueAnswer(func, pytree.tree_map_only(Tensor, _laid, result)))
        return result


def _laid(tensor: Tensor) -> LaidTensor:
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return LaidTensor(shape, strides, tensor.dtype, tensor.device)


def may_ask(func: Any, args: Sequence[Any]) -> bool:
    """Whether what an operator gives may depend on values in more than values."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    if func is torch.ops.aten.index.Tensor:
        return by_mask(args[1])
    return func.namespace not in TORCH_NAMESPACES or bool(BY_VALUES.intersection(func.tags))


def by_mask(indices: Sequence[Any]) -> bool:
    """Whether one of these indices is a mask."""
    masks = (torch.bool, torch.uint8)
    return any(isinstance(index, Tensor) and index.dtype in masks for index in indices)

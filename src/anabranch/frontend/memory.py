"""Inputs that share memory where a plan writes to one of them: refused.

A plan reads copies of its inputs and writes back when it is done; the model writes while it runs,
and what it reads afterwards of another name of the same memory is new. So a written input may share
no element with another input, with itself, or with a buffer of the plan that is handed out.

    base, base[1:]       refused if one of them is written to
    kv[..., :8], kv[..., 8:]     allowed: they lie between each other, and share nothing
    fast(model.k)        refused if model.k is a state, which the plan writes to
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anabranch.errors import InputError
from anabranch.frontend.captured import Captured
from anabranch.frontend.structure import PLAIN_TENSORS, flatten_call
from anabranch.ir.types import overlaps, type_of

MOST_BYTES = 1 << 20
"""Bytes of a tensor that are looked at one by one."""
APART = "give each a tensor of its own, for example with .clone()"


def check_apart(tensors: Sequence[Tensor], names: Sequence[str], written: Iterable[int]) -> None:
    """InputError where one of the inputs at the places `written` shares memory with another."""
    for place in written:
        if overlaps(type_of(tensors[place])):
            raise InputError(
                f"the model writes to {names[place]}, whose elements share memory",
                "it is an expanded tensor or one like it, and torch refuses to write there, too",
                APART,
            )
        for other, tensor in enumerate(tensors):
            if other != place and share(tensors[place], tensor):
                raise InputError(
                    f"the inputs {names[place]} and {names[other]} share memory, "
                    f"and the model writes to {names[place]}",
                    "a plan reads both before it writes, the model does not: their results differ",
                    APART,
                )


def check_writable(tensors: Sequence[Tensor], names: Sequence[str], written: Iterable[int]) -> None:
    """InputError where autograd refuses a write to one of the inputs at the places `written`,
    before another of them is written to."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    for place in written:
        tensor = tensors[place]
        if tensor.is_inference() and not inference:
            why, instead = "was made in inference mode", "call under torch.inference_mode()"
        elif grad and tensor.requires_grad and _is_of_a_leaf(tensor):
            why, instead = "requires gradients and is a leaf", "call under torch.no_grad()"
        else:
            continue
        raise InputError(
            f"the model writes to {names[place]}, which {why}",
            "torch refuses to write there, and so it does for the model itself",
            f"{instead}, or give it a tensor of its own, for example with .detach().clone()",
        )


def _is_of_a_leaf(tensor: Tensor) -> bool:
    base = tensor._base
    return (tensor if base is None else base).is_leaf


class StateSpans:
    """Where the states of a plan lie, by their ends, so that a call skips most of hundreds."""

    def __init__(self, states: Mapping[str, Tensor]) -> None:
        """`states`: their places, by what a person calls them."""
        held = [(*_span(tensor), name, tensor) for name, tensor in states.items()]
        self._held = sorted(held, key=lambda span: span[1])
        self._ends = [end for _, end, _, _ in self._held]

    def check(self, tensors: Sequence[Tensor], names: Sequence[str]) -> None:
        """InputError where an input shares memory with a state."""
        for place, tensor in enumerate(tensors):
            if not has_memory(tensor):
                continue
            begin, stop = _span(tensor)
            for start, _, state, held in self._held[bisect_right(self._ends, begin) :]:
                if start < stop and share(tensor, held):
                    raise InputError(
                        f"the input {names[place]} shares memory with {state}, "
                        f"and the model writes to {state}",
                        "a plan reads its inputs before it writes, the model does not: their "
                        "results differ",
                        "give a tensor of its own, for example with .clone()",
                    )


def check_example(captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """`check_apart` of the inputs that a model is compiled with, where it writes to any."""
    if captured.signature.mutations:
        inputs = captured.graph.inputs
        names = [value.name for value in inputs]
        tree = captured.trees[0]
        tensors = flatten_call(captured.signature, inputs, tuple(args), kwargs, tree)
        written = [names.index(name) for name, _ in captured.signature.mutations]
        check_apart(tensors, names, written)


def check_foreign(
    tensors: Sequence[Tensor],
    names: Sequence[str],
    kept: Iterable[int],
    buffers: Sequence[Tensor],
) -> None:
    """InputError where one of the inputs at the places `kept` is a result of an earlier call: the
    next one overwrites it, and the model writes to it, returns it, or returns a view of it."""
    for place in kept:
        if any(share(tensors[place], buffer) for buffer in buffers):
            raise InputError(
                f"the input {names[place]} is a result of this compiled model, in its own buffer",
                'with outputs="view" this call overwrites it, and the model writes to this input, '
                "returns it or returns a view of it",
                APART + ', or compile with outputs="clone"',
            )


def share(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors have an element in the same memory."""
    if tensor.device != other.device or not tensor.numel() or not other.numel():
        return False
    if not near(tensor, other):
        return False
    return _meet(_layout(tensor), _layout(other), _span(other)[0] - _span(tensor)[0])


def near(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one device have an element in the same memory, or lie between each
    other there."""
    if not (has_memory(tensor) and has_memory(other)):
        return False
    begin, end = _span(tensor)
    start, stop = _span(other)
    return begin < stop and start < end


def sharing(tensors: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """The pairs of places whose tensors share elements of one storage; of fake tensors, too."""
    owners: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            owners.setdefault(tensor.untyped_storage()._cdata, []).append(place)
    return frozenset(
        (first, other)
        for places in owners.values()
        for i, first in enumerate(places)
        for other in places[i + 1 :]
        if _meet_within(tensors[first], tensors[other])
    )


def storages(tensors: Sequence[Any]) -> dict[int, tuple[int, int | None]]:
    """For the place of each tensor in whose storage another one lies: the first place of these, and
    where the tensor begins in it, None where that is a symbol; of fake tensors, too."""
    owners: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            owners.setdefault(tensor.untyped_storage()._cdata, []).append(place)
    lie: dict[int, tuple[int, int | None]] = {}
    for places in owners.values():
        for place in places if len(places) > 1 else ():
            offset = tensors[place].storage_offset()
            lie[place] = places[0], offset if type(offset) is int else None
    return lie


def lie_alike(tensors: Sequence[Any], example: Mapping[int, tuple[int, int | None]]) -> bool:
    """Whether tensors lie in each other's storages as `storages` said of others."""
    lie = storages(tensors)
    return lie.keys() == example.keys() and all(
        first == lie[place][0] and begin in (None, lie[place][1])
        for place, (first, begin) in example.items()
    )


def _meet_within(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage have an element in common."""
    if not tensor.numel() or not other.numel():
        return False
    begin = tensor.storage_offset() * tensor.element_size()
    start = other.storage_offset() * other.element_size()
    if begin + _extent(tensor) <= start or start + _extent(other) <= begin:
        return False
    return _meet(_layout(tensor), _layout(other), start - begin)


def _extent(tensor: Tensor) -> int:
    return type_of(tensor).nbytes


def has_memory(tensor: Tensor) -> bool:
    """Whether its elements lie at addresses that it knows."""
    return (
        tensor.__class__ in PLAIN_TENSORS and tensor.layout == torch.strided and not tensor.is_meta
    )


Layout = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides in bytes, bytes of an element."""


def _span(tensor: Tensor) -> tuple[int, int]:
    """Addresses of its first byte, and of the one after its last."""
    first = tensor.data_ptr()
    return first, first + _extent(tensor)


def _layout(tensor: Tensor) -> Layout:
    size = tensor.element_size()
    return tuple(tensor.shape), tuple(stride * size for stride in tensor.stride()), size


@functools.lru_cache(maxsize=256)
def _meet(layout: Layout, other: Layout, offset: int) -> bool:
    """Whether a byte of the first is one of the second, which begins `offset` bytes later. True,
    too, of large tensors whose layouts do not tell."""
    periods = {*layout[1], *other[1]} - {0}
    if any(_interleaved(layout, other, offset, period) for period in periods):
        return False
    if max(_count(layout), _count(other)) > MOST_BYTES:
        return True
    return bool(torch.isin(_bytes(other) + offset, _bytes(layout)).any())


def _interleaved(layout: Layout, other: Layout, offset: int, period: int) -> bool:
    """Whether both repeat with this period, and lie beside each other within it."""
    first, second = _within(layout, period), _within(other, period)
    if first is None or second is None:
        return False
    begin = offset % period
    return begin >= first and begin + second <= period


def _within(layout: Layout, period: int) -> int | None:
    """How many bytes of each period such a tensor spans, if it repeats with it."""
    shape, strides, size = layout
    inner = size
    for count, stride in zip(shape, strides, strict=True):
        if count > 1 and stride % period:
            inner += (count - 1) * stride
    return inner if inner <= period else None


def _count(layout: Layout) -> int:
    return math.prod(layout[0]) * layout[2]


def _bytes(layout: Layout) -> Tensor:
    """The places of all bytes."""
    shape, strides, size = layout
    places = torch.arange(size)
    for count, stride in zip(shape, strides, strict=True):
        if count > 1 and stride:
            places = (places[:, None] + torch.arange(count) * stride).flatten()
    return places

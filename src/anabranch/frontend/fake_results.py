"""Results of operators on fake tensors, remembered by what they depend on.

    relu(fake f32[2,8])     a fake call: its Python takes a millisecond
    relu(fake f32[2,8])     a new fake tensor of the type that the first call gave: 30 us

A fake tensor has a type and no numbers, and so a second call of the same operator, on operands of
the same types and the same numbers, gives results of the same types. That holds for torch's own
operators that return no memory of their operands, and whose results have sizes that do not depend
on values; and for those that write to their first operand, leave its type as it is and return it.
All others are called each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

BUILT_IN = frozenset(("aten", "prims"))
"""Namespaces of operators that are torch's own: a fake implementation of somebody else's may
depend on anything."""
BY_VALUE = frozenset(
    (
        *(bool, int, float, complex, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
OF_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)

TensorMeta = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Of a tensor what the types of results depend on."""


class _OtherError(Exception):
    """An operand that is neither a plain tensor nor a value."""


class FakeResults:
    """What operators return, called within one FakeTensorMode."""

    def __init__(self) -> None:
        self._kinds_of: dict[Any, tuple[type | None, tuple[TensorMeta, ...]]] = {}
        self._writes = set[Any]()
        self._rememberable: dict[Any, bool] = {}
        self._mode: Any = None

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What the operator returns, called if it has to be."""
        key: Any
        if func not in self._rememberable:
            self._rememberable[func] = _functional(func) or _in_place(func)
        try:
            if not self._rememberable[func]:
                raise _OtherError
            operand_kinds = *map(self._kind, args), *((k, self._kind(v)) for k, v in kwargs.items())
            key = func, operand_kinds, torch.get_default_dtype(), torch.is_inference_mode_enabled()
        except _OtherError:
            return func(*args, **kwargs)
        if key in self._writes:
            return args[0]
        entry = self._kinds_of.get(key)
        if entry is not None:
            container, kinds = entry
            results = [self._empty(kind) for kind in kinds]
            return results[0] if container is None else container(results)
        result = func(*args, **kwargs)
        if args and result is args[0]:
            if _in_place(func) and self._kind(result) == operand_kinds[0]:
                self._writes.add(key)
            return result
        leaves = (result,) if isinstance(result, Tensor) else result
        if type(leaves) in (tuple, list) and self._are_new(leaves, args, kwargs):
            container = None if leaves is not result else type(result)
            self._kinds_of[key] = container, tuple(map(self._kind, leaves))
        return result

    def _kind(self, value: Any) -> Any:
        """What of an operand the types of results depend on."""
        kind = type(value)
        if kind in BY_VALUE:
            return kind, value  # 1, 1.0 and True are equal, and give results of other types
        if kind is FakeTensor:
            # With a constant, values are known of it.
            if value.constant is not None or value.fake_mode is not self._only(value.fake_mode):
                raise _OtherError
            return *_laid(value), value.fake_device
        if kind in (Tensor, torch.nn.Parameter):
            return *_laid(value), value.device
        if kind is torch.SymFloat:  # a number that nobody knows decides no type
            return (kind,)
        if kind in (tuple, list):
            return kind, *map(self._kind, value)
        raise _OtherError

    def _only(self, mode: Any) -> Any:
        """The first mode that was met, if sizes are numbers in it."""
        numbers = mode.shape_env is None or mode.static_shapes
        if self._mode is None and numbers and not mode.propagate_real_tensors:
            self._mode = mode
        return self._mode

    def _empty(self, kind: TensorMeta) -> Tensor:
        shape, stride, dtype, device = kind
        with torch._C._DisableTorchDispatch():
            empty = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        return FakeTensor(self._mode, empty, device)

    def _are_new(self, leaves: Any, *operands: Any) -> bool:
        """Whether all results are as `_empty` makes them: each in memory of its own."""
        try:
            kinds = [self._kind(leaf) for leaf in leaves]
        except _OtherError:
            return False
        if not all(type(leaf) is FakeTensor and not leaf.storage_offset() for leaf in leaves):
            return False
        memory = [_memory(leaf) for leaf in leaves]
        theirs = {_memory(operand) for operand in _tensors(operands)}
        if len(set(memory)) < len(memory) or not theirs.isdisjoint(memory):
            return False
        twins = [self._empty(kind) for kind in kinds]
        sizes = (
            (a.untyped_storage().nbytes(), b.untyped_storage().nbytes())
            for a, b in zip(leaves, twins, strict=True)
        )
        return all(size == other for size, other in sizes)


def called_by_torch(func: Any, types: tuple[type, ...]) -> bool:
    """Whether none but torch's own code runs where fake tensors are given to it."""
    built_in = isinstance(func, torch._ops.OpOverload) and func.namespace in BUILT_IN
    return built_in and types in ((), (FakeTensor,))


def _functional(func: Any) -> bool:
    schema = func._schema
    shared = any(argument.alias_info for argument in (*schema.arguments, *schema.returns))
    return not shared and not any(tag in func.tags for tag in OF_VALUES)


def _in_place(func: Any) -> bool:
    """Whether the operator writes to its first operand alone, and returns it."""
    schema = func._schema
    if torch.Tag.inplace_view in func.tags or len(schema.returns) != 1 or not schema.arguments:
        return False
    first, *others = schema.arguments
    written, returned = first.alias_info, schema.returns[0].alias_info
    if written is None or not written.is_write or returned is None:
        return False
    alike = written.before_set == returned.before_set
    return alike and not any(argument.alias_info for argument in others)


def _laid(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise _OtherError
    if tensor._has_symbolic_sizes_strides:  # which values decide
        raise _OtherError
    return tensor.shape, tensor.stride(), tensor.dtype


def _memory(tensor: Tensor) -> int:
    place: int = tensor.untyped_storage()._cdata
    return place


def _tensors(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)

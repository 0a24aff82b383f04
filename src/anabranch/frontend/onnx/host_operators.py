"""Operators on values that Python knows: the few that shapes are computed with.

Each takes arrays of numbers and gives one, or None where the answer is to be a tensor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.host import MOST_HOST, SYMBOLS, Array, Host, host

HostAnswer = Host | tuple[Host, ...] | None
FEW_FILLED = 16
"""Numbers that a constant of some shape may have, to be known in Python: as many as a shape has."""
LARGEST = {torch.int64: 1 << 63, torch.int32: 1 << 31}
"""What integers of a type end below."""


def _of_numbers(
    function: Callable[..., Any], dtype: torch.dtype | None = None
) -> Callable[..., HostAnswer]:
    """An elementwise operator. `dtype`: the result's, by default that of the first operand."""

    def run(call: OnnxCall, *operands: Host) -> HostAnswer:
        arrays = np.broadcast_arrays(*(operand.array for operand in operands))
        kind = dtype or operands[0].dtype
        result = np.empty(arrays[0].shape, dtype=object)
        flat = result.reshape(-1)
        for at, numbers in enumerate(zip(*(array.reshape(-1) for array in arrays), strict=True)):
            flat[at] = rounded(function(*numbers), kind)
        return Host(flat.reshape(result.shape), kind)

    return run


def rounded(number: Any, dtype: torch.dtype) -> Any:
    """A number as its dtype holds it. OverflowError for an integer that is too large for it, which
    tensors take modulo its range."""
    if isinstance(number, SYMBOLS):
        return number
    if dtype.is_floating_point:
        with np.errstate(over="ignore"):
            return float(np.float32(number) if dtype == torch.float32 else number)
    if dtype in LARGEST:
        number = int(number)
        if not -LARGEST[dtype] <= number < LARGEST[dtype]:
            raise OverflowError(f"{number} is not of {dtype}")
    return number


def _divided(a: Any, b: Any) -> Any:
    """Integers towards zero; a symbol is a size, and has no sign."""
    if isinstance(a, (float, torch.SymFloat)) or isinstance(b, (float, torch.SymFloat)):
        return a / b
    if isinstance(a, SYMBOLS) or isinstance(b, SYMBOLS):
        return a // b
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _listed(numbers: Host) -> list[Any]:
    """A list; some files have a number where a list of one should be."""
    return list(numbers.array.reshape(-1).tolist())


def _root(number: Any) -> Any:
    return torch.sym_sqrt(number) if isinstance(number, SYMBOLS) else math.sqrt(number)


def _chosen(condition: Any, a: Any, b: Any) -> Any:
    return a if bool(condition) else b


def where(call: OnnxCall, condition: Host, a: Host, b: Host) -> HostAnswer:
    """Where: its type is that of what is chosen."""
    return _of_numbers(_chosen, a.dtype)(call, condition, a, b)


def cast(call: OnnxCall, x: Host) -> HostAnswer:
    """Cast to a type that Python has."""
    return _as(call, x, call.dtype("to"))


def cast_like(call: OnnxCall, x: Host, like: Host) -> HostAnswer:
    """CastLike."""
    return _as(call, x, like.dtype)


def _as(call: OnnxCall, x: Host, dtype: torch.dtype) -> HostAnswer:
    if dtype in (torch.int64, torch.int32):
        return _of_numbers(_whole, dtype)(call, x)
    if dtype == torch.bool:
        return _of_numbers(bool, dtype)(call, x)
    if dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        return _of_numbers(_real, dtype)(call, x)
    return None


def _whole(number: Any) -> Any:
    return torch.sym_int(number) if isinstance(number, SYMBOLS) else int(number)  # type: ignore[no-untyped-call]


def _real(number: Any) -> Any:
    return torch.sym_float(number) if isinstance(number, SYMBOLS) else float(number)  # type: ignore[no-untyped-call]


def modulo(call: OnnxCall, a: Host, b: Host) -> HostAnswer:
    """Mod of integers, with the sign of the divisor or, with fmod, of the dividend."""
    return _of_numbers(math.fmod if call.get("fmod", 0) else operator.mod)(call, a, b)


def gather(call: OnnxCall, x: Host, indices: Host) -> HostAnswer:
    """Gather of an array, at indices that are numbers."""
    if indices.symbolic:
        return None
    at = indices.array.astype(np.int64)
    return host(np.take(x.array, at, axis=call.get("axis", 0)), x.dtype) if x.array.ndim else None


def concat(call: OnnxCall, *parts: Host) -> HostAnswer:
    """Concat."""
    joined = np.concatenate([part.array for part in parts], axis=call.need("axis", int))
    return Host(joined, parts[0].dtype)


def slice_of(
    call: OnnxCall,
    x: Host,
    starts: Host,
    ends: Host,
    axes: Host | None = None,
    steps: Host | None = None,
) -> HostAnswer:
    """Slice, which Python's slices are but for a negative step's end."""
    if any(operand is not None and operand.symbolic for operand in (starts, ends, axes, steps)):
        return None
    begin, end = _listed(starts), _listed(ends)
    over = range(len(begin)) if axes is None else _listed(axes)
    by = [1] * len(begin) if steps is None else _listed(steps)
    index = [slice(None)] * x.array.ndim
    for axis, a, b, step in zip(over, begin, end, by, strict=True):
        size = x.array.shape[axis]
        if step < 0:
            first = max(a + size, 0) if a < 0 else min(a, size - 1)
            index[axis] = slice(first, None if b < -size else b, step)
        else:
            index[axis] = slice(a, b, step)
    return Host(x.array[tuple(index)], x.dtype)


def unsqueeze(call: OnnxCall, x: Host, axes: Host) -> HostAnswer:
    """Unsqueeze."""
    return Host(np.expand_dims(x.array, tuple(_listed(axes))), x.dtype)


def squeeze(call: OnnxCall, x: Host, axes: Host | None = None) -> HostAnswer:
    """Squeeze."""
    return Host(np.squeeze(x.array, None if axes is None else tuple(_listed(axes))), x.dtype)


def reshape(call: OnnxCall, x: Host, shape: Host) -> HostAnswer:
    """Reshape to a shape of numbers."""
    sizes = shape.array.tolist()
    if shape.symbolic or 0 in sizes:
        return None
    return Host(x.array.reshape(sizes), x.dtype)


def identity(call: OnnxCall, x: Host) -> HostAnswer:
    """Identity."""
    return x


def size(call: OnnxCall, x: Host) -> HostAnswer:
    """Size."""
    return host(int(x.array.size), torch.int64)


def _reduced(function: Callable[[Any], Any]) -> Callable[..., HostAnswer]:
    def run(call: OnnxCall, x: Host, axes: Host | None = None) -> HostAnswer:
        if x.array.ndim != 1 or (axes is not None and axes.array.tolist() not in ([0], [-1], [])):
            return None
        if not x.array.size or (axes is not None and not axes.array.size):
            return None
        if axes is None and call.get("noop_with_empty_axes", 0):
            return None
        reduced = function(x.array.tolist())
        return host([reduced] if call.get("keepdims", 1) else reduced, x.dtype)

    return run


def _extreme(larger: bool) -> Callable[[Any, Any], Any]:
    symbolic: Callable[[Any, Any], Any] = torch.sym_max if larger else torch.sym_min

    def pick(a: Any, b: Any) -> Any:
        if isinstance(a, SYMBOLS) or isinstance(b, SYMBOLS):
            return symbolic(a, b)
        if a != a or b != b:
            return math.nan
        return max(a, b) if larger else min(a, b)

    return pick


def _folded(pick: Callable[[Any, Any], Any]) -> Callable[..., HostAnswer]:
    def run(call: OnnxCall, *operands: Host) -> HostAnswer:
        result: HostAnswer = operands[0]
        for operand in operands[1:]:
            result = _of_numbers(pick)(call, result, operand)
        return result

    return run


def constant_of_shape(call: OnnxCall, shape: Host) -> HostAnswer:
    """ConstantOfShape of few integers."""
    value = call.maybe("value", torch.Tensor)
    if shape.symbolic or value is None or value.dtype not in (torch.int64, torch.bool):
        return None
    sizes = shape.array.tolist()
    if math.prod(sizes) > FEW_FILLED:
        return None
    return host(np.full(sizes, value.item(), dtype=object), value.dtype)


def expand(call: OnnxCall, x: Host, shape: Host) -> HostAnswer:
    """Expand to few numbers."""
    if shape.symbolic or math.prod(shape.array.tolist()) * max(1, x.array.size) > MOST_HOST:
        return None
    sizes = np.broadcast_shapes(x.array.shape, tuple(shape.array.tolist()))
    return Host(np.broadcast_to(x.array, sizes).copy(), x.dtype)


def tile(call: OnnxCall, x: Host, repeats: Host) -> HostAnswer:
    """Tile to few numbers."""
    if repeats.symbolic or x.array.size * math.prod(repeats.array.tolist()) > MOST_HOST:
        return None
    return Host(np.tile(x.array, repeats.array.tolist()), x.dtype)


def split(call: OnnxCall, x: Host, parts: Host | None = None) -> HostAnswer:
    """Split of a list."""
    count = len(call.node.outputs)
    if x.array.ndim != 1 or (parts is not None and parts.symbolic):
        return None
    step = -(-x.array.size // count)
    sizes = [step] * count if parts is None else parts.array.tolist()
    ends: Array = np.cumsum(sizes)
    return tuple(Host(part, x.dtype) for part in np.split(x.array, ends[:-1].tolist()))


def transpose(call: OnnxCall, x: Host) -> HostAnswer:
    """Transpose."""
    return Host(np.transpose(x.array, call.maybe("perm", tuple)), x.dtype)


def non_zero(call: OnnxCall, x: Host) -> HostAnswer:
    """NonZero of numbers."""
    if x.symbolic:
        return None
    return host(np.array(np.nonzero(x.array.astype(float))), torch.int64)


HOST_OPERATORS: Mapping[str, Callable[..., HostAnswer]] = {
    "Abs": _of_numbers(abs),
    "Add": _of_numbers(operator.add),
    "And": _of_numbers(lambda a, b: bool(a) and bool(b), torch.bool),
    "Cast": cast,
    "CastLike": cast_like,
    "Ceil": _of_numbers(math.ceil),
    "Concat": concat,
    "ConstantOfShape": constant_of_shape,
    "Div": _of_numbers(_divided),
    "Equal": _of_numbers(operator.eq, torch.bool),
    "Expand": expand,
    "Floor": _of_numbers(math.floor),
    "Gather": gather,
    "Greater": _of_numbers(operator.gt, torch.bool),
    "GreaterOrEqual": _of_numbers(operator.ge, torch.bool),
    "Identity": identity,
    "Less": _of_numbers(operator.lt, torch.bool),
    "LessOrEqual": _of_numbers(operator.le, torch.bool),
    "Max": _folded(_extreme(True)),
    "Min": _folded(_extreme(False)),
    "Mod": modulo,
    "Mul": _of_numbers(operator.mul),
    "Neg": _of_numbers(operator.neg),
    "NonZero": non_zero,
    "Not": _of_numbers(operator.not_, torch.bool),
    "Or": _of_numbers(lambda a, b: bool(a) or bool(b), torch.bool),
    "ReduceMax": _reduced(max),
    "ReduceMin": _reduced(min),
    "ReduceProd": _reduced(math.prod),
    "ReduceSum": _reduced(sum),
    "Reshape": reshape,
    "Size": size,
    "Slice": slice_of,
    "Split": split,
    "Sqrt": _of_numbers(_root),
    "Squeeze": squeeze,
    "Sub": _of_numbers(operator.sub),
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
    "Where": where,
}
"""By the name of the operator, of ONNX's own domain."""

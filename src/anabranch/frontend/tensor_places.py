"""Writes to a place that a tensor of no axes tells, as operators: what torch asks the value of.

    cache[:, at] = key       eager, with a number in `at`: asks for it, and copies into a slice
                             here: cache[:, :].index_put_([None, at], key)

Both write the same elements, and the second asks for nothing: one plan holds it. What is read from
such a place stays as it is: it is a view, which may be written to.

    x[mask] = rows           rows with as many as a trace has a symbol for: eager's assignment asks
                             whether that is 1, which would be dropped
                             here: x.index_put_([mask], rows)

    cache[:, n] = key        with a number of Python's that a trace has a symbol for: eager's
                             indexing asks whether it is 0
                             here: cache.select(1, n)[:] = key

Masks of bytes are made truth values, where eager takes both and torch.export, which has only the
newer rule of tensors without data, takes no bytes: `torch.where(m, x, y)`, `x[m]`, `x[m] = y`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

MASKS = (torch.bool, torch.uint8)
SETITEM: Any = Tensor.__setitem__
GETITEM: Any = Tensor.__getitem__
WHERE: dict[Any, int] = {torch.where: 0, Tensor.where: 1}
"""Functions that choose by a mask, which is this argument of theirs."""


class PlacesByOperators(TorchFunctionMode):
    """Within it `x[..., at, ...] = y` is an operator where `at` is the one tensor among the
    indices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in WHERE:
            args, kwargs = _by_truths(args, kwargs or {}, WHERE[func])
        elif func in (GETITEM, SETITEM):
            args = (args[0], _truths_among(args[1]), *args[2:])
            if any(isinstance(part, torch.SymInt) for part in _parts(args[1])):
                args = (*_selected(args[0], _parts(args[1])), *args[2:])
        if func is SETITEM and isinstance(args[0], Tensor):
            index = _parts(args[1])
            number = _place(index)
            if number is not None:
                return _put(args[0], index, number, args[2])
            if _put_rows(args[0], index, args[2]):
                return None
        return func(*args, **(kwargs or {}))


def _by_truths(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], number: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with a mask of bytes, the one of this number or `condition`, as truths."""
    chosen = tuple(_truths(part) if i == number else part for i, part in enumerate(args))
    return chosen, {k: _truths(v) if k == "condition" else v for k, v in kwargs.items()}


def _parts(index: Any) -> tuple[Any, ...]:
    return index if type(index) is tuple else (index,)


def _selected(base: Tensor, index: Sequence[Any]) -> tuple[Tensor, tuple[Any, ...]]:
    """The part of a tensor that symbols pick, and the rest of the index, which is into that."""
    if any(isinstance(part, bool | torch.SymBool) for part in index):  # an axis of its own
        return base, tuple(index)
    axis, rest = 0, list[Any]()
    taken = sum(_axes_of(part) for part in index)
    for part in index:
        if isinstance(part, torch.SymInt):
            base, taken = base.select(axis, part), taken - 1
            continue
        axis += base.dim() - taken if part is Ellipsis else _axes_of(part)
        rest.append(part)
    return base, tuple(rest)


def _axes_of(part: Any) -> int:
    """How many axes a part of an index stands for."""
    if part is None or part is Ellipsis:
        return 0
    return part.dim() if isinstance(part, Tensor) and part.dtype in MASKS else 1


def _truths_among(index: Any) -> Any:
    return tuple(map(_truths, index)) if type(index) is tuple else _truths(index)


def _truths(part: Any) -> Any:
    return part.bool() if isinstance(part, Tensor) and part.dtype == torch.uint8 else part


def _place(index: Sequence[Any]) -> int | None:
    """Which index is a number in a tensor, if only one is, and the others are plain."""
    places = [
        number
        for number, part in enumerate(index)
        if isinstance(part, Tensor) and not part.dim() and _integral(part)
    ]
    if len(places) != 1:
        return None
    rest = [part for number, part in enumerate(index) if number != places[0]]
    return places[0] if all(map(_plain, rest)) else None


def _integral(tensor: Tensor) -> bool:
    kind = tensor.dtype
    return not (kind.is_floating_point or kind.is_complex or kind in MASKS)


def _plain(part: Any) -> bool:
    if isinstance(part, slice):
        return not any(isinstance(end, Tensor) for end in (part.start, part.stop, part.step))
    return part is None or part is Ellipsis or type(part) is int


def _put_rows(base: Tensor, index: Sequence[Any], value: Any) -> bool:
    """Whether rows are written, of which a trace does not know how many, to what tensors tell."""
    unknown = isinstance(value, Tensor) and value.dim() and type(value.shape[0]) is not int
    told = [part for part in index if isinstance(part, Tensor)]
    rest = [part for part in index if not isinstance(part, Tensor)]
    if not unknown or not all(part.dim() for part in told) or value.dtype != base.dtype:
        return False
    if not told or Ellipsis in rest or not all(map(_plain, rest)):
        return False
    whole, places = list[Any](), list[Tensor | None]()
    for part in index:
        is_tensor = isinstance(part, Tensor)
        whole += [slice(None)] * _axes_of(part) if is_tensor else [part]
        places += [part] if is_tensor else [None] if type(part) is not int else []
    view = base[tuple(whole)] if rest else base
    picked = max(1 if part.dtype in MASKS else part.dim() for part in told)
    if value.dim() > view.dim() - sum(map(_axes_of, told)) + picked:
        return False
    torch.ops.aten.index_put_.default(view, places, value)
    return True


def _put(base: Tensor, index: Sequence[Any], number: int, value: Any) -> None:
    """Write to what eager would write to."""
    axes = sum(part is not None and part is not Ellipsis for part in index)
    axis = 0
    for part in index[:number]:
        if part is Ellipsis:
            axis += base.dim() - axes
        elif type(part) is not int:
            axis += 1
    whole = tuple(slice(None) if i == number else part for i, part in enumerate(index))
    view = base[whole]
    shape = (*view.shape[:axis], *view.shape[axis + 1 :])
    if isinstance(value, Tensor):
        written = value.to(device=base.device, dtype=base.dtype)
        if written._is_view():  # of what is written to, as in x[at] += y
            written = written.clone()
        while written.dim() > len(shape) and written.shape[0] == 1:
            written = written[0]
    else:
        written = torch.full((), value, dtype=base.dtype, device=base.device)
    place = index[number].to(device=base.device, dtype=torch.int64)
    places: Any = [None] * axis + [place]
    torch.ops.aten.index_put_.default(view, places, written.expand(shape))

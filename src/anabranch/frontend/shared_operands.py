"""Calls that read memory which they write to, where torch does not refuse them.

    torch._foreach_mul_([x, x.t()], 2.0)     one after the other: x.mul_(2), then x.t().mul_(2)
    x.masked_scatter_(mask, x)               refused: torch leaves open what it reads

A functional form reads all that it is given as it was before. Eager goes through the tensors of a
`_foreach_` operator in their order, and so do calls of one tensor each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from anabranch.errors import CaptureError
from anabranch.frontend.source import running_at

SCATTER: Any = Tensor.masked_scatter_
FOREACH = "_foreach_"
"""What the names of operators of lists begin with; those that write end in an underscore."""

MOST_ELEMENTS = 1 << 16
"""Elements that are looked at one by one; larger tensors of one storage are taken to share some."""


class SharedOperands(TorchFunctionMode):
    """Within it such calls are made of one tensor after the other, or raise CaptureError."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is SCATTER:
            _check_apart(args, kwargs)
        name = getattr(func, "__name__", "")
        if name.startswith(FOREACH) and name.endswith("_") and args and _meet(args):
            for place in range(len(args[0])):
                func(*(_one(arg, place) for arg in args), **_one_each(kwargs, place))
            return args[0] if name != "_foreach_zero_" else None
        return func(*args, **kwargs)


def _check_apart(args: Sequence[Any], kwargs: Any) -> None:
    written = args[0]
    read = [*args[1:], *kwargs.values()]
    if any(isinstance(each, Tensor) and _share(written, each) for each in read):
        raise CaptureError(
            "masked_scatter_ reads memory that it writes to",
            "torch leaves open whether it reads an element before it is written or after, and "
            "does not refuse it, as it does for other operators",
            "give it a copy, for example x.masked_scatter_(mask, x.clone())",
            running_at(),
        )


def _meet(args: Sequence[Any]) -> bool:
    """Whether a tensor that is written to has elements in common with another, of this list or of
    one that is read."""
    written = list(args[0])
    others = [each for arg in args[1:] if isinstance(arg, (list, tuple)) for each in arg]
    others = [each for each in others if isinstance(each, Tensor)]
    return any(
        _share(each, other)
        for i, each in enumerate(written)
        for other in (written + others)[i + 1 :]
    )


def _share(tensor: Tensor, other: Tensor) -> bool:
    """Whether they have an element in common; False where sizes are not known, or tensors tell no
    memory, as those within vmap. No operator of torch is called: it would be traced."""
    sizes = [size for each in (tensor, other) for size in (*each.shape, *each.stride())]
    if not all(type(size) is int for size in sizes) or not tensor.numel() or not other.numel():
        return False
    try:
        if tensor.untyped_storage()._cdata != other.untyped_storage()._cdata:
            return False
    except NotImplementedError:
        return False
    if tensor.dtype != other.dtype or max(tensor.numel(), other.numel()) > MOST_ELEMENTS:
        return True
    return not _places(tensor).isdisjoint(_places(other))


def _places(tensor: Tensor) -> set[int]:
    places = {int(tensor.storage_offset())}
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = {place + i * stride for place in places for i in range(size)}
    return places


def _one(arg: Any, place: int) -> Any:
    return [arg[place]] if isinstance(arg, (list, tuple)) else arg


def _one_each(kwargs: Any, place: int) -> dict[str, Any]:
    return {name: _one(arg, place) for name, arg in kwargs.items()}

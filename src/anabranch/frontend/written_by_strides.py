"""Notes, in a call of a model, writes that reach another tensor in one layout and not in another.

    y = x.reshape(-1)      a view of x where x lies in one row, else a copy
    y.add_(1)              changes x, or does not

`layout_aliases` finds such writes in a program. Of a model that is cut there is none: what was made
by such a call, and is written to while both tensors are there, may be one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anabranch.frontend.source import running_at

CALLS = frozenset(
    (
        *(Tensor.reshape, Tensor.reshape_as, Tensor.contiguous, Tensor.flatten, Tensor.ravel),
        *(torch.reshape, torch.flatten, torch.ravel, Tensor.to),
    )
)
"""They give a view or a copy, as strides have it."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """A tensor and what was made of it; `viewed`: whether the tensor is a view of another."""

    source: weakref.ref[Tensor]
    result: weakref.ref[Tensor]
    viewed: bool


class WrittenByStrides(TorchFunctionMode):
    """Within it `line` becomes that of the first that may be one; None if none may. `fixed`: those
    tensors lie alike in every call. Who hears of operators tells it of them by `wrote`."""

    def __init__(self, fixed: Iterable[Tensor]) -> None:
        super().__init__()
        self.line: str | None = None
        self._fixed = {memory_of(each) for each in fixed}
        self._pairs: list[_Pair] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in CALLS:
            source = args[0] if args else (kwargs or {}).get("input")
            if isinstance(source, Tensor) and isinstance(result, Tensor):
                self._note(source, result)
        return result

    def wrote(self, func: Any, args: Any) -> None:
        """An operator was called with these arguments."""
        if self.line is not None or not self._pairs:
            return
        schema = getattr(func, "_schema", None)
        for argument, value in zip(getattr(schema, "arguments", ()), args, strict=False):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written and isinstance(value, Tensor) and self._reaches(memory_of(value)):
                self.line = running_at()

    def _note(self, source: Tensor, result: Tensor) -> None:
        if memory_of(source) not in self._fixed:
            viewed = source._base is not None
            self._pairs.append(_Pair(weakref.ref(source), weakref.ref(result), viewed))

    def _reaches(self, memory: int) -> bool:
        if not memory:
            return False
        for pair in self._pairs:
            source, result = pair.source(), pair.result()
            if result is None or (source is None and not pair.viewed):
                continue
            if memory in {memory_of(each) for each in (source, result) if each is not None}:
                return True
        return False


def memory_of(tensor: Tensor) -> int:
    """What the tensor has its storage known by; 0 where it has none, as sparse ones, or none to
    tell, as those within vmap."""
    if tensor.layout is not torch.strided:
        return 0
    try:
        return int(tensor.untyped_storage()._cdata)
    except NotImplementedError:
        return 0

"""Tensors that a model makes lie as they did after an operator has written to them.

    y = torch.empty(4, 6)                   r = torch.add(x, 1, out=torch.empty_like(y))
    torch.add(x, 1, out=y)          ->      y.copy_(r)
    y.masked_fill_(mask, 0)         ->      y.copy_(y.clone().masked_fill_(mask, 0))

A functional form has a result of its own, which lies as its operands do, or in rows. A copy over
the tensor lies as the tensor, however inputs of a call lie, and no kernel makes one where both lie
alike. Inputs, weights and buffers lie as they do and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from anabranch.frontend.contiguous_calls import several
from anabranch.frontend.written_by_strides import memory_of

ROWS = frozenset(
    f"{name}_"
    for name in (
        *("addbmm", "addmm", "baddbmm", "cumprod", "cumsum", "renorm", "tril", "triu"),
        *("index_add", "index_copy", "index_reduce", "masked_fill", "masked_scatter"),
        *("scatter", "scatter_add", "scatter_reduce"),
        *("copysign", "floor_divide", "mvlgamma"),
    )
) | {"__ifloordiv__"}
"""Operators in place whose functional forms lie in rows, however their operands lie."""
DIVISIONS = ("div_", "divide_")
"""Those among them if they round."""


class KeptLayouts(TorchFunctionMode):
    """Within it operators that write to a tensor which was made within it write to another one
    first, which is copied over it, where the tensor keeps its sizes. For traces, of which a call in
    place becomes a functional one."""

    def __init__(self) -> None:
        super().__init__()
        self._made = set[int]()
        """The memories of what was made."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():  # a part of the model that torch traces for itself
            return func(*args, **kwargs)
        result = self._by_copies(func, args, kwargs)
        if result is None:
            result = func(*args, **kwargs)
        self._note(result, args, kwargs)
        return result

    def _by_copies(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """What the call gives, of copies; None where it is to be made as it is."""
        out = kwargs.get("out")
        if out is not None:
            outs = (out,) if isinstance(out, Tensor) else out
            if not isinstance(outs, tuple) or not any(map(several, outs)):
                return None
            return self._into(func, args, kwargs, outs) if all(map(self._is_made, outs)) else None
        if not args or not several(args[0]) or not _lies_in_rows(func, kwargs):
            return None
        if not self._is_made(args[0]):
            return None
        fresh = args[0].clone()
        func(fresh, *args[1:], **kwargs)
        return args[0].copy_(fresh)

    def _into(
        self, func: Any, args: Any, kwargs: Mapping[str, Any], outs: tuple[Tensor, ...]
    ) -> Any:
        """What a call gives that writes to these; None where it resizes one."""
        if any(type(size) is int and size == 0 for out in outs for size in out.shape):
            return None
        fresh = tuple(torch.empty_like(out) for out in outs)
        alone = isinstance(kwargs["out"], Tensor)
        result = func(*args, **{**kwargs, "out": fresh[0] if alone else fresh})
        if not all(map(_alike, outs, fresh)):
            return None
        for out, value in zip(outs, fresh, strict=True):
            out.copy_(value)
        if alone:
            return outs[0]
        return type(result)(outs) if isinstance(result, tuple) else result

    def _is_made(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor) and memory_of(tensor) in self._made

    def _note(self, result: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        results = {
            memory_of(leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)
        }
        if results:
            leaves = pytree.tree_leaves((args, kwargs))
            operands = {memory_of(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
            self._made |= results - operands - {0}


def _lies_in_rows(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether it writes to its first argument, and its functional form lies in rows."""
    name = str(getattr(func, "__name__", "")).partition(".")[0]
    return name in ROWS or (name in DIVISIONS and kwargs.get("rounding_mode") is not None)


def _alike(tensor: Tensor, other: Tensor) -> bool:
    """Whether they have the same sizes, as far as that is known for all calls."""
    pairs = zip(tensor.shape, other.shape, strict=False)
    return tensor.dim() == other.dim() and all(statically_known_true(m == n) for m, n in pairs)

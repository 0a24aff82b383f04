"""The text of a number that a model asks a tensor for, while the model is traced.

    f"expert{top.item()}"    "expert3", as in eager: the value is asked for, and the model is cut
    names[top.item()]        so it is where the number is a key

Torch answers with the name of its symbol, "expertu0", and goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_OWN = ("anabranch", "sympy", "torch")
"""Packages that print symbols as such."""
NUMBERS: dict[Any, Callable[[Any], Any]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}
"""Torch's classes of symbols, each with that of the numbers it stands for."""
_TEXTS: dict[str, Callable[..., Any]] = {
    "__str__": str,
    "__repr__": repr,
    "__format__": format,
    "__hash__": hash,
}


@contextmanager
def texts_of_values() -> Iterator[None]:
    """Within the block, text and hash of a symbol that code outside torch asks for are those of its
    value, which is asked for thereby. Torch and the tracer, which print symbols, get what they get
    otherwise."""
    before = [(kind, name, getattr(kind, name)) for kind in NUMBERS for name in _TEXTS]
    tensors: Any = torch.Tensor
    format_tensor = tensors.__format__
    for kind, name, own in before:
        setattr(kind, name, _by_value(NUMBERS[kind], _TEXTS[name], own))
    tensors.__format__ = _of_one_number(format_tensor)
    try:
        yield
    finally:
        tensors.__format__ = format_tensor
        for kind, name, own in before:
            setattr(kind, name, own)


def _of_one_number(own: Callable[..., str]) -> Callable[..., str]:
    """f"{x[0]}" is the text of a number, also where a tensor has no values yet."""

    def text(tensor: torch.Tensor, how: str) -> str:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        plain = tensor.dim() == 0 and not tensor.is_meta
        if not plain or caller.partition(".")[0] in _OWN:
            return own(tensor, how)
        number = tensor.item()
        return format(NUMBERS[type(number)](number) if type(number) in NUMBERS else number, how)

    return text


def _by_value(
    number: Callable[[Any], Any], text: Callable[..., Any], own: Callable[..., Any]
) -> Callable[..., Any]:
    def ask(symbol: Any, *args: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if caller.partition(".")[0] in _OWN:
            return own(symbol, *args)
        return text(number(symbol), *args)

    return ask

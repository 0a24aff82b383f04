"""Numbers that a model asks tensors for, as Python's numbers, while the model is traced.

    divmod(n, 3)             (n // 3, n % 3)       torch's symbols have no divmod
    ~n, n ^ m                -n - 1, (n | m) - (n & m)
    v ** 2                   of a negative number, too: torch checks that it is none
    n.to_bytes(2, "big")     asks for the value, and the model is cut
    json.dumps([n])          so does this
    float(batches)           in a batch norm that averages all batches: a number, as n * 1.0 is

What a symbol lacks is said by what it has, or by its value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import batchnorm

from anabranch.frontend.number_texts import NUMBERS

KINDS: tuple[Any, ...] = (torch.SymInt, torch.SymFloat)
MISSING = object()
"""In the place of an attribute that a class has not."""


@contextmanager
def python_numbers() -> Iterator[None]:
    """Within the block symbols do what numbers of Python do."""
    places = [(kind, name, value) for kind in KINDS for name, value in _of(kind).items()]
    places.append((batchnorm, "float", _as_float))
    places.append((json.JSONEncoder, "default", _encoded(json.JSONEncoder.default)))
    before = [(kind, name, vars(kind).get(name, MISSING)) for kind, name, _ in places]
    for kind, name, value in places:
        setattr(kind, name, value)
    try:
        yield
    finally:
        for kind, name, value in before:
            if value is MISSING:
                delattr(kind, name)
            else:
                setattr(kind, name, value)


def _as_float(value: Any) -> Any:
    """What Python's `float` gives, of a tensor as well, and of a symbol a symbol."""
    number: Any = value.item() if isinstance(value, torch.Tensor) else value
    to_float: Any = torch.sym_float
    return to_float(number)


def _of(kind: Any) -> dict[str, Any]:
    """What a class of symbols gets, by name."""
    number = NUMBERS[kind]
    zero = number(0)
    attributes: dict[str, Any] = {
        "real": property(lambda symbol: symbol),
        "imag": property(lambda symbol: zero),
        "__divmod__": lambda symbol, other: (symbol // other, symbol % other),
        "__rdivmod__": lambda symbol, other: (other // symbol, other % symbol),
        "__pow__": _power(kind.__pow__),
    }
    if kind is torch.SymInt:
        attributes |= {
            "numerator": property(lambda symbol: symbol),
            "denominator": property(lambda symbol: 1),
            "__invert__": lambda symbol: -symbol - 1,
            "__xor__": lambda symbol, other: (symbol | other) - (symbol & other),
            "__rxor__": lambda symbol, other: (symbol | other) - (symbol & other),
        }
    lacking = (name for name in dir(number) if name[0] != "_" and not hasattr(kind, name))
    return {name: _by_value(number, name) for name in lacking} | attributes


def _by_value(number: Callable[[Any], Any], name: str) -> Callable[..., Any]:
    """A method of numbers, of the value of a symbol."""

    def ask(symbol: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(number(symbol), name)(*args, **kwargs)

    return ask


def _power(own: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Powers of all numbers where the exponent is whole, and those of three arguments."""

    def power(symbol: Any, exponent: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            return own(symbol, exponent) % modulus
        whole = type(exponent) is int or (type(exponent) is float and exponent.is_integer())
        if type(symbol) is torch.SymFloat and whole:
            return symbol.__float_pow__(exponent)
        return own(symbol, exponent)

    return power


def _encoded(own: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """What json writes for what it does not know."""

    def default(encoder: Any, value: Any) -> Any:
        number = NUMBERS.get(type(value))
        return own(encoder, value) if number is None else number(value)

    return default

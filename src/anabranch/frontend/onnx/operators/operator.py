"""An entry of the tables of operators: its function, and which inputs it wants as numbers.

"Reshape": OnnxOperator(reshape, numbers=(1,))    reshape(call, x, shape), where shape is a list
"Add": OnnxOperator(add, either=(0, 1))           a number that is one stays a number: x + 2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class OnnxOperator:
    """`run(call, *inputs)` gives a value, or a tuple of as many as the node has outputs.

    numbers: places of inputs that are lists of numbers, or a number, in Python. either: places of
    inputs that stay a number where they are one. `as_given`: inputs as they are, lists of Host
    values too, which operators of sequences and of control take.
    """

    run: Callable[..., Any]
    numbers: tuple[int, ...] = ()
    either: tuple[int, ...] = ()
    as_given: bool = False


OperatorTable = Mapping[str, OnnxOperator]

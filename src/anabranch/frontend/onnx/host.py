"""Small values that Python knows while tensors are still symbols: shapes, and what is made of them.

    Shape(x) -> Gather 0 -> Mul 2 -> Concat -> Reshape          all but the last without a tensor

ONNX computes shapes with the operators that it computes everything with. If those made tensors, a
reshape would ask for values of a tensor, and no graph could be captured; so they are computed on
arrays of Python numbers, or of torch's symbolic ones, and become tensors only where one is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = np.ndarray[Any, np.dtype[np.object_]]
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
MOST_HOST = 1024
"""Numbers of a value that are computed in Python. Shapes have some ten."""


@dataclass(frozen=True, slots=True)
class Host:
    """Numbers in an array of objects. `stored`: the same as a tensor, where a module has it."""

    array: Array
    dtype: torch.dtype
    stored: Tensor | None = field(default=None, compare=False)

    def tensor(self, device: torch.device) -> Tensor:
        """As a tensor, of symbols too."""
        if self.stored is not None:
            return self.stored
        flat = self.array.reshape(-1).tolist()
        if any(isinstance(number, SYMBOLS) for number in flat):
            scalars = [
                torch.scalar_tensor(number, dtype=self.dtype, device=device) for number in flat
            ]
            return torch.stack(scalars).reshape(self.array.shape)
        return torch.tensor(self.array.tolist(), dtype=self.dtype, device=device)

    @property
    def symbolic(self) -> bool:
        """Whether a number of it is one of torch's symbols."""
        return any(isinstance(number, SYMBOLS) for number in self.array.reshape(-1).tolist())


def host(numbers: Any, dtype: torch.dtype, stored: Tensor | None = None) -> Host:
    """A Host of a number, or of nested lists.

    >>> host([2, 3], torch.int64).array.tolist()
    [2, 3]
    """
    if isinstance(numbers, np.ndarray):
        return Host(numbers.astype(object), dtype, stored)
    if isinstance(numbers, (list, tuple)):
        if any(isinstance(row, (list, tuple)) for row in numbers):
            return Host(np.array(numbers, dtype=object), dtype, stored)
        array = np.empty(len(numbers), dtype=object)
        array[:] = list(numbers)
        return Host(array, dtype, stored)
    scalar = np.empty((), dtype=object)
    scalar[()] = numbers
    return Host(scalar, dtype, stored)


def tensors_of(value: Any, device: torch.device) -> Any:
    """The value with a tensor for each Host in it."""
    if isinstance(value, Host):
        return value.tensor(device)
    if isinstance(value, list):
        return [tensors_of(item, device) for item in value]
    return value

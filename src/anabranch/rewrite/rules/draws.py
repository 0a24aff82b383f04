"""Random arguments for the tests of rules: sizes of one and primes, and room for windows.

Each takes the dice first; a tensor is drawn as its type, a constant as a `Constant` without value.
"""

from __future__ import annotations

import random

import torch

from anabranch.ir.graph import Constant
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""Channels, rows and columns: one, primes, and numbers that divide."""


def size(dice: random.Random) -> int:
    """A number of channels, rows or columns: one of `SIZES`."""
    return dice.choice(SIZES)


def tensor(*sizes: int) -> TensorType:
    """The type of a row-major fp32 tensor of these sizes."""
    return TensorType(sizes, torch.float32)


def weight(name: str, *sizes: int) -> Constant:
    """A constant of this shape, under the name of its wildcard."""
    return Constant(name, tensor(*sizes), name)


def room(dice: random.Random, kernel: Sizes, by: ConvWindow) -> Sizes:
    """The size of an input that gives the window at least one result along each axis."""
    reach = (
        d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, by.padding, by.dilation, strict=True)
    )
    return tuple(max(1, least) + dice.randint(0, 5) for least in reach)

"""Random arguments for the tests of rules: sizes of one and primes, odd windows, both layouts.

Each takes the dice first; a tensor is drawn as its type, a constant as a `Constant` without value.
"""

from __future__ import annotations

import random

import torch

from anabranch.ir.graph import Constant
from anabranch.ir.ops import channels_last_strides
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""Channels, rows and columns: one, primes, and numbers that divide."""


def size(dice: random.Random) -> int:
    return dice.choice(SIZES)


def tensor(*sizes: int) -> TensorType:
    return TensorType(sizes, torch.float32)


def weight(name: str, *sizes: int) -> Constant:
    """A constant of this shape, under the name of its wildcard."""
    return Constant(name, tensor(*sizes), name)


def bias(dice: random.Random, name: str, channels: int) -> Constant | None:
    """A constant for each channel, or none, as often."""
    return dice.choice((weight(name, channels), None))


def image(dice: random.Random, *sizes: int) -> TensorType:
    """A tensor, now and then with its channels side by side if it has two axes of space."""
    strides = channels_last_strides(sizes) if len(sizes) == 4 and dice.random() < 0.3 else ()
    return TensorType(sizes, torch.float32, strides)


def axes(dice: random.Random) -> int:
    """How many axes of space: mostly two."""
    return dice.choice((1, 2, 2, 2, 2, 3))


def kernel(dice: random.Random, axes: int) -> Sizes:
    return tuple(dice.choice((1, 1, 2, 3, 3, 4)) for _ in range(axes))


def some_window(dice: random.Random, axes: int, groups: int = 1) -> ConvWindow:
    """Any window but a transposed one."""
    stride = tuple(dice.choice((1, 1, 2, 3)) for _ in range(axes))
    padding = tuple(dice.choice((0, 0, 1, 2)) for _ in range(axes))
    dilation = tuple(dice.choice((1, 1, 1, 2)) for _ in range(axes))
    return ConvWindow(stride, padding, dilation, groups=groups)


def room(dice: random.Random, kernel: Sizes, by: ConvWindow) -> Sizes:
    """The size of an input that gives the window at least one result along each axis."""
    reach = (
        d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, by.padding, by.dilation, strict=True)
    )
    return tuple(max(1, least) + dice.randint(0, 5) for least in reach)

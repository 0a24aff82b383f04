"""Sizes that instances of rules are drawn from: one and primes, and room for windows."""

from __future__ import annotations

import random

from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""Channels, rows and columns: one, primes, and numbers that divide."""


def room(dice: random.Random, kernel: Sizes, by: ConvWindow) -> Sizes:
    """The size of an input that gives the window at least one result along each axis."""
    reach = (
        d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, by.padding, by.dilation, strict=True)
    )
    return tuple(max(1, least) + dice.randint(0, 5) for least in reach)

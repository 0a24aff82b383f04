"""Rules of TASO's list that none of ours say: for published searches alone.

    relu(x), relu(y)                  ->  slices of relu(cat([x, y]))     whatever x and y are
    cat([mm(x, a), mm(x, b)], 1)       =  mm(x, cat([a, b], 1))
    cat([mm(x, a), mm(y, a)], 0)       =  mm(cat([x, y], 0), a)
    conv(cat([x, y, z]), cat([u, v, w]))  ->  the channels of both in another order

A user's search has slices where TASO has concatenations of products, and puts neither unlike
activations together nor channels in other orders: no device is faster for it.
"""

from __future__ import annotations

import re

from anabranch.ir.rule import Rule
from anabranch.rewrite.rules.drawing import WindowChoices
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.shapes import shapes


def in_order(first: int, second: int, third: int) -> Rule:
    """The same convolution with its input's channels, and its weight's, in this order."""
    inputs, weights = (f"{s[first]}{s[second]}{s[third]}" for s in ("xyz", "uvw"))

    def of(inputs: str, weights: str, cat: str) -> str:
        sides = (cat.format(*side) for side in (inputs, weights))
        return f"conv({', '.join(sides)}, bias"

    words, calls = "cat({}, cat({}, {})))", "cat([{}, cat([{}, {}], 1)], 1)"
    return equation(
        f"{of('xyz', 'uvw', words)}) -> {of(inputs, weights, words)})",
        shapes(
            "x: B C room; y: B D room; z: B E room; bias: N maybe?",
            "u: N C taps; v: N D taps; w: N E taps",
            window=WindowChoices(),
        ),
        find=f"{of('xyz', 'uvw', calls)}, *window)",
        put=f"{of(inputs, weights, calls)}, *window)",
    )


def together(axis: int, rule_shapes: str) -> Rule:
    """Two activations as slices of one."""
    whole = f"relu(cat([x, y], {axis}))"
    return equation(
        f"relu(x), relu(y) -> slices of relu(cat(x, y, {axis}))",
        rule_shapes,
        put=f"slice({whole}, {axis}, 0, N), slice({whole}, {axis}, N, N + M)",
    )


def both(left: str, right: str, rule_shapes: str) -> tuple[Rule, Rule]:
    """Both directions of an equation that has its concatenations without brackets."""
    sides = [re.sub(r"cat\((.*), (\d)\)", r"cat([\1], \2)", side) for side in (left, right)]
    return (
        equation(f"{left} -> {right}", rule_shapes, find=sides[0], put=sides[1]),
        equation(f"{right} -> {left}", rule_shapes, find=sides[1], put=sides[0]),
    )


RULES: tuple[Rule, ...] = (
    together(0, "x: N ...; y: M ..."),
    together(1, "x: B N ...; y: B M ..."),
    *both("cat(mm(x, a), mm(x, b), 1)", "mm(x, cat(a, b, 1))", "x: N K; a: K M; b: K P"),
    *both("cat(mm(x, a), mm(y, a), 0)", "mm(cat(x, y, 0), a)", "x: N K; y: M K; a: K P"),
    in_order(1, 0, 2),
    in_order(1, 2, 0),
)

"""Layers between transpositions: tokens are mixed where channels were. Rules that might help.

    linear(transpose(x, 1, 2), w, b)        =  transpose(w @ x + b, 1, 2)
    transpose(linear(x, w, b), 1, 2)        =  w @ transpose(x, 1, 2) + b
    transpose(bmm(x, y), 1, 2)              =  bmm(transpose(y, 1, 2), transpose(x, 1, 2))

Pointwise work moves through a transposition (`movement`), so the one behind a layer meets the one
before the next, and both are gone.
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, linear, permute, reshape, transpose
from anabranch.rewrite.rules.algebra_conditions import both, every, floating, matrices
from anabranch.rewrite.rules.pattern_parts import swaps_last_two
from anabranch.rewrite.rules.shapes import either, shapes

x, y, w, b, i, j, p = wild("x y w b i j p")


def deep(match: Match) -> Refused | None:
    return Refused.unless(len(match.x.shape) >= 2, "it is a vector")


def columns(match: Match, turned: Pattern) -> Pattern:
    """The layer with its weight on the left, of what has one place a column."""
    product = w @ turned
    return product if match.b.type is None else product + reshape(b, (match.w.shape[0], 1))


def layer_of_turned(match: Match) -> Pattern:
    return transpose(columns(match, x), -1, -2)


def turned_layer(match: Match) -> Pattern:
    return columns(match, transpose(x, -1, -2))


def _turned(before: bool, permuted: bool) -> Rule:
    """`before`: what is turned is read by the layer, or else what it makes."""
    given = {"x": "... K M" if before else "... M K", "w": "N K maybe", "b": "N const?"}
    orders = [{"p": (*range(n), n + 1, n), "MORE": (n,)} for n in range(3)]
    pairs = [{"i": f"{i} of x", "j": f"{j} of x", "MORE": range(3)} for i, j in ("KM", "MK")]

    def turn(value: Pattern) -> Call:
        return permute(value, p) if permuted else transpose(value, i, j)

    name = "permute" if permuted else "transpose"
    found = f"linear({name}(x), w, b)" if before else f"{name}(linear(x, w, b))"
    put = "transpose(w @ x + b)" if before else "w @ transpose(x) + b"
    return Rule(
        f"{found} -> {put}",
        find=linear(turn(x), w, b) if before else turn(linear(x, w, b)),
        replace=layer_of_turned if before else turned_layer,
        when=every(matrices("w"), deep, swaps_last_two),
        draw=either(*(shapes(given, turn) for turn in (orders if permuted else pairs))),
    )


BMM = "aten.bmm.default"

RULES: tuple[Rule, ...] = (
    *(_turned(before, permuted) for before in (True, False) for permuted in (False, True)),
    *both(
        "transpose(bmm(x, y), i, j)",
        "bmm(transpose(y, i, j), transpose(x, i, j))",
        (
            transpose(call(BMM, x, y), i, j),
            call(BMM, transpose(y, i, j), transpose(x, i, j)),
        ),
        every(floating("x", "y"), swaps_last_two),
        either(
            shapes("x: B N M; y: B M O; i: N of x; j: M of x"),
            shapes("x: B N M; y: B M O; i: M of x; j: N of x"),
        ),
    ),
)

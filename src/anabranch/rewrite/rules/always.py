"""Rules that always help: what they find does nothing, or does twice what can be done once.

A rule that puts a value in place of a node is meant only where the node gives back that very
value, dtype, shape and strides (`unchanged`): `x + 0` may also broadcast, promote or make dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from anabranch.ir.axis_order import axis_order
from anabranch.ir.ops import same_layout
from anabranch.ir.refused import unless
from anabranch.ir.rule import Draw, Match, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import permute, reshape
from anabranch.rewrite.rules.drawing import Drawing, OneOf
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.shapes import shapes
from anabranch.rewrite.rules.transposed_operands import before_linear

x, w, b = wild("x w b")

CHANGED = "its result is not x in every respect"


def unchanged(match: Match) -> bool:
    """Whether the root gives x back in every respect."""
    type = match.x.type
    return type is not None and same_layout(type, match.root.type)


def not_copied(match: Match) -> bool:
    """As `unchanged`, but for a weight every stride counts: copying it costs nothing when it is
    folded, and operators choose their layout by the strides of axes of size one, too."""
    return match.x.type == match.root.type or (not match.x.constant and unchanged(match))


def added_nothing(zero: float) -> Callable[[Match], bool]:
    """Whether x is given back by a sum with a zero: of floats only with the one of this sign, for
    -0.0 + 0.0 is 0.0."""

    def nothing(match: Match) -> bool:
        number, type = match.root.args[1], match.x.type
        if type is None or not unchanged(match) or isinstance(number, complex):
            return False
        same = isinstance(number, int | float) and sign(number) == sign(zero)
        return same or not type.dtype.is_floating_point

    def sign(number: float) -> float:
        return math.copysign(1.0, number)

    return nothing


def sized(text: str = "x: ...", **more: object) -> Draw:
    """X of one axis to four; further wildcards as given."""
    return shapes(text, more, MORE=(1, 2, 3, 4))


def in_order(drawing: Drawing) -> tuple[int, ...]:
    """The axes 0, 1, 2, ... of what is drawn: a permutation that moves nothing."""
    return tuple(range(len(drawing.sizes(["..."]))))


def in_any_order(drawing: Drawing) -> tuple[int, ...]:
    """Four axes in an order that is drawn."""
    return tuple(drawing.dice.sample(range(4), 4))


def identity(name: str, draw: Draw, find: str = "") -> Rule:
    """A rule find -> x, where x is given back unchanged."""
    return equation(name, when=unless(CHANGED, unchanged), draw=draw, find=find)


def one_permutation(match: Match) -> Pattern:
    """The permutation p, then q, as one."""
    rank = len(match.root.type.shape)
    first, second = (axis_order({"dims": match.bound[name]}, rank) for name in "pq")
    return permute(x, tuple(first[axis] for axis in second))


def keeps_rows(match: Match) -> bool:
    """Whether reshaping after a linear only counts its rows in another way."""
    shape, weight = match.root.type.shape, match.w.shape
    return len(weight) == 2 and shape[-1:] == weight[:1]


DROPOUTS = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")


RULES: tuple[Rule, ...] = (
    equation("x + 0 -> x", when=unless(CHANGED, added_nothing(-0.0)), draw=sized("x: ... int64")),
    equation("x - 0 -> x", when=unless(CHANGED, added_nothing(0.0)), draw=sized()),
    identity("x * 1 -> x", sized()),
    identity("x / 1 -> x", sized()),
    identity("pow(x, 1) -> x", sized()),
    *(
        identity(f"{op}(x, p, eval) -> x", sized(p=0.5), f"aten.{op}.default(x, p, False)")
        for op in DROPOUTS
    ),
    *(identity(f"{op}(x) -> x", sized()) for op in ("alias", "detach", "lift_fresh")),
    equation("clone(x, *rest) -> x", when=unless(CHANGED, not_copied), draw=sized(rest=(None,))),
    identity(
        "to(x, same) -> x",
        sized(rest=(torch.float32, None, None, None, False, None)),
        "to(x, *rest)",
    ),
    identity("slice(x, all) -> x", sized(rest=(0, 0, 2**63 - 1, 1)), "slice(x, *rest)"),
    identity("expand(x, same) -> x", sized("x: ...; s: ... sizes"), "expand(x, s)"),
    identity("reshape(x, same) -> x", sized("x: ...; s: ... sizes"), "reshape(x, s)"),
    identity("permute(x, in order) -> x", sized(p=in_order), "permute(x, p)"),
    identity("transpose(x, a, a) -> x", sized(a=0)),
    identity("cat([x]) -> x", sized(a=0), "cat([x], a)"),
    identity("sum(x, axes of one) -> x", shapes("x: 1 N", a=(0,), N=(1, 3)), "sum(x, a, True)"),
    identity("t(t(x)) -> x", shapes("x: N M")),
    *(
        identity(
            f"transpose(transpose(x, a, b), {back}) -> x", shapes("x: N M K; a: 3 place", b=-1)
        )
        for back in ("a, b", "b, a")
    ),
    equation(
        "permute(permute(x, p), q) -> permute(x, p[q])",
        draw=shapes("x: N M K L", p=in_any_order, q=in_any_order),
        put=one_permutation,
    ),
    equation(
        "reshape(reshape(x, p), s) -> reshape(x, s)",
        draw=shapes("x: N M K; p: M N*K sizes; s: N*M -1 sizes"),
        put=lambda match: reshape(x, match.root.type.shape),
    ),
    equation(
        "reshape(linear(reshape(x, p), w, b), s) -> linear(reshape(x), w, b)",
        draw=shapes(
            "p: -1 K*M sizes; w: N K*M const; b: N const?",
            x=OneOf("L.. K*M", "L.. K M", "M L.. K"),
            s=OneOf("L.. N sizes", "1 L.. N sizes"),
            L=(1, 2, 3),
        ),
        when=unless("columns of the result are counted as rows", keeps_rows),
        put=before_linear,
    ),
)

"""Rules that always help: what they find does nothing, or does twice what can be done once.

A rule that puts a value in place of a node is meant only where the node gives back that very
value, dtype, shape and strides (`unchanged`): `x + 0` may also broadcast, promote or make dense.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

import torch

from anabranch.ir.graph import Arg
from anabranch.ir.ops import same_layout
from anabranch.ir.refused import unless
from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import call, cat, linear, permute, reshape, t, transpose
from anabranch.rewrite.rules import draws

Draw = Callable[[random.Random], Mapping[str, object]]

x, w, a, b, p, q, s = wild("x w a b p q s")

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


def identity(name: str, find: Call, draw: Draw | None = None) -> Rule:
    """A rule find -> x, where x is given back unchanged."""
    return Rule(name, find=find, replace=x, when=unless(CHANGED, unchanged), draw=draw)


def shape(dice: random.Random, rank: int | None = None) -> tuple[int, ...]:
    rank = dice.randint(1, 4) if rank is None else rank
    return tuple(dice.randint(2, 4) for _ in range(rank))


def tensor(*sizes: int) -> TensorType:
    return TensorType(sizes, torch.float32)


def sized(**more: Arg) -> Draw:
    """A random shape for x; further wildcards as given."""
    return lambda dice: {"x": tensor(*shape(dice)), **more}


def whole_numbers(dice: random.Random) -> Mapping[str, object]:
    return {"x": TensorType(shape(dice), torch.int64)}


def same_shape(dice: random.Random) -> Mapping[str, object]:
    sizes = shape(dice)
    return {"x": tensor(*sizes), "s": sizes}


def permuted_in_order(dice: random.Random) -> Mapping[str, object]:
    sizes = shape(dice)
    return {"x": tensor(*sizes), "p": tuple(range(len(sizes)))}


def reshaped_twice(dice: random.Random) -> Mapping[str, object]:
    n, m, k = shape(dice, 3)
    return {"x": tensor(n, m, k), "p": (m, n * k), "s": (n * m, -1)}


def swapped_twice(dice: random.Random) -> Mapping[str, object]:
    return {"x": tensor(*shape(dice, 3)), "a": dice.randint(0, 2), "b": -1}


def permuted_twice(dice: random.Random) -> Mapping[str, object]:
    axes, other = list(range(4)), list(range(4))
    dice.shuffle(axes)
    dice.shuffle(other)
    return {"x": tensor(*shape(dice, 4)), "p": tuple(axes), "q": tuple(other)}


def one_permutation(match: Match) -> Pattern:
    """The permutation p, then q, as one."""
    first, second = _axes(match.p.arg), _axes(match.q.arg)
    return permute(x, tuple(first[axis] for axis in second))


def keeps_rows(match: Match) -> bool:
    """Whether reshaping after a linear only counts its rows in another way."""
    made, weight = match.root.type.shape, match.w.shape
    return len(weight) == 2 and made[-1:] == weight[:1]


def of_rows_at_once(match: Match) -> Pattern:
    """The linear of what is reshaped once."""
    return linear(reshape(x, (*match.root.type.shape[:-1], match.w.shape[1])), w, b)


def rows_counted_anew(dice: random.Random) -> Mapping[str, object]:
    lead, (k, m), n = shape(dice, dice.randint(1, 3)), shape(dice, 2), draws.size(dice)
    given = dice.choice(((*lead, k * m), (*lead, k, m), (m, *lead, k)))
    after = dice.choice(((*lead, n), (1, *lead, n)))
    return {
        **{"x": tensor(*given), "p": (-1, k * m), "s": after},
        **{"w": draws.weight("w", n, k * m), "b": draws.bias(dice, "b", n)},
    }


def _axes(arg: Arg) -> tuple[int, ...]:
    assert isinstance(arg, tuple)
    axes = tuple(axis for axis in arg if isinstance(axis, int))
    return tuple(axis % len(axes) for axis in axes)


DROPOUTS = (
    *("aten.dropout.default", "aten.feature_dropout.default"),
    *("aten.alpha_dropout.default", "aten.feature_alpha_dropout.default"),
)
RENAMES = ("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default")

RULES: tuple[Rule, ...] = (
    Rule(
        "x + 0 -> x",
        find=x + 0,
        replace=x,
        when=unless(CHANGED, added_nothing(-0.0)),
        draw=whole_numbers,
    ),
    Rule(
        "x - 0 -> x", find=x - 0, replace=x, when=unless(CHANGED, added_nothing(0.0)), draw=sized()
    ),
    identity("x * 1 -> x", x * 1, sized()),
    identity("x / 1 -> x", x / 1, sized()),
    identity("pow(x, 1) -> x", call("aten.pow.Tensor_Scalar", x, 1), sized()),
    *(
        identity(f"{op.split('.')[1]}(x, p, eval) -> x", call(op, x, p, False), sized(p=0.5))
        for op in DROPOUTS
    ),
    *(identity(f"{op.split('.')[1]}(x) -> x", call(op, x), sized()) for op in RENAMES),
    Rule(
        "clone(x) -> x",
        find=call("aten.clone.default", x, rest="rest"),
        replace=x,
        when=unless(CHANGED, not_copied),
        draw=sized(rest=(None,)),
    ),
    identity(
        "to(x, same) -> x",
        call("aten._to_copy.default", x, rest="rest"),
        sized(rest=(torch.float32, None, None, None, False, None)),
    ),
    identity(
        "slice(x, all) -> x",
        call("aten.slice.Tensor", x, rest="rest"),
        sized(rest=(0, 0, 2**63 - 1, 1)),
    ),
    identity("expand(x, same) -> x", call("aten.expand.default", x, s), same_shape),
    identity("reshape(x, same) -> x", reshape(x, s), same_shape),
    identity("permute(x, in order) -> x", permute(x, p), permuted_in_order),
    identity("transpose(x, a, a) -> x", transpose(x, a, a), sized(a=0)),
    identity("cat([x]) -> x", cat((x,), a), sized(a=0)),
    identity("t(t(x)) -> x", t(t(x)), lambda dice: {"x": tensor(*shape(dice, 2))}),
    identity(
        "transpose(transpose(x, a, b), a, b) -> x",
        transpose(transpose(x, a, b), a, b),
        swapped_twice,
    ),
    identity(
        "transpose(transpose(x, a, b), b, a) -> x",
        transpose(transpose(x, a, b), b, a),
        swapped_twice,
    ),
    Rule(
        "permute(permute(x, p), q) -> permute(x, p[q])",
        find=permute(permute(x, p), q),
        replace=one_permutation,
        draw=permuted_twice,
    ),
    Rule(
        "reshape(reshape(x, p), s) -> reshape(x, s)",
        find=reshape(reshape(x, p), s),
        replace=lambda match: reshape(x, match.root.type.shape),
        draw=reshaped_twice,
    ),
    Rule(
        "reshape(linear(reshape(x, p), w, b), s) -> linear(reshape(x), w, b)",
        find=reshape(linear(reshape(x, p), w, b), s),
        replace=of_rows_at_once,
        when=unless("columns of the result are counted as rows", keeps_rows),
        draw=rows_counted_anew,
    ),
)

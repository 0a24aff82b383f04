"""Rules of TASO's list that none of ours say: for published searches alone.

    relu(x), relu(y)                  ->  slices of relu(cat([x, y]))     whatever x and y are
    cat([mm(x, a), mm(x, b)], 1)       =  mm(x, cat([a, b], 1))
    cat([mm(x, a), mm(y, a)], 0)       =  mm(cat([x, y], 0), a)
    conv(cat([x, y, z]), cat([u, v, w]))  ->  the channels of both in another order

A user's search has slices where TASO has concatenations of products, and puts neither unlike
activations together nor channels in other orders: no device is faster for it.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Pattern, Rule, When, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, relu
from anabranch.rewrite.rules.algebra_conditions import both, every, floating
from anabranch.rewrite.rules.conv_windows import of_rest
from anabranch.rewrite.rules.matmul_merging import slices
from anabranch.rewrite.rules.pattern_parts import bound
from anabranch.rewrite.rules.shapes import WindowChoices, shapes

x, y, z, a, b, bias, u, v, w = wild("x y z a b bias u v w")


def mm(left: Pattern, right: Pattern) -> Call:
    """The product of two matrices."""
    return call("aten.mm.default", left, right)


def alike_but(axis: int) -> When:
    """Whether x and y may stand one behind the other along this axis."""

    def holds(match: Match) -> Refused | None:
        one, two = match.x.shape, match.y.shape
        if min(len(one), len(two)) <= axis:
            return Refused(f"there is no axis {axis}")
        rest = [(*shape[:axis], *shape[axis + 1 :]) for shape in (one, two)]
        return Refused.unless(rest[0] == rest[1], f"they are of {one} and {two}")

    return every(floating("x", "y"), holds)


def one_behind_the_other(axis: int) -> Callable[[Match], tuple[Pattern, ...]]:
    """Both activations as slices of one."""

    def put(match: Match) -> tuple[Pattern, ...]:
        sizes = [match.x.shape[axis], match.y.shape[axis]]
        return slices(relu(cat((x, y), axis)), axis, sizes)

    return put


def channels_fit(match: Match) -> Refused | None:
    """Whether the three parts of the weight are those of the input's channels."""
    window = of_rest(match.bound["window"], len(match.u.shape) - 2)
    if window.groups != 1 or window.transposed:
        return Refused("it has groups, or is transposed")
    sides = [[bound(match, part).shape[1] for part in parts] for parts in ((x, y, z), (u, v, w))]
    return Refused.unless(
        sides[0] == sides[1], f"the parts have {sides[0]} and {sides[1]} channels"
    )


def in_order(first: int, second: int, third: int) -> Rule:
    """The same convolution with its input's channels, and its weight's, in this order."""
    one, two = (x, y, z), (u, v, w)
    inputs, weights = ((s[first], s[second], s[third]) for s in (one, two))

    def read(some: tuple[Pattern, Pattern, Pattern]) -> Pattern:
        return cat((some[0], cat(some[1:], 1)), 1)

    names = [", cat(".join((s[0].name, f"{s[1].name}, {s[2].name}")) for s in (one, two)]
    put = [", cat(".join((s[0].name, f"{s[1].name}, {s[2].name}")) for s in (inputs, weights)]
    return Rule(
        "conv(cat({}))), cat({}))), bias) -> conv(cat({}))), cat({}))), bias)".format(*names, *put),
        find=convolution(read(one), read(two), bias, rest="window"),
        replace=convolution(read(inputs), read(weights), bias, rest="window"),
        when=every(floating("x", "y", "z", "u", "v", "w"), channels_fit),
        draw=shapes(
            "x: B C room; y: B D room; z: B E room; bias: N const?",
            "u: N C taps; v: N D taps; w: N E taps",
            window=WindowChoices(),
            G=(1,),
        ),
    )


RULES: tuple[Rule, ...] = (
    *(
        Rule(
            f"relu(x), relu(y) -> slices of relu(cat(x, y, {axis}))",
            find=(relu(x), relu(y)),
            replace=one_behind_the_other(axis),
            when=alike_but(axis),
            draw=shapes(draw),
        )
        for axis, draw in ((0, "x: N ...; y: M ..."), (1, "x: B N ...; y: B M ..."))
    ),
    *both(
        "cat(mm(x, a), mm(x, b), 1)",
        "mm(x, cat(a, b, 1))",
        (cat((mm(x, a), mm(x, b)), 1), mm(x, cat((a, b), 1))),
        floating("x", "a", "b"),
        shapes("x: N K; a: K M; b: K P"),
    ),
    *both(
        "cat(mm(x, a), mm(y, a), 0)",
        "mm(cat(x, y, 0), a)",
        (cat((mm(x, a), mm(y, a)), 0), mm(cat((x, y), 0), a)),
        floating("x", "y", "a"),
        shapes("x: N K; y: M K; a: K P"),
    ),
    in_order(1, 0, 2),
    in_order(1, 2, 0),
)

"""Pooling past functions, with padding of its own, and of single places. Rules that might help.

A function that never falls may be applied to all numbers or to the largest of each window alone:

    relu(max_pool(x))  =  max_pool(relu(x))

The right side is what networks have, and a convolution before takes the function in; the left has
fewer numbers to apply it to. Padding before a pooling may be its own. Where there is more of it
behind, windows that are cut short see the same: -inf is never the largest, and a sum is divided by
what it is told (`divisor_override`):

    max_pool(pad(x, 1 right, -inf), 3, 2)   =   max_pool(x, 3, 2, ceil_mode)
    avg_pool(pad(x, 1 right, 0), 3, 2)      =   avg_pool(x, 3, 2, ceil_mode, divisor 9)
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Rule, Wild, wild
from anabranch.rewrite.apply import drawn_until_it_applies
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules.average_pooling import Average, average, pooled, steps
from anabranch.rewrite.rules.conv_composition import sides_of
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes, results, spread
from anabranch.rewrite.rules.drawing import OneOf, WindowChoices
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.pattern_parts import refuses, unrefused
from anabranch.rewrite.rules.shapes import ends, shapes

(x,) = wild("x")

MAXIMUM = "aten.max_pool2d.default"
LOWEST = float("-inf")
RISING = ("relu", "sigmoid", "tanh", "hardtanh")
"""Functions that never fall, of any further arguments."""


def rising(name: str) -> list[Rule]:
    """Both directions; further arguments are captured."""
    text = f"{name}(max_pool(x, *pool), *limits) = max_pool({name}(x, *limits), *pool)"
    draw = shapes(ANY, limits=(0, 6) if name == "hardtanh" else ())
    return [drawn_until_it_applies(rule) for rule in equations(text, when=sees_some, draw=draw)]


def sees_some(match: Match) -> Refused | None:
    """Whether every window sees a number of the input: -inf, the largest of none, is another under
    most functions."""
    rest = match.bound["pool"]
    assert isinstance(rest, tuple)
    kernel = spread(rest[0], 2)
    stride, padding, dilation = steps(rest[1], kernel), spread(rest[2], 2), spread(rest[3], 2)
    sizes = zip(match.x.shape[-2:], match.root.type.shape[-2:], strict=True)
    for axis, (size, count) in enumerate(sizes):
        starts = (i * stride[axis] - padding[axis] for i in range(count))
        step, taps = dilation[axis], range(kernel[axis])
        if not all(any(0 <= start + step * tap < size for tap in taps) for start in starts):
            return Refused("a window sees nothing but padding")
    return None


def at_steps(match: Match) -> Refused | None:
    """Whether its windows are single pixels, unpadded: it skips pixels and no more."""
    by = average(match)
    if set(by.kernel) != {1}:
        return Refused("its window is not 1x1")
    return Refused.unless(
        not any(by.padding) and by.count == 1, "it is padded, or divides by another number"
    )


def every_second(match: Match) -> Call | Wild:
    """avg_pool(x, window 1x1, stride s) -> every s-th pixel of x, by slices"""
    value: Call | Wild = x
    rank = len(match.x.shape)
    for axis, stride in zip((rank - 2, rank - 1), average(match).stride, strict=True):
        if stride > 1:
            value = call("aten.slice.Tensor", value, axis, 0, match.x.shape[axis], stride)
    return value


def largest(match: Match) -> Call | Refused:
    """The pooling with padding of its own, or why it can have none."""
    if match.lowest.arg != LOWEST:
        return Refused("zeros of the padding may be the largest")
    rest = match.bound["pool"]
    assert isinstance(rest, tuple)
    kernel = spread(rest[0], 2)
    by = ConvWindow(steps(rest[1], kernel), spread(rest[2], 2), spread(rest[3], 2))
    own = _own_padding(match, kernel, by)
    if isinstance(own, Refused):
        return own
    padding, ceil = own
    return call(MAXIMUM, x, kernel, by.stride, padding, by.dilation, ceil)


def _own_padding(match: Match, kernel: Sizes, by: ConvWindow) -> tuple[Sizes, bool] | Refused:
    """The padding on both sides, as much as stands on the left, and whether windows cut short on
    the right make as many results."""
    sides = sides_of(match, 2)
    if isinstance(sides, Refused):
        return sides
    if min(end for side in sides for end in side) < 0:
        return Refused("it cuts away instead")
    padding = tuple(left + p for (left, _), p in zip(sides, by.padding, strict=True))
    if any(2 * p > taps for p, taps in zip(padding, kernel, strict=True)):
        return Refused(f"a pooling of {kernel} takes no padding of {padding}")
    wanted, size = match.root.type.shape[-2:], match.x.shape[-2:]
    whole = ConvWindow(by.stride, padding, by.dilation)
    for ceil in (False, True):
        if _results(size, kernel, whole, ceil) == wanted:
            return padding, ceil
    return Refused(f"padded by {padding} on both sides the results are not {wanted}")


def _results(size: Sizes, kernel: Sizes, by: ConvWindow, ceil: bool) -> Sizes:
    """How many windows there are; with `ceil` also those that begin inside and end outside."""
    if not ceil:
        return results(size, kernel, by)
    longer = tuple(n + s - 1 for n, s in zip(size, by.stride, strict=True))
    sides = zip(results(longer, kernel, by), size, by.stride, by.padding, strict=True)
    return tuple(n - ((n - 1) * s >= length + p) for n, length, s, p in sides)


def mean(match: Match) -> Call | Refused:
    """The average that counts zeros of its own, or why there is none."""
    by = average(match)
    if by.ceil:
        return Refused("its last windows are cut short: ceil_mode")
    if any(by.padding) and not by.include and by.divisor is None:
        return Refused("it counts the zeros before, and not its own")
    own = _own_padding(match, by.kernel, by.window)
    if isinstance(own, Refused):
        return own
    padding, ceil = own
    divisor = by.count if ceil else by.divisor
    return pooled(x, Average(by.kernel, by.stride, padding, ceil, True, divisor))


IMAGES: dict[str, object] = {
    **{"WALK": WindowChoices((2,), (1, 2, 3, 5), (1, 2, 3), half=True), "x": "B C H W image"},
    **{"H": range(2, 9), "W": range(2, 9)},
}
POOL = ("taps sizes", OneOf((), "strides sizes", (2,)), OneOf("paddings sizes", (0, 0), (1,)))
ANY = IMAGES | {
    "x": OneOf("B C H W image", "B C H W image", "C H W"),
    "pool": (*POOL, OneOf((1, 1), (1, 1), (1, 2), (2,)), OneOf(True, False)),
}
PADDED = IMAGES | {"pad": ends(0, 0, 1, 2)}

RULES: tuple[Rule, ...] = (
    *(rule for name in RISING for rule in rising(name)),
    drawn_until_it_applies(
        equation(
            "max_pool(pad(x, -inf)) -> max_pool(x) with padding of its own",
            when=refuses(largest),
            find="max_pool(pad(x, pad, lowest), *pool)",
            put=unrefused(largest),
            draw=shapes(PADDED, pool=(*POOL, (1, 1), False), lowest=LOWEST),
        )
    ),
    drawn_until_it_applies(
        equation(
            "avg_pool(pad(x)) -> avg_pool(x) with padding of its own",
            when=refuses(mean),
            find="avg_pool(pad(x, pad), *pool)",
            put=unrefused(mean),
            draw=shapes(PADDED, pool=(*POOL, False, True, OneOf(None, 7))),
        )
    ),
    equation(
        "avg_pool(x) of one place -> x[::s, ::s]",
        when=at_steps,
        find="avg_pool(x, *pool)",
        put=every_second,
        draw=shapes(
            x=OneOf("B C H W", "C H W"),
            pool=(
                *((1, 1), OneOf((2, 2), (2,), (3, 1), (1, 2)), (0, 0)),
                False,
                OneOf(True, False),
                None,
            ),
        ),
    ),
)

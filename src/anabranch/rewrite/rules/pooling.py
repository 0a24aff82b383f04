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

import random
from collections.abc import Callable, Mapping

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Rule, Wild, wild
from anabranch.rewrite.pattern_ops import call
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.average_pooling import Average, average, pooled, steps
from anabranch.rewrite.rules.conv_composition import sides_of
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes, results, spread
from anabranch.rewrite.rules.shapes import OneOf, shapes

Drawn = Mapping[str, object]

x, pad, lowest = wild("x pad lowest")

MAXIMUM, AVERAGE, PAD = (
    f"aten.{name}.default" for name in ("max_pool2d", "avg_pool2d", "constant_pad_nd")
)
LOWEST = float("-inf")
RISING = ("aten.relu.default", "aten.sigmoid.default", "aten.tanh.default", "aten.hardtanh.default")
"""Functions that never fall, of any further arguments."""


def rising(op: str) -> tuple[Rule, Rule]:
    """Both directions; further arguments are captured."""
    name = op.split(".")[1]
    inside = Call(op, (Call(MAXIMUM, (x,), "pool"),), "limits")
    outside = Call(MAXIMUM, (Call(op, (x,), "limits"),), "pool")
    draw = maximum(op)
    return (
        Rule(f"{name}(max_pool(x)) -> max_pool({name}(x))", inside, outside, sees_some, draw),
        Rule(f"max_pool({name}(x)) -> {name}(max_pool(x))", outside, inside, sees_some, draw),
    )


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


def maximum(op: str) -> Callable[[random.Random], Drawn]:
    """An image, how it is pooled, and further arguments of the function."""
    limits = {"aten.hardtanh.default": (0, 6)}.get(op, ())

    def draw(dice: random.Random) -> Drawn:
        pool, size = _pool(dice)
        sizes = [draws.size(dice), draws.size(dice), *size][dice.choice((0, 0, 1)) :]
        return {"x": draws.image(dice, *sizes), "pool": pool, "limits": limits}

    return draw


def _pool(dice: random.Random) -> tuple[tuple[object, ...], Sizes]:
    """Arguments of max_pool2d, and the size of an image for them."""
    kernel = (dice.choice((1, 2, 3)), dice.choice((1, 2, 3, 5)))
    stride = dice.choice(((), (1, 1), (2, 2), (3, 1), (2,)))
    padding = tuple(dice.randint(0, taps // 2) for taps in kernel)
    dilation = dice.choice(((1, 1), (1, 1), (1, 2), (2,)))
    by, ceil = ConvWindow(steps(stride, kernel), padding, spread(dilation, 2)), dice.random() < 0.5
    size = draws.room(dice, kernel, by)
    if by.dilation != (1, 1):  # or taps may step over all of a small image
        ceil, size = ceil and not any(padding), tuple(n + 2 for n in size)
    return (kernel, stride, padding, dilation, ceil), size


def at_steps(match: Match) -> Refused | None:
    by = average(match)
    if set(by.kernel) != {1}:
        return Refused("its window is not 1x1")
    return (
        None
        if not any(by.padding) and by.count == 1
        else Refused("it is padded, or divides by another number")
    )


def every_second(match: Match) -> Call | Wild:
    value: Call | Wild = x
    rank = len(match.x.shape)
    for axis, stride in zip((rank - 2, rank - 1), average(match).stride, strict=True):
        if stride > 1:
            value = call("aten.slice.Tensor", value, axis, 0, match.x.shape[axis], stride)
    return value


def largest_padded(match: Match) -> Refused | None:
    if match.lowest.arg != LOWEST:
        return Refused("zeros of the padding may be the largest")
    found = _largest(match)
    return found if isinstance(found, Refused) else None


def largest(match: Match) -> Call:
    found = _largest(match)
    assert not isinstance(found, Refused)
    return found


def _largest(match: Match) -> Call | Refused:
    """The pooling with padding of its own, or why it can have none."""
    rest = match.bound["pool"]
    assert isinstance(rest, tuple)
    kernel = spread(rest[0], 2)
    by = ConvWindow(steps(rest[1], kernel), spread(rest[2], 2), spread(rest[3], 2))
    found = _own_padding(match, kernel, by)
    if isinstance(found, Refused):
        return found
    padding, ceil = found
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


def mean_padded(match: Match) -> Refused | None:
    found = _mean(match)
    return found if isinstance(found, Refused) else None


def mean(match: Match) -> Call:
    found = _mean(match)
    assert not isinstance(found, Refused)
    return found


def _mean(match: Match) -> Call | Refused:
    """The average that counts zeros of its own, or why there is none."""
    by = average(match)
    if by.ceil:
        return Refused("its last windows are cut short: ceil_mode")
    if any(by.padding) and not by.include and by.divisor is None:
        return Refused("it counts the zeros before, and not its own")
    found = _own_padding(match, by.kernel, by.window)
    if isinstance(found, Refused):
        return found
    padding, ceil = found
    divisor = by.count if ceil else by.divisor
    return pooled(x, Average(by.kernel, by.stride, padding, ceil, True, divisor))


def padded_pool(dice: random.Random, average: bool = False) -> dict[str, object]:
    """Padding that a pooling of this size may have, and perhaps more on the right."""
    while True:
        kernel = (dice.choice((2, 3, 5)), dice.choice((1, 2, 3)))
        stride = dice.choice(((), (1, 1), (2, 2), (3, 1), (2,)))
        own = dice.choice((0, 0, 1)) if min(kernel) > 3 else 0
        left = [dice.randint(0, taps // 2 - own) for taps in kernel]
        right = [end + dice.choice((0, 0, 1)) for end in left]
        by = ConvWindow(steps(stride, kernel), (own, own), (1, 1))
        size = draws.room(dice, kernel, ConvWindow(by.stride, (0, 0), (1, 1)))
        full = tuple(n + a + b for n, a, b in zip(size, left, right, strict=True))
        padding = tuple(a + own for a in left)
        whole = ConvWindow(by.stride, padding, (1, 1))
        wanted = results(full, kernel, by)
        if wanted in (_results(size, kernel, whole, False), _results(size, kernel, whole, True)):
            break
    last = (False, True, dice.choice((None, 7))) if average else ((1, 1), False)
    return {
        "x": draws.image(dice, draws.size(dice), draws.size(dice), *size),
        "pad": (left[1], right[1], left[0], right[0]),
        "pool": (kernel, stride, (own, own), *last),
    }


RULES: tuple[Rule, ...] = (
    *(rule for op in RISING for rule in rising(op)),
    Rule(
        "max_pool(pad(x, -inf)) -> max_pool(x) with padding of its own",
        find=Call(MAXIMUM, (call(PAD, x, pad, lowest),), "pool"),
        replace=largest,
        when=largest_padded,
        draw=lambda dice: {**padded_pool(dice), "lowest": LOWEST},
    ),
    Rule(
        "avg_pool(pad(x)) -> avg_pool(x) with padding of its own",
        find=Call(AVERAGE, (call(PAD, x, pad),), "pool"),
        replace=mean,
        when=mean_padded,
        draw=lambda dice: padded_pool(dice, average=True),
    ),
    Rule(
        "avg_pool(x) of one place -> x[::s, ::s]",
        call(AVERAGE, x, rest="pool"),
        every_second,
        at_steps,
        shapes(
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

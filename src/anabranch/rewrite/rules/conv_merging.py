"""Convolutions merged into one, and one split into several. Rules that might help.

One launch does what several did, and their common input is read once; the members' results are
slices of its channels. Weights are joined when constants are folded, so they must be constant.

    a = convolution(x, w, b)               m = convolution(x, cat(w, v), cat(b, c))
    d = convolution(x, v, c)        ->     a = slice(m, 1, 0, 64)
                                           d = slice(m, 1, 64, 96)

Windows may differ if they fit in one (`windows.together`): a smaller kernel gets a rim of zeros.
IOS calls this merging (MLSys 2021, section 3), TASO enlarging (SOSP 2019). Merging twice merges
three: the first merged convolution is a convolution of the same input.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, When, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import cat, convolution
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.activations import ACTIVATIONS
from anabranch.rewrite.rules.conv_windows import (
    ConvWindow,
    Rims,
    Sizes,
    convolve,
    results,
    rimmed,
    together,
    window,
)
from anabranch.rewrite.rules.pattern_parts import joined_bias, not_constant, slice_of
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    GROUPED,
    TRANSPOSED,
    either,
    joined,
    shapes,
)

Drawn = Mapping[str, object]

x, y, w, v, b, c = wild("x y w v b c")


@dataclass(frozen=True, slots=True)
class Merge:
    """How two convolutions of one input become one: `text` of that, `whole`; where the results
    lie in it, or in what is computed of each element of it; `when`, and instances of that."""

    text: str
    find: tuple[Call, Call]
    whole: Callable[[Match], Call]
    parts: Callable[[Match, Pattern], tuple[Pattern, ...]]
    when: When
    draw: Callable[[random.Random], Drawn]

    def rule(self, both: str) -> Rule:
        """The equation, whose left side is `both`."""

        def put(match: Match) -> tuple[Pattern, ...]:
            return self.parts(match, self.whole(match))

        return Rule(f"{both} -> slices of {self.text}", self.find, put, self.when, self.draw)

    def behind(self, name: str) -> Merge:
        """The same with an activation behind each, and then behind the one."""
        f = ACTIVATIONS[name]

        def whole(match: Match) -> Call:
            return f(self.whole(match))

        draw = joined(self.draw, shapes(f.drawn()))
        one, two = map(f, self.find)
        text = f"{name}({self.text})"
        return replace(self, text=text, find=(one, two), whole=whole, draw=draw)


PAIR = (convolution(x, w, b, rest="window"), convolution(x, v, c, rest="window"))
APART = (convolution(x, w, b, rest="window"), convolution(x, v, c, rest="other"))


def plain(match: Match) -> Refused | None:
    """Why the channels of the results are not simply those of the weights, one below the other."""
    by = window(match)
    if by.transposed:
        return Refused("it is transposed")
    return Refused(f"it has {by.groups} groups") if by.groups > 1 else None


def alike(match: Match) -> Refused | None:
    if match.w.shape[2:] != match.v.shape[2:]:
        return Refused("their windows are of two sizes")
    return plain(match) or not_constant(match, "w", "v", "b", "c")


def unlike(match: Match) -> Refused | None:
    """Two windows, or kernels of two sizes, that fit in one window."""
    if why := plain(match) or not_constant(match, "w", "v", "b", "c"):
        return why
    if not two_kinds(match):
        return Refused("their windows are alike")
    found = one_window(match)
    return found if isinstance(found, Refused) else None


def two_kinds(match: Match) -> bool:
    """Whether the windows or the kernels differ."""
    same = match.bound["window"] == match.bound["other"]
    return not same or match.w.shape[2:] != match.v.shape[2:]


def one_window(match: Match) -> tuple[ConvWindow, list[Rims]] | Refused:
    """The window in which those of w and v fit, or why there is none."""
    one, two = window(match), window(match, "other")
    if (one.transposed, one.groups) != (two.transposed, two.groups):
        return Refused("one is transposed or has groups, the other not")
    members = ((match.w.shape[2:], one), (match.v.shape[2:], two))
    return together(match.x.shape[2:], members)


def stacked(match: Match) -> Call:
    """One convolution, the weights one below the other."""
    return _merged(match, window(match), w, v)


def padded(match: Match) -> Call:
    found = one_window(match)
    assert not isinstance(found, Refused)
    by, (first, second) = found
    return _merged(match, by, rimmed(w, first), rimmed(v, second))


def _merged(match: Match, by: ConvWindow, one: Operand, two: Operand) -> Call:
    n, m = match.w.shape[0], match.v.shape[0]
    return convolve(x, cat((one, two)), joined_bias(match, (b, n), (c, m)), by)


def halves(match: Match, whole: Pattern) -> tuple[Pattern, ...]:
    """The channels of the first, and those of the second."""
    n, m = match.w.shape[0], match.v.shape[0]
    return slice_of(whole, 1, 0, n), slice_of(whole, 1, n, n + m)


def two_windows(dice: random.Random) -> Drawn:
    """Drawn until they fit: about every second time."""
    while True:
        axes = draws.axes(dice)
        one, two = draws.some_window(dice, axes), draws.some_window(dice, axes)
        two = replace(two, stride=one.stride, dilation=one.dilation)
        kernel, other = draws.kernel(dice, axes), draws.kernel(dice, axes)
        if dice.random() < 0.7:  # about one centre, as networks have them
            rims = tuple(dice.randint(0, 2) for _ in range(axes))
            other = tuple(k + 2 * rim for k, rim in zip(kernel, rims, strict=True))
            sides = zip(one.padding, rims, one.dilation, strict=True)
            two = replace(two, padding=tuple(p + rim * d for p, rim, d in sides))
        drawn = _pair(dice, kernel, other, one)
        x = drawn["x"]
        assert isinstance(x, TensorType)
        size = x.shape[2:]
        possible = min(results(size, other, two)) > 0 and (kernel, one) != (other, two)
        if possible and not isinstance(together(size, ((kernel, one), (other, two))), Refused):
            one, two = _told_apart(dice, kernel, one), _told_apart(dice, other, two)
            return {**drawn, "window": one.args, "other": two.args}


def _told_apart(dice: random.Random, kernel: Sizes, by: ConvWindow) -> ConvWindow:
    """The window, of any dilation along axes of one tap."""
    sides = zip(kernel, by.dilation, strict=True)
    return replace(by, dilation=tuple(dice.choice((1, d, 3)) if k == 1 else d for k, d in sides))


def _pair(dice: random.Random, kernel: Sizes, other: Sizes, by: ConvWindow) -> dict[str, object]:
    n, k, m = (draws.size(dice) for _ in range(3))
    size = draws.room(dice, kernel, by)
    return {
        "x": draws.image(dice, draws.size(dice), k, *size),
        "w": draws.weight("w", n, k, *kernel),
        "v": draws.weight("v", m, k, *other),
        "b": draws.bias(dice, "b", n),
        "c": draws.bias(dice, "c", m),
    }


def batches(match: Match) -> Refused | None:
    """Two inputs that differ in their number of images only; the weights may be anything."""
    if match.x.arg == match.y.arg:
        return Refused("it is one convolution twice")
    if match.x.shape[1:] != match.y.shape[1:]:
        return Refused(f"the inputs are {match.x.shape} and {match.y.shape}")
    return (
        None
        if len(match.x.shape) == len(match.w.shape)
        else Refused("the inputs have no axis of images")
    )


def one_batch(match: Match) -> tuple[Pattern, ...]:
    n, m = match.x.shape[0], match.y.shape[0]
    whole = convolution(cat((x, y)), w, b, rest="window")
    return slice_of(whole, 0, 0, n), slice_of(whole, 0, n, n + m)


two_convolutions = shapes(CONVOLUTION, "v: M C taps const; c: M const?")

STACKED = Merge("conv(x, cat(w, v), cat(b, c))", PAIR, stacked, halves, alike, two_convolutions)
PADDED = Merge(
    "conv(x, cat(pad(w), pad(v)), cat(b, c))", APART, padded, halves, unlike, two_windows
)

RULES: tuple[Rule, ...] = (
    *(merge.rule("conv(x, w, b), conv(x, v, c)") for merge in (STACKED, PADDED)),
    Rule(
        "conv(x, w, b), conv(y, w, b) -> slices of conv(cat(x, y), w, b)",
        find=(convolution(x, w, b, rest="window"), convolution(y, w, b, rest="window")),
        replace=one_batch,
        when=batches,
        draw=either(
            shapes(GROUPED, "y: D G*C room image; w: G*N C taps maybe"),
            shapes(GROUPED, "y: D G*C room image; w: G*N C taps maybe"),
            shapes(TRANSPOSED, "y: D G*C room image; w: G*C N taps maybe"),
        ),
    ),
)

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
from collections.abc import Mapping
from dataclasses import replace

from anabranch.ir.graph import Constant
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.parts import bias_of, joined_bias, not_constant, slice_of
from anabranch.rewrite.rules.windows import (
    Rims,
    Sizes,
    Window,
    convolve,
    results,
    rimmed,
    together,
    window,
)
from anabranch.rewrite.words import call, cat, convolution, reshape

Drawn = Mapping[str, object]

x, y, w, v, b, c = wild("x y w v b c")

PAIR = (convolution(x, w, b, rest="window"), convolution(x, v, c, rest="window"))
APART = (convolution(x, w, b, rest="window"), convolution(x, v, c, rest="other"))


def plain(match: Match) -> str:
    """Why the channels of the results are not simply those of the weights, one below the other."""
    by = window(match)
    if by.transposed:
        return "it is transposed"
    return f"it has {by.groups} groups" if by.groups > 1 else ""


def alike(match: Match) -> bool | str:
    if match.w.shape[2:] != match.v.shape[2:]:
        return False
    return plain(match) or not_constant(match, "w", "v", "b", "c") or True


def unlike(match: Match) -> bool | str:
    """Two windows, or kernels of two sizes, that fit in one window."""
    if why := plain(match) or not_constant(match, "w", "v", "b", "c"):
        return why
    if not _two_windows(match):
        return False
    found = one_window(match)
    return found if isinstance(found, str) else True


def _two_windows(match: Match) -> bool:
    same = match.bound["window"] == match.bound["other"]
    return not same or match.w.shape[2:] != match.v.shape[2:]


def one_window(match: Match) -> tuple[Window, list[Rims]] | str:
    """The window in which those of w and v fit, or why there is none."""
    one, two = window(match), window(match, "other")
    if (one.transposed, one.groups) != (two.transposed, two.groups):
        return "one is transposed or has groups, the other not"
    members = ((match.w.shape[2:], one), (match.v.shape[2:], two))
    return together(match.x.shape[2:], members)


def stacked(match: Match) -> tuple[Pattern, ...]:
    """The results as slices of one convolution, the weights one below the other."""
    return halves(match, stacked_whole(match))


def padded(match: Match) -> tuple[Pattern, ...]:
    return halves(match, padded_whole(match))


def stacked_whole(match: Match) -> Call:
    return _merged(match, window(match), w, v)


def padded_whole(match: Match) -> Call:
    found = one_window(match)
    assert not isinstance(found, str)
    by, (first, second) = found
    return _merged(match, by, rimmed(w, first), rimmed(v, second))


def _merged(match: Match, by: Window, one: Operand, two: Operand) -> Call:
    n, m = match.w.shape[0], match.v.shape[0]
    return convolve(x, cat((one, two)), joined_bias(match, (b, n), (c, m)), by)


def halves(match: Match, whole: Pattern) -> tuple[Pattern, ...]:
    """The channels of the first, and those of the second."""
    n, m = match.w.shape[0], match.v.shape[0]
    return slice_of(whole, 1, 0, n), slice_of(whole, 1, n, n + m)


def two_convolutions(dice: random.Random) -> Drawn:
    axes = draws.axes(dice)
    kernel, by = draws.kernel(dice, axes), draws.some_window(dice, axes)
    return {**_pair(dice, kernel, kernel, by), "window": by.args}


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
        if possible and not isinstance(together(size, ((kernel, one), (other, two))), str):
            return {**drawn, "window": one.args, "other": two.args}


def _pair(dice: random.Random, kernel: Sizes, other: Sizes, by: Window) -> dict[str, object]:
    n, k, m = (draws.size(dice) for _ in range(3))
    size = draws.room(dice, kernel, by)
    return {
        "x": draws.image(dice, draws.size(dice), k, *size),
        "w": draws.weight("w", n, k, *kernel),
        "v": draws.weight("v", m, k, *other),
        "b": draws.bias(dice, "b", n),
        "c": draws.bias(dice, "c", m),
    }


def depthwise(match: Match) -> bool | str:
    """One input channel a group, and one result: results of both can alternate."""
    return match.w.shape[2:] == match.v.shape[2:] and _depthwise(match, "window")


def unlike_depthwise(match: Match) -> bool | str:
    if (answer := _depthwise(match, "window", "other")) is not True or not _two_windows(match):
        return answer if answer is not True else False
    found = one_window(match)
    return found if isinstance(found, str) else True


def _depthwise(match: Match, *names: str) -> bool | str:
    channels = match.x.shape[1]
    for by in (window(match, name) for name in names):
        if by.groups == 1 or not by.groups == channels == match.w.shape[0] == match.v.shape[0]:
            return False
        if by.transposed:
            return "it is transposed"
    return not_constant(match, "w", "v", "b", "c") or True


def alternating(match: Match) -> tuple[Pattern, ...]:
    return _alternating(match, window(match), w, v)


def padded_alternating(match: Match) -> tuple[Pattern, ...]:
    found = one_window(match)
    assert not isinstance(found, str)
    by, (first, second) = found
    return _alternating(match, by, rimmed(w, first), rimmed(v, second))


def _alternating(match: Match, by: Window, one: Operand, two: Operand) -> tuple[Pattern, ...]:
    """Each group with a channel of both: every second channel of the result is one's."""
    n = match.w.shape[0]
    both = call("aten.stack.default", (one, two), 1)
    bias: Operand = None
    if match.b.type is not None or match.c.type is not None:
        sides = (bias_of(match, b, n), bias_of(match, c, n))
        bias = reshape(call("aten.stack.default", sides, 1), (2 * n,))
    whole = convolve(x, call("aten.flatten.using_ints", both, 0, 1), bias, by)
    first, second = (call("aten.slice.Tensor", whole, 1, start, 2 * n, 2) for start in (0, 1))
    return first, second


def two_depthwise(dice: random.Random) -> Drawn:
    return _depthwise_of(dice, two_convolutions(dice))


def depthwise_windows(dice: random.Random) -> Drawn:
    return _depthwise_of(dice, two_windows(dice))


def _depthwise_of(dice: random.Random, drawn: Drawn) -> Drawn:
    """The same windows, each channel by itself."""
    n, x = dice.choice((2, 3, 4, 7)), drawn["x"]
    assert isinstance(x, TensorType)
    changed: dict[str, object] = {"x": draws.image(dice, x.shape[0], n, *x.shape[2:])}
    for name, bias in ("wb", "vc"):
        weight = drawn[name]
        assert isinstance(weight, Constant)
        changed[name] = draws.weight(name, n, 1, *weight.type.shape[2:])
        changed[bias] = draws.bias(dice, bias, n)
    for name in ("window", "other"):
        rest = drawn.get(name)
        if isinstance(rest, tuple):
            changed[name] = (*rest[:-1], n)
    return changed


def batches(match: Match) -> bool | str:
    """Two inputs that differ in their number of images only; the weights may be anything."""
    if match.x.arg == match.y.arg:
        return "it is one convolution twice"
    if match.x.shape[1:] != match.y.shape[1:]:
        return f"the inputs are {match.x.shape} and {match.y.shape}"
    return len(match.x.shape) == len(match.w.shape) or "the inputs have no axis of images"


def one_batch(match: Match) -> tuple[Pattern, ...]:
    n, m = match.x.shape[0], match.y.shape[0]
    whole = convolution(cat((x, y)), w, b, rest="window")
    return slice_of(whole, 0, 0, n), slice_of(whole, 0, n, n + m)


def two_inputs(dice: random.Random) -> Drawn:
    axes, groups = draws.axes(dice), dice.choice((1, 1, 2, 3))
    kernel, by = draws.kernel(dice, axes), draws.some_window(dice, axes, groups)
    n, k = draws.size(dice), draws.size(dice)
    if dice.random() < 0.2:
        by = replace(by, transposed=True, dilation=(1,) * axes, padding=(0,) * axes)
    size = draws.room(dice, kernel, by)
    shape = (groups * k, n) if by.transposed else (groups * n, k)
    return {
        **{name: draws.image(dice, draws.size(dice), groups * k, *size) for name in "xy"},
        "w": draws.maybe_weight(dice, "w", *shape, *kernel),
        "b": draws.bias(dice, "b", groups * n),
        "window": by.args,
    }


RULES: tuple[Rule, ...] = (
    Rule(
        "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(w, v), cat(b, c))",
        find=PAIR,
        replace=stacked,
        when=alike,
        draw=two_convolutions,
    ),
    Rule(
        "conv(x, w, b), conv(x, v, c) -> slices of conv(x, cat(pad(w), pad(v)), cat(b, c))",
        find=APART,
        replace=padded,
        when=unlike,
        draw=two_windows,
    ),
    Rule(
        "depthwise(x, w, b), depthwise(x, v, c) -> every second of depthwise(x, w and v, b and c)",
        find=PAIR,
        replace=alternating,
        when=depthwise,
        draw=two_depthwise,
    ),
    Rule(
        "depthwise(x, w, b), depthwise(x, v, c) -> every second of depthwise(x, pad(w) and pad(v))",
        find=APART,
        replace=padded_alternating,
        when=unlike_depthwise,
        draw=depthwise_windows,
    ),
    Rule(
        "conv(x, w, b), conv(y, w, b) -> slices of conv(cat(x, y), w, b)",
        find=(convolution(x, w, b, rest="window"), convolution(y, w, b, rest="window")),
        replace=one_batch,
        when=batches,
        draw=two_inputs,
    ),
)

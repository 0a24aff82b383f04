"""Windows of convolutions: what a match says of them, and one window in which several fit.

    tap t of result i reads  x[stride*i - padding + dilation*t]

so a kernel of k taps with padding p is a part of one of K taps with padding P, behind a rim of
(P - p) / dilation zeros, if that is a whole number, the K taps are enough, and the results are
as many. Along an axis of one tap no dilation says anything, so any will do:

    1 tap, padding 0  in  3 taps, padding 1     _ x _     the same centre: any stride and size
    1 tap, padding 0  in  3 taps, padding 2     _ . x . _ of dilation 2: beside each other in ASPP
    1 tap, padding 0  in  2 taps, padding 0     x _       stride 2 and an even size only
    2 taps, padding 0 in  3 taps, padding 1     never at stride 1: the results are fewer
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anabranch.ir.graph import Arg
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand
from anabranch.rewrite.pattern_ops import call

Sizes = tuple[int, ...]
Rims = tuple[tuple[int, int], ...]
"""Zeros before and after the taps along each axis."""


@dataclass(frozen=True, slots=True)
class ConvWindow:
    """How a convolution walks along its input; one number for each axis of space."""

    stride: Sizes
    padding: Sizes
    dilation: Sizes
    transposed: bool = False
    output_padding: Sizes = ()
    groups: int = 1

    @property
    def args(self) -> tuple[Operand, ...]:
        """As `convolution` takes them."""
        rest = self.output_padding or (0,) * len(self.stride)
        return (self.stride, self.padding, self.dilation, self.transposed, rest, self.groups)

    @property
    def plain(self) -> bool:
        """Whether each result is one input of the same place: stride 1 and no padding."""
        return not self.transposed and set(self.stride) == {1} and set(self.padding) == {0}


def window(match: Match, name: str = "window") -> ConvWindow:
    """The window captured under this name, of the convolution that is a root or below it."""
    return of_rest(match.bound[name], len(match.w.shape) - 2)


def of_rest(rest: Arg, axes: int) -> ConvWindow:
    """The window that a convolution of so many axes is called with, after its bias."""
    assert isinstance(rest, tuple)
    stride, padding, dilation, transposed, output_padding, groups = rest
    assert isinstance(transposed, bool) and isinstance(groups, int)
    stride, padding, dilation = (spread(arg, axes) for arg in (stride, padding, dilation))
    return ConvWindow(stride, padding, dilation, transposed, spread(output_padding, axes), groups)


def spread(arg: Arg, axes: int) -> Sizes:
    """One number for each axis."""
    items = arg if isinstance(arg, tuple) else (arg,)
    sizes = tuple(size for size in items if isinstance(size, int))
    return sizes * axes if len(sizes) == 1 else sizes


def convolve(x: Operand, w: Operand, b: Operand, by: ConvWindow) -> Call:
    """The convolution with this window."""
    return call("aten.convolution.default", x, w, b, *by.args)


def results(size: Sizes, kernel: Sizes, by: ConvWindow) -> Sizes:
    """The size of what a convolution of this kernel makes of an input of this size."""
    sides = zip(size, kernel, by.stride, by.padding, by.dilation, strict=True)
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)


def together(
    size: Sizes, members: Sequence[tuple[Sizes, ConvWindow]]
) -> tuple[ConvWindow, list[Rims]] | Refused:
    """The window in which these kernels fit with their windows, and the rim of each; or why there
    is none. `size` is the input's."""
    _, first = members[0]
    steps = [_dilations(kernel, by) for kernel, by in members]
    for (_, other), step in zip(members[1:], steps[1:], strict=True):
        sides = zip(steps[0], step, strict=True)
        if other.stride != first.stride or any(a and b and a != b for a, b in sides):
            return Refused(f"{_said(first)} is no part of {_said(other)}")
    dilation = tuple(max(1, *sides) for sides in zip(*steps, strict=True))
    padding = tuple(max(sides) for sides in zip(*(by.padding for _, by in members), strict=True))
    whole = replace(first, padding=padding, dilation=dilation)
    before: list[Sizes] = []
    for _, by in members:
        gaps = [most - p for most, p in zip(padding, by.padding, strict=True)]
        if any(gap % d for gap, d in zip(gaps, dilation, strict=True)):
            return Refused(f"padding {by.padding} is not {padding} less a multiple of the dilation")
        before.append(tuple(gap // d for gap, d in zip(gaps, dilation, strict=True)))
    ends = [_sum(kernel, rim) for (kernel, _), rim in zip(members, before, strict=True)]
    taps = tuple(max(sides) for sides in zip(*ends, strict=True))
    wanted = results(size, taps, whole)
    for kernel, by in members:
        if results(size, kernel, by) != wanted:
            windows = f"{kernel} padded by {by.padding} in {taps} padded by {padding}"
            return Refused(f"the results have another size with {windows}")
    after = [tuple(most - end for most, end in zip(taps, sides, strict=True)) for sides in ends]
    return whole, [tuple(zip(*rims, strict=True)) for rims in zip(before, after, strict=True)]


def two_windows(match: Match) -> tuple[ConvWindow, list[Rims]] | Refused:
    """The window in which those of w and v fit, `window` and `other`, or why there is none."""
    first, second = window(match), window(match, "other")
    if (first.transposed, first.groups) != (second.transposed, second.groups):
        return Refused("one is transposed or has groups, the other not")
    members = ((match.w.shape[2:], first), (match.v.shape[2:], second))
    return together(match.x.shape[2:], members)


def rimmed(weight: Operand, rims: Rims) -> Operand:
    """The weight with zeros around its taps."""
    if not any(end for rim in rims for end in rim):
        return weight
    around = tuple(end for rim in reversed(rims) for end in rim)
    return call("aten.constant_pad_nd.default", weight, around)


def _dilations(kernel: Sizes, by: ConvWindow) -> Sizes:
    """How far apart the taps are along each axis; 0 where there is one."""
    return tuple(d if k > 1 else 0 for k, d in zip(kernel, by.dilation, strict=True))


def _sum(a: Sizes, b: Sizes) -> Sizes:
    return tuple(x + y for x, y in zip(a, b, strict=True))


def _said(by: ConvWindow) -> str:
    return f"a window of stride {by.stride} and dilation {by.dilation}"

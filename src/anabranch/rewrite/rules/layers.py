"""Linears and convolutions, by what rules of both say of them. Rules that might help.

    layer(cat(x, y), w, b)              =  layer(x, w[:, :64], b) + layer(y, w[:, 64:])
    layer(x, w, b) + layer(y, v, c)     =  layer(cat(x, y), cat(w, v), b + c)
    layer(x, w, b)                      =  cat(layer(x, w[:32], b[:32]), layer(x, w[32:], b[32:]))
    layer(x, w, b)[:, 8:]               =  layer(x, w[8:], b[8:])
    layer(x, w, b) + layer(y, w, c)     =  layer(x + y, w, b + c)
    layer(x, w, b)                      =  layer(x, w) + b

From left to right branches appear that can run side by side, and a concatenation is never made;
from right to left there is one launch for several, and a sum is taken in registers. Weights are
joined and cut when constants are folded, so they must be constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, linear, reshape
from anabranch.rewrite.rules.algebra_conditions import alike, values
from anabranch.rewrite.rules.conv_windows import ConvWindow, convolve, rimmed, two_windows, window
from anabranch.rewrite.rules.pattern_parts import bound, made, not_constant, refuses, slice_of
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    END,
    GROUPED,
    LINEAR,
    TWO_WINDOWS,
    OneOf,
    WindowChoices,
    either,
    shapes,
)

x, y, w, v, b, c, parts, axis = wild("x y w v b c parts axis")
start, end, step = wild("start end step")
MOST_PARTS = 8
"""Parts of a concatenation that are worth a launch each."""
SLICE = "aten.slice.Tensor"


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A linear or a convolution; `name`: in equations. `axis`: along which the channels of its
    input and of its result lie, those of a linear also with any other axes before them."""

    name: str
    axis: int

    def of(self, x: Operand, w: Operand, b: Operand, rest: str = "window") -> Call:
        """As it is found, and put with the window that was found."""
        return linear(x, w, b) if self.axis < 0 else convolution(x, w, b, rest=rest)

    def put(self, match: Match, x: Operand, w: Operand, b: Operand) -> Call:
        """With the window of the match."""
        return linear(x, w, b) if self.axis < 0 else convolve(x, w, b, window(match))

    def plain(self, match: Match, *names: str, rest: str = "window") -> Refused | None:
        """Why a weight's rows are not the channels of the result, its columns those of the input,
        or one of these is no constant."""
        if self.axis < 0 and len(match.w.shape) != 2:
            return Refused("the weight is a vector")
        by = ConvWindow((), (), ()) if self.axis < 0 else window(match, rest)
        if by.transposed:
            return Refused("it is transposed")
        if by.groups > 1:
            return Refused(f"it has {by.groups} groups, and a group does not read all channels")
        return not_constant(match, *names)

    def along(self, match: Match, rank: int) -> Refused | None:
        """Why the axis of the match is not that of channels, of a tensor of so many axes."""
        at = match.axis.arg
        if self.axis > 0 and rank != len(match.w.shape):
            return Refused("it has no axis of images")
        held = isinstance(at, int) and at % rank == self.axis % rank
        return Refused.unless(held, "it goes along another axis than that of the channels")


LINEARS, CONVOLUTIONS = LayerKind("linear", -1), LayerKind("conv", 1)


def total_bias(match: Match) -> Operand:
    """The sum of b and c, either of which may be None."""
    given = [each for each in (b, c) if bound(match, each).type is not None]
    return given[0] + given[1] if len(given) == 2 else given[0] if given else None


def of_parts(layer: LayerKind) -> Rule:
    """Of a concatenation: a layer of each part, the bias in the first."""

    def sizes(match: Match) -> list[int]:
        refs = values(match, "parts")
        return [match.known.types[ref.name].shape[layer.axis] for ref in refs]

    def when(match: Match) -> Refused | None:
        first, *more = values(match, "parts")
        rank = len(match.known.types[first.name].shape)
        if why := layer.along(match, rank) or layer.plain(match, "w"):
            return why
        if not more:
            return Refused("its input has one part")
        few = len(more) < MOST_PARTS
        return Refused.unless(few, f"its input has {len(more) + 1} parts: too many launches")

    def put(match: Match) -> Pattern:
        refs, ends = values(match, "parts"), pairwise(accumulate(sizes(match), initial=0))
        weights = [slice_of(w, 1, *span) for span in ends]
        total = layer.put(match, refs[0], weights[0], b)
        for part, weight in zip(refs[1:], weights[1:], strict=True):
            total = total + layer.put(match, part, weight, None)
        return total

    one = layer.name
    return Rule(
        f"{one}(cat(x, y), w, b) -> {one}(x, w[:, :x], b) + {one}(y, w[:, x:])",
        find=layer.of(cat(parts, axis), w, b),
        replace=put,
        when=when,
        draw=shapes("parts: ... [K]; axis: K of parts; w: N sum(K) const; b: N const?")
        if layer.axis < 0
        else shapes(
            "parts: B [C] room; axis: C of parts; w: N sum(C) taps const; b: N const?",
            window=WindowChoices(),
        ),
    )


def of_sum(layer: LayerKind) -> Rule:
    """Two that are added up, of inputs of one size; windows that fit in one."""

    def put(match: Match) -> Call | Refused:
        if match.x.arg == match.y.arg:
            return Refused("they read one input: their weights can be added")
        one, two = (list(side.shape) for side in (match.x, match.y))
        del one[layer.axis], two[layer.axis]
        if one != two:
            return Refused(f"the inputs are {match.x.shape} and {match.y.shape}")
        if why := layer.plain(match, "w", "v", "b", "c"):
            return why
        both = cat((x, y), layer.axis % len(match.x.shape))
        if layer.axis < 0:
            return linear(both, cat((w, v), 1), total_bias(match))
        found = two_windows(match)
        if isinstance(found, Refused):
            return found
        by, (first, second) = found
        return convolve(both, cat((rimmed(w, first), rimmed(v, second)), 1), total_bias(match), by)

    other, given = "y: B D room image; v: N D wider const; c: N const?", TWO_WINDOWS
    same = shapes(given, other, RIM=(0,))
    one = layer.name
    return Rule(
        f"{one}(x, w, b) + {one}(y, v, c) -> {one}(cat(x, y), cat(w, v), b + c)",
        find=layer.of(x, w, b) + layer.of(y, v, c, rest="other"),
        replace=made(put),
        when=refuses(put),
        draw=shapes(LINEAR, "y: ... L; v: N L const; c: N const?")
        if layer.axis < 0
        else either(same, shapes(given, other)),
    )


def in_halves(layer: LayerKind) -> Rule:
    """Two of the same input, the first with as many channels as the second or one more."""

    def when(match: Match) -> Refused | None:
        what = "column" if layer.axis < 0 else "channel"
        why = layer.plain(match, "w", "b")
        return why or Refused.unless(match.w.shape[0] > 1, f"it has one {what} only")

    def put(match: Match) -> Pattern:
        n = match.w.shape[0]
        sides = ((0, (n + 1) // 2), ((n + 1) // 2, n))
        return cat(tuple(layer.put(match, x, *rows(match, *ends)) for ends in sides), layer.axis)

    one = layer.name
    return Rule(
        f"{one}(x, w, b) -> cat({one}(x, w[:half], b[:half]), {one}(x, w[half:], b[half:]))",
        find=layer.of(x, w, b),
        replace=put,
        when=when,
        draw=shapes(LINEAR if layer.axis < 0 else CONVOLUTION, N=(2, 3, 4, 5, 7, 8)),
    )


def rows(match: Match, *span: Operand) -> tuple[Call, Operand]:
    """These rows of the weight, and what belongs to them of the bias."""
    bias = None if match.b.type is None else call(SLICE, b, 0, *span)
    return call(SLICE, w, 0, *span), bias


def cut(layer: LayerKind, what: str) -> Rule:
    """Only the channels that are read."""

    def when(match: Match) -> Refused | None:
        rank = len(match.root.type.shape)
        return layer.along(match, rank) or layer.plain(match, "w", "b")

    one = layer.name
    return Rule(
        f"slice({one}(x, w, b), {what}) -> {one}(x, slice(w), slice(b))",
        find=call(SLICE, layer.of(x, w, b), axis, start, end, step),
        replace=lambda match: layer.put(match, x, *rows(match, start, end, step)),
        when=when,
        draw=shapes(
            {"x": "... K O", "w": "N O const", "b": "N const?", "axis": "O of x", "MORE": (0, 1)}
            if layer.axis < 0
            else CONVOLUTION | {"axis": "C of x"},
            start=OneOf(0, None, "N/2 size"),
            end=OneOf("N size", END),
            step=OneOf(1, 1, 2),
        ),
    )


def of_inputs(layer: LayerKind) -> list[Rule]:
    """Two inputs of one layer: their biases are two, and of one layer of a sum one."""
    given: Mapping[str, object] = (
        LINEAR | {"y": "... K", "w": "N K maybe"}
        if layer.axis < 0
        else GROUPED | {"y": "B G*C room image", "w": "G*N C taps maybe"}
    )
    one, plus, minus = layer.name, layer.of(x + y, w, b), layer.of(x - y, w, None)
    bias = {"c": given["b"]}
    return [
        Rule(
            f"{one}(x, w, b) + {one}(y, w, c) -> {one}(x + y, w, b + c)",
            find=layer.of(x, w, b) + layer.of(y, w, c),
            replace=lambda match: layer.of(x + y, w, total_bias(match)),
            when=alike("x", "y"),
            draw=shapes(given, bias),
        ),
        Rule(
            f"{one}(x + y, w, b) -> {one}(x, w, b) + {one}(y, w)",
            find=plus,
            replace=layer.of(x, w, b) + layer.of(y, w, None),
            when=alike("x", "y"),
            draw=shapes(given),
        ),
        Rule(
            f"{one}(x, w, b) - {one}(y, w, b) -> {one}(x - y, w)",
            find=layer.of(x, w, b) - layer.of(y, w, b),
            replace=minus,
            when=alike("x", "y"),
            draw=shapes(given),
        ),
    ]


def bias_apart(layer: LayerKind) -> Rule:
    """The bias by itself."""

    def put(match: Match) -> Pattern:
        ones = (1,) * (len(match.w.shape) - 2)
        return layer.of(x, w, None) + reshape(b, (1, -1, *ones))

    def when(match: Match) -> Refused | None:
        return Refused.unless(match.b.type is not None, "it has no bias")

    one = layer.name
    return Rule(
        f"{one}(x, w, b) -> {one}(x, w) + b",
        find=layer.of(x, w, b),
        replace=layer.of(x, w, None) + b if layer.axis < 0 else put,
        when=when,
        draw=shapes("x: ... K; w: N K maybe; b: N maybe")
        if layer.axis < 0
        else shapes(GROUPED, "b: G*N maybe"),
    )


CHANNELS: tuple[Rule, ...] = tuple(make(CONVOLUTIONS) for make in (of_parts, of_sum, in_halves))
"""Of convolutions along their channels."""

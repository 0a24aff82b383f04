"""Convolutions of all that was computed so far: what came last goes alone. Rules that might help.

    conv(relu(cat([a, b, c], 1) * s + t), w)  =  conv(relu(cat([a, b], 1) * s0 + t0), w0)
                                                 + conv(relu(c * s1 + t1), w1)

Each layer of a DenseNet reads all layers before it, through a norm of its own: nothing ever runs
side by side. Here only the small product waits for the layer before; the large one can run
meanwhile, and the sum is taken in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, relu
from anabranch.rewrite.rules.algebra_conditions import values
from anabranch.rewrite.rules.conv_windows import convolve, window
from anabranch.rewrite.rules.layers import MOST_PARTS
from anabranch.rewrite.rules.pattern_parts import bound, not_constant, slice_of
from anabranch.rewrite.rules.shapes import WindowChoices, shapes

Drawn = Mapping[str, object]
Between = Callable[[Operand, Operand, Operand], Operand]
"""What stands between a concatenation and its convolution, of a value, a factor and a term."""

parts, axis, s, t, w, b = wild("parts axis s t w b")


def plain(value: Operand, factor: Operand, term: Operand) -> Operand:
    return value


def rectified(value: Operand, factor: Operand, term: Operand) -> Call:
    return relu(value)


def normalised(value: Operand, factor: Operand, term: Operand) -> Call:
    return call("aten.addcmul.default", term, value, factor)


def both(value: Operand, factor: Operand, term: Operand) -> Call:
    return relu(normalised(value, factor, term))


def _of_latest(equation: str, between: Between, scaled: bool, fewest: int) -> Rule:
    """`scaled`: a factor and a term take part; `fewest`: with fewer parts each can go alone."""
    constants = ("w", "s", "t") if scaled else ("w",)

    def when(match: Match) -> Refused | None:
        if match.axis.arg not in (1, 1 - len(match.w.shape)) or len(values(match, "parts")) < 2:
            return Refused("its input is no concatenation of channels")
        by = window(match)
        if by.transposed or by.groups > 1:
            return Refused("it is transposed or has groups")
        if why := not_constant(match, *constants):
            return why
        channels = {bound(match, one).shape for one in (s, t)} if scaled else set()
        wanted = (1, match.w.shape[1], *(1 for _ in match.w.shape[2:]))
        if channels - {wanted}:
            return Refused(f"{sorted(channels)} are not a number for each channel")
        count = len(values(match, "parts"))
        return Refused.unless(count >= fewest, f"it has {count} parts, which may all go alone")

    def put(match: Match) -> Pattern:
        *early, last = values(match, "parts")
        n, total = _channels(match, early), match.w.shape[1]

        def side(of: Operand, start: int, end: int, bias: Operand) -> Call:
            factor, term = (slice_of(one, 1, start, end) for one in (s, t))
            value = between(of, factor, term)
            return convolve(value, slice_of(w, 1, start, end), bias, window(match))

        before = cat(tuple(early), 1) if len(early) > 1 else early[0]
        return side(before, 0, n, b) + side(last, n, total, None)

    draw = shapes(
        "parts: B [C] room; axis: C of parts; w: N sum(C) taps const; b: N const?",
        "s: 1 sum(C) ones const; t: 1 sum(C) ones const" if scaled else {},
        window=WindowChoices(),
        PARTS=range(fewest, fewest + 3),
    )
    find = convolution(between(cat(parts, axis), s, t), w, b, rest="window")
    return Rule(equation, find=find, replace=put, when=when, draw=draw)


def _channels(match: Match, refs: list[Ref]) -> int:
    return sum(match.known.types[ref.name].shape[1] for ref in refs)


RULES: tuple[Rule, ...] = (
    _of_latest(
        "conv(cat(xs, y), w, b) -> conv(cat(xs), w, b) + conv(y, w)", plain, False, MOST_PARTS + 1
    ),
    _of_latest(
        "conv(relu(cat(xs, y)), w, b) -> conv(relu(cat(xs)), w, b) + conv(relu(y), w)",
        rectified,
        False,
        2,
    ),
    _of_latest(
        "conv(t + cat(xs, y) * s, w, b) -> conv(t + cat(xs) * s, w, b) + conv(t + y * s, w)",
        normalised,
        True,
        2,
    ),
    _of_latest(
        "conv(relu(t + cat(xs, y) * s), w, b) -> conv(relu(t + cat(xs) * s), w, b)"
        " + conv(relu(t + y * s), w)",
        both,
        True,
        2,
    ),
)

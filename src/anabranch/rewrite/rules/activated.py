"""Convolutions merged together with the activations that read them. Rules that might help.

    r = relu(convolution(x, w, b))         m = relu(convolution(x, cat(w, v), cat(b, c)))
    s = relu(convolution(x, v, c))    ->   r = slice(m, 1, 0, 64)
                                           s = slice(m, 1, 64, 96)

Where a concatenation reads just these two, there are no slices. By the rules of `merging` and of
`pieces` the same takes two steps, and between them both relus are launches of their own, which read
slices: a graph so much dearer that no search follows it. TASO has its merges with and without a
relu, too (SOSP 2019); here any activation may stand in its place.
"""

from __future__ import annotations

from collections.abc import Callable

from anabranch.ir.rule import Match, Pattern, Rule, wild
from anabranch.rewrite.rules import merging
from anabranch.rewrite.rules.activations import ACTIVATIONS
from anabranch.rewrite.rules.terms import Draw
from anabranch.rewrite.words import cat

(axis,) = wild("axis")


def channels(when: Callable[[Match], bool | str]) -> Callable[[Match], bool | str]:
    """The condition, of a concatenation along channels."""

    def asked(match: Match) -> bool | str:
        axis, axes = match.bound["axis"], len(match.x.shape)
        return when(match) if axis in (1, 1 - axes) else "it is not of channels"

    return asked


def _in_one(draw: Draw) -> Draw:
    return lambda dice: {**draw(dice), "axis": 1}


def merged(name: str) -> list[Rule]:
    """Both windows of one size or of two, with a concatenation or with slices."""
    f = ACTIVATIONS[name]

    def stacked(match: Match) -> tuple[Pattern, ...]:
        return merging.halves(match, f(merging.stacked_whole(match)))

    def padded(match: Match) -> tuple[Pattern, ...]:
        return merging.halves(match, f(merging.padded_whole(match)))

    def together(match: Match) -> Pattern:
        return f(merging.stacked_whole(match))

    def together_padded(match: Match) -> Pattern:
        return f(merging.padded_whole(match))

    def told(draw: Draw) -> Draw:
        return lambda dice: {**draw(dice), **{key: give(dice) for key, give in f.drawn().items()}}

    pair, apart = (tuple(map(f, calls)) for calls in (merging.PAIR, merging.APART))
    windows, sizes = told(merging.two_convolutions), told(merging.two_windows)
    both = f"{name}(conv(x, w, b)), {name}(conv(x, v, c))"
    one = f"{name}(conv(x, cat(w, v), cat(b, c)))"
    wider = f"{name}(conv(x, cat(pad(w), pad(v))))"
    return [
        Rule(f"{both} -> slices of {one}", pair, stacked, merging.alike, windows),
        Rule(f"{both} -> slices of {wider}", apart, padded, merging.unlike, sizes),
        Rule(
            f"cat({both}) -> {one}",
            cat(pair, axis),
            together,
            channels(merging.alike),
            _in_one(windows),
        ),
        Rule(
            f"cat({both}) -> {wider}",
            cat(apart, axis),
            together_padded,
            channels(merging.unlike),
            _in_one(sizes),
        ),
    ]


RULES: tuple[Rule, ...] = tuple(rule for name in ACTIVATIONS for rule in merged(name))

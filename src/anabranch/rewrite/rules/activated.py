"""Convolutions merged together with the relus that read them. Rules that might help.

    r = relu(convolution(x, w, b))         m = relu(convolution(x, cat(w, v), cat(b, c)))
    s = relu(convolution(x, v, c))    ->   r = slice(m, 1, 0, 64)
                                           s = slice(m, 1, 64, 96)

Where a concatenation reads just these two, there are no slices. By the rules of `merging` and of
`pieces` the same takes two steps, and between them both relus are launches of their own, which read
slices: a graph so much dearer that no search follows it. TASO has its merges with and without a
relu, too (SOSP 2019).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from anabranch.ir.rule import Call, Match, Pattern, Rule, wild
from anabranch.rewrite.rules import merging
from anabranch.rewrite.words import cat, relu

Drawn = Mapping[str, object]

(axis,) = wild("axis")


def stacked(match: Match) -> tuple[Pattern, ...]:
    return merging.halves(match, relu(merging.stacked_whole(match)))


def padded(match: Match) -> tuple[Pattern, ...]:
    return merging.halves(match, relu(merging.padded_whole(match)))


def together(match: Match) -> Pattern:
    return relu(merging.stacked_whole(match))


def together_padded(match: Match) -> Pattern:
    return relu(merging.padded_whole(match))


def channels(when: Callable[[Match], bool | str]) -> Callable[[Match], bool | str]:
    """The condition, of a concatenation along channels."""

    def asked(match: Match) -> bool | str:
        axis, axes = match.bound["axis"], len(match.x.shape)
        return when(match) if axis in (1, 1 - axes) else "it is not of channels"

    return asked


def _in_one(draw: Callable[[random.Random], Drawn]) -> Callable[[random.Random], Drawn]:
    return lambda dice: {**draw(dice), "axis": 1}


def _read(pair: tuple[Call, ...]) -> tuple[Call, ...]:
    return tuple(map(relu, pair))


RULES: tuple[Rule, ...] = (
    Rule(
        "relu(conv(x, w, b)), relu(conv(x, v, c)) -> slices of relu(conv(x, cat(w, v), cat(b, c)))",
        find=_read(merging.PAIR),
        replace=stacked,
        when=merging.alike,
        draw=merging.two_convolutions,
    ),
    Rule(
        "relu(conv(x, w, b)), relu(conv(x, v, c)) -> slices of relu(conv(x, cat(pad(w), pad(v))))",
        find=_read(merging.APART),
        replace=padded,
        when=merging.unlike,
        draw=merging.two_windows,
    ),
    Rule(
        "cat(relu(conv(x, w, b)), relu(conv(x, v, c))) -> relu(conv(x, cat(w, v), cat(b, c)))",
        find=cat(_read(merging.PAIR), axis),
        replace=together,
        when=channels(merging.alike),
        draw=_in_one(merging.two_convolutions),
    ),
    Rule(
        "cat(relu(conv(x, w, b)), relu(conv(x, v, c))) -> relu(conv(x, cat(pad(w), pad(v))))",
        find=cat(_read(merging.APART), axis),
        replace=together_padded,
        when=channels(merging.unlike),
        draw=_in_one(merging.two_windows),
    ),
)

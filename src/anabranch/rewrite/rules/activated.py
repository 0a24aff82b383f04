"""Convolutions merged together with the relus that read them. Rules that might help.

    r = relu(convolution(x, w, b))         m = relu(convolution(x, cat(w, v), cat(b, c)))
    s = relu(convolution(x, v, c))    ->   r = slice(m, 1, 0, 64)
                                           s = slice(m, 1, 64, 96)

By the rules of `merging` and of `pieces` the same takes two steps, and between them both relus are
launches of their own, which read slices: a graph so much dearer that no search follows it. TASO has
its merges with and without a relu, too (SOSP 2019).
"""

from __future__ import annotations

from anabranch.ir.rule import Call, Match, Pattern, Rule
from anabranch.rewrite.rules import merging
from anabranch.rewrite.words import relu


def stacked(match: Match) -> tuple[Pattern, ...]:
    return merging.halves(match, relu(merging.stacked_whole(match)))


def padded(match: Match) -> tuple[Pattern, ...]:
    return merging.halves(match, relu(merging.padded_whole(match)))


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
)

"""Convolutions merged together with the activations that read them. Rules that might help.

    r = relu(convolution(x, w, b))         m = relu(convolution(x, cat(w, v), cat(b, c)))
    s = relu(convolution(x, v, c))    ->   r = slice(m, 1, 0, 64)
                                           s = slice(m, 1, 64, 96)

Where a concatenation reads just these two, there are no slices. By the rules of `merging` and of
`concat_slice` the same takes two steps, and between them both relus are launches of their own,
which read slices: a graph so much dearer that no search follows it. TASO has its merges with and
without a relu, too (SOSP 2019); here any activation may stand in its place.
"""

from __future__ import annotations

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Rule, When, wild
from anabranch.rewrite.pattern_ops import cat
from anabranch.rewrite.rules import conv_merging, interleaved_convs
from anabranch.rewrite.rules.activations import ACTIVATIONS
from anabranch.rewrite.rules.conv_merging import Merge
from anabranch.rewrite.rules.shapes import joined, shapes

(axis,) = wild("axis")


def channels(when: When) -> When:
    """The condition, of a concatenation along channels."""

    def asked(match: Match) -> Refused | None:
        axis, axes = match.bound["axis"], len(match.x.shape)
        return when(match) if axis in (1, 1 - axes) else Refused("it is not of channels")

    return asked


def merged(name: str) -> list[Rule]:
    """Both windows of one size or of two, with slices or with a concatenation; with groups."""
    both = f"{name}(conv(x, w, b)), {name}(conv(x, v, c))"
    merges = [merge.behind(name) for merge in (conv_merging.STACKED, conv_merging.PADDED)]
    return [
        *(merge.rule(both) for merge in merges),
        *(together(merge, both) for merge in merges),
        interleaved_convs.MERGE.behind(name).rule(f"{both} {interleaved_convs.GROUPS}"),
        interleaved_convs.concatenated(name),
    ]


def together(merge: Merge, both: str) -> Rule:
    return Rule(
        f"cat({both}) -> {merge.text}",
        find=cat(merge.find, axis),
        replace=merge.whole,
        when=channels(merge.when),
        draw=joined(merge.draw, shapes(axis=1)),
    )


RULES: tuple[Rule, ...] = tuple(rule for name in ACTIVATIONS for rule in merged(name))

"""Convolutions of one input merged into one. Rules that might help.

One launch does what several did, and their common input is read once; the members' results are
slices of its channels. Weights are joined when constants are folded, so they must be constant.

    a = convolution(x, w, b)               m = convolution(x, cat(w, v), cat(b, c))
    d = convolution(x, v, c)        ->     a = slice(m, 1, 0, 64)
                                           d = slice(m, 1, 64, 96)

Windows may differ if they fit in one (`conv_windows.together`): a smaller kernel gets a rim of
zeros. IOS calls this merging (MLSys 2021, section 3), TASO enlarging (SOSP 2019). Merging twice
merges three: the first merged convolution is a convolution of the same input.

An activation that reads each member stands behind the one, and where a concatenation reads just
these members there are no slices. By several rules the same takes two steps, with the activations
as launches of their own between them: a graph so much dearer that no search follows it. TASO has
its merges with and without a relu, too; here any activation may stand in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.activations import ACTIVATIONS, Activation
from anabranch.rewrite.rules.conv_windows import (
    ConvWindow,
    Sizes,
    convolve,
    of_rest,
    rimmed,
    together,
)
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import refuses, slice_of, unrefused
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    GROUPED,
    TRANSPOSED,
    TWO_WINDOWS,
    either,
    shapes,
)

(x,) = wild("x")


@dataclass(frozen=True, slots=True)
class Member:
    """One of several convolutions of a value."""

    weight: Ref
    shape: Sizes
    bias: Ref | None
    window: ConvWindow


def whole(
    x: Operand, members: Sequence[Member], size: Sizes, dtype: torch.dtype, last: bool
) -> Call | Refused:
    """One convolution of x, whose axes of space have this size: the channels of the first member,
    then those of the second; or why there is none. No member has groups. `last`: its weight lies
    in channels_last."""
    windows = together(size, [(member.shape[2:], member.window) for member in members])
    if isinstance(windows, Refused):
        return windows
    by, rims = windows
    weights = [rimmed(member.weight, rim) for member, rim in zip(members, rims, strict=True)]
    counts = [member.shape[0] for member in members]
    none = [call("aten.full.default", (count,), 0.0, dtype) for count in counts]
    biases: list[Operand] = [m.bias or zeros for m, zeros in zip(members, none, strict=True)]
    plain = all(member.bias is None for member in members)
    weight, bias = cat(tuple(weights)), cat(tuple(biases))
    if last:
        weight = call("aten.clone.default", weight, torch.channels_last)
    return convolve(x, weight, None if plain else bias, by)


@dataclass(frozen=True, slots=True)
class Merge:
    """How two convolutions become one: `windows`, whether they are of one kind or of two that fit
    in one. `behind`: the activation that reads each of them, by its name."""

    windows: str
    text: str
    behind: str = ""

    @property
    def activation(self) -> Activation | None:
        """The activation that reads each member, None where none does."""
        return ACTIVATIONS.get(self.behind)

    def rules(self) -> tuple[Rule, Rule]:
        """With slices, and with a concatenation."""
        other = "window" if self.windows == "one" else "other"
        pair = [self._conv_text("w, b, *window"), self._conv_text(f"v, c, *{other}")]
        first, second = (self._around(f"conv(x, {sides})") for sides in ("w, b", "v, c"))
        after = self._around(self.text)
        sliced = f"{first}, {second} -> slices of {after}"
        whole = f"cat({first}, {second}) -> {after}"
        two = CONVOLUTION | {"v": "M C taps const", "c": "M const?"}
        told = {} if self.activation is None else self.activation.drawn()
        base, when = (two if self.windows == "one" else TWO_WINDOWS) | told, refuses(self.merged)
        joined = f"cat([{', '.join(pair)}], axis)"
        return (
            equation(sliced, shapes(base), when, find=", ".join(pair), put=self.parts),
            equation(
                whole,
                shapes(base, axis="C of B C taps"),
                when,
                find=joined,
                put=unrefused(self.merged),
            ),
        )

    def merged(self, match: Match) -> Call | Refused:
        """The one convolution, and the activation behind it; or why there is none."""
        members = _members(match)
        kinds = {(member.window, member.shape[2:]) for member in members}
        if (len(kinds) == 1) != (self.windows == "one"):
            return Refused("their windows are alike" if len(kinds) == 1 else "their windows differ")
        conv = whole(x, members, match.x.shape[2:], match.root.type.dtype, False)
        return conv if isinstance(conv, Refused) else self._after(conv)

    def parts(self, match: Match) -> tuple[Pattern, ...]:
        """The channels of each member, as slices."""
        value, counts = (
            unrefused(self.merged)(match),
            (member.shape[0] for member in _members(match)),
        )
        ends = accumulate(counts, initial=0)
        return tuple(slice_of(value, 1, start, end) for start, end in pairwise(ends))

    def _conv_text(self, sides: str) -> str:
        """One convolution of x as text, and the activation behind it."""
        conv = f"conv(x, {sides})"
        return conv if self.activation is None else self.activation.of(conv)

    def _after(self, conv: Call) -> Call:
        return conv if self.activation is None else self.activation(conv)

    def _around(self, text: str) -> str:
        return f"{self.behind}({text})" if self.behind else text


def _members(match: Match) -> tuple[Member, Member]:
    """Both convolutions, but for what they read."""

    def member(weight: str, bias: str, window: str) -> Member:
        by, bias_ref = match.bound[weight], match.bound[bias]
        assert isinstance(by, Ref) and isinstance(bias_ref, Ref | None)
        shape = match.value_facts.types[by.name].shape
        return Member(by, shape, bias_ref, of_rest(match.bound[window], len(shape) - 2))

    other = "other" if "other" in match.bound else "window"
    return member("w", "b", "window"), member("v", "c", other)


def two_inputs(match: Match) -> Refused | None:
    """Whether two inputs are convolved, and not one twice."""
    return Refused.unless(match.x.arg != match.y.arg, "it is one convolution twice")


OTHER = "y: D G*C room image"
ONE_WINDOW = Merge("one", "conv(x, cat(w, v), cat(b, c))")
PADDED = Merge("two", "conv(x, cat(pad(w), pad(v)), cat(b, c))")

RULES: tuple[Rule, ...] = (
    *(merge.rules()[0] for merge in (ONE_WINDOW, PADDED)),
    equation(
        "conv(x, w, b, *window), conv(y, w, b, *window) -> slices of conv(cat(x, y), w, b)",
        either(
            shapes(GROUPED, OTHER, "w: G*N C taps maybe; b: G*N maybe?"),
            shapes(GROUPED, OTHER, "w: G*N C taps maybe; b: G*N maybe?"),
            shapes(TRANSPOSED, OTHER, "w: G*C N taps maybe; b: G*N maybe?"),
        ),
        two_inputs,
        put="slice(conv(cat([x, y], 0), w, b, *window), 0, 0, B),"
        " slice(conv(cat([x, y], 0), w, b, *window), 0, B, B + D)",
    ),
)
BEHIND = [
    [replace(merge, behind=name).rules() for merge in (ONE_WINDOW, PADDED)] for name in ACTIVATIONS
]
ACTIVATED: tuple[Rule, ...] = tuple(
    rule for first, second in BEHIND for rule in (first[0], second[0], first[1], second[1])
)
SIBLINGS = (RULES[0].name, *(first[0].name for first, _ in BEHIND))
"""The names of those that merge convolutions of one input and one window."""

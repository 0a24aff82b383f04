"""Convolutions of one input merged into one. Rules that might help.

One launch does what several did, and their common input is read once; the members' results are
slices of its channels. Weights are joined when constants are folded, so they must be constant.

    a = convolution(x, w, b)               m = convolution(x, cat(w, v), cat(b, c))
    d = convolution(x, v, c)        ->     a = slice(m, 1, 0, 64)
                                           d = slice(m, 1, 64, 96)

Windows may differ if they fit in one (`conv_windows.together`): a smaller kernel gets a rim of
zeros. IOS calls this merging (MLSys 2021, section 3), TASO enlarging (SOSP 2019). Merging twice
merges three: the first merged convolution is a convolution of the same input.

With groups each group computes what all did in it, so the channels of the results interleave:

    weights of one    of the other         of both, in the order of groups
        a a . .          c c . .               a c | b d
        . . b b          . . d d       ->

Where a group has one channel of each, as in a depthwise convolution, a result is every second
channel of all; else it is copied, which pays where a concatenation has to copy anyway. There all
members are merged at once, for two of three cost a copy and save little: three 3x3 convolutions of
64 channels in 4 groups at 28x28, a relu behind each, concatenated, are estimated at 8.6 us on an
H200, and as one at 7.0.

An activation that reads each member stands behind the one, and where a concatenation reads just
these members there are no slices. By several rules the same takes two steps, with the activations
as launches of their own between them: a graph so much dearer that no search follows it. TASO has
its merges with and without a relu, too; here any activation may stand in its place.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.ops import channels_last
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Each, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat, convolution, permute, reshape, transpose
from anabranch.rewrite.rules.activations import ACTIVATIONS, Activation, mode
from anabranch.rewrite.rules.conv_windows import (
    ConvWindow,
    Sizes,
    convolve,
    of_rest,
    rimmed,
    together,
)
from anabranch.rewrite.rules.pattern_parts import computed, made, refuses, slice_of
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    GROUPED,
    TRANSPOSED,
    TWO_WINDOWS,
    Draw,
    Drawing,
    WindowChoices,
    either,
    joined,
    shapes,
)

x, y, w, v, b, c, axis = wild("x y w v b c axis")
FIRST = convolution(x, w, b, rest="window")
GROUPS = "of g groups"


@dataclass(frozen=True, slots=True)
class Member:
    """One of several convolutions of a value."""

    weight: Ref
    shape: Sizes
    bias: Ref | None
    window: ConvWindow

    @property
    def rows(self) -> int:
        """How many channels it computes of each group."""
        return self.shape[0] // self.window.groups


def whole(
    x: Operand, members: Sequence[Member], size: Sizes, dtype: torch.dtype, last: bool
) -> Call | Refused:
    """One convolution of x, whose axes of space have this size: in each group the channels of the
    first member, then those of the second; or why there is none. `last`: its weight lies in
    channels_last."""
    found = together(size, [(member.shape[2:], member.window) for member in members])
    if isinstance(found, Refused):
        return found
    by, rims = found
    weights = [rimmed(member.weight, rim) for member, rim in zip(members, rims, strict=True)]
    counts = [member.shape[0] for member in members]
    none = [call("aten.full.default", (count,), 0.0, dtype) for count in counts]
    biases: list[Operand] = [m.bias or zeros for m, zeros in zip(members, none, strict=True)]
    plain = all(member.bias is None for member in members)
    if by.groups == 1:
        weight, bias = cat(tuple(weights)), cat(tuple(biases))
    else:
        k, sides = members[0].shape[1], zip(members[0].shape[2:], rims[0], strict=True)
        taps = [own + sum(ends) for own, ends in sides]
        rows = [(by.groups, member.rows) for member in members]
        apart = [reshape(one, (*n, k, *taps)) for one, n in zip(weights, rows, strict=True)]
        weight = reshape(cat(tuple(apart), 1), (sum(counts), k, *taps))
        apart = [reshape(one, n) for one, n in zip(biases, rows, strict=True)]
        bias = reshape(cat(tuple(apart), 1), (sum(counts),))
    if last:
        weight = call("aten.clone.default", weight, torch.channels_last)
    return convolve(x, weight, None if plain else bias, by)


@dataclass(frozen=True, slots=True)
class Merge:
    """How several convolutions become one: `windows`, whether they are of one kind or of two that
    fit in one, any with groups. `behind`: the activation that reads each of them, by its name."""

    windows: str
    text: str
    behind: str = ""

    @property
    def grouped(self) -> bool:
        """Whether the members have groups, so that channels of the results interleave."""
        return self.windows == "any"

    @property
    def activation(self) -> Activation | None:
        """The activation that reads each member, None where none does."""
        return ACTIVATIONS.get(self.behind)

    def rules(self) -> tuple[Rule, Rule]:
        """With slices, and with a concatenation; with groups that is of all it holds."""
        other = "window" if self.windows == "one" else "other"
        pair = (self._after(FIRST), self._after(convolution(x, v, c, rest=other)))
        of_groups = f" {GROUPS}" if self.grouped else ""
        first, second = (self._around(f"conv(x, {sides})") for sides in ("w, b", "v, c"))
        after = self._around(self.text)
        both = f"{first}, {second}{of_groups} -> slices of {after}"
        in_cat = f"{first}, {second}) -> {after}"
        find: Call = cat(pair, axis)
        if self.grouped:
            in_cat = f"{first}{of_groups}, ...) -> channels of {after}"
            find = cat((Each(self._after(FIRST)),), axis)
        return (
            Rule(both, pair, self.parts, refuses(self.merged), self._drawn()),
            Rule(f"cat({in_cat}", find, self.concatenated, self.in_channels, self._drawn(cat=True)),
        )

    def in_channels(self, match: Match) -> Refused | None:
        """The same, of members of a concatenation along channels."""
        if match.axis.arg not in (1, 1 - len(match.root.type.shape)):
            return Refused("it is not of channels")
        if len(set(_modes(match))) > 1:
            return Refused(f"{self.behind} is told several things")
        return refuses(self.merged)(match)

    def merged(self, match: Match) -> Call | Refused:
        """The one convolution, and the activation behind it; or why there is none."""
        values, members = _members(match)
        if len(members) < 2:
            return Refused("it has one part")
        if len(set(values)) > 1:
            return Refused("they read several inputs")
        if any(member.window.transposed for member in members):
            return Refused("one is transposed")
        counts = sorted({member.window.groups for member in members})
        if len(counts) > 1:
            return Refused(f"they have {' and '.join(map(str, counts))} groups")
        if (counts[0] > 1) != self.grouped:
            return Refused(f"it has {counts[0]} groups" if counts[0] > 1 else "it has one group")
        if why := computed(match, *(ref for m in members for ref in (m.weight, m.bias))):
            return why
        kinds = {(member.window, member.shape[2:]) for member in members}
        if not self.grouped and (len(kinds) == 1) != (self.windows == "one"):
            return Refused("their windows are alike" if len(kinds) == 1 else "their windows differ")
        size = match.known.types[values[0].name].shape[2:]
        last = self.grouped and channels_last(match.known.types[members[0].weight.name])
        found = whole(values[0], members, size, match.root.type.dtype, last)
        if isinstance(found, Refused) or self.activation is None:
            return found
        if "v" in match.bound:
            return self.activation(found)
        return call(self.activation.op, found, *next(iter(_modes(match)), ()))

    def parts(self, match: Match) -> tuple[Pattern, ...]:
        """The channels of each member: a view where it has one of each group, else a copy in the
        layout that the results have."""
        (_, members), value = _members(match), made(self.merged)(match)
        groups, (images, _, *size) = members[0].window.groups, match.root.type.shape
        ends = list(accumulate((member.rows for member in members), initial=0))
        total, last = ends[-1], channels_last(match.root.type)

        def part(start: int, end: int) -> Pattern:
            rows = end - start
            if groups == 1:
                return slice_of(value, 1, start, end)
            if rows == 1:
                return call("aten.slice.Tensor", value, 1, start, groups * total, total)
            if not last:
                cut = slice_of(reshape(value, (images, groups, total, *size)), 2, start, end)
                return reshape(cut, (images, groups * rows, *size))
            behind = reshape(permute(value, (0, 2, 3, 1)), (images, *size, groups, total))
            cut = slice_of(behind, 4, start, end)
            return permute(reshape(cut, (images, *size, groups * rows)), (0, 3, 1, 2))

        return tuple(part(start, end) for start, end in pairwise(ends))

    def concatenated(self, match: Match) -> Pattern:
        """The channels of the first, then those of the second, and so on: members that compute as
        many of each group change places with the groups, in one copy."""
        (_, members), value = _members(match), made(self.merged)(match)
        rows, groups = members[0].rows, members[0].window.groups
        if groups == 1:
            return value
        if any(member.rows != rows for member in members):
            return cat(self.parts(match), 1)
        images, channels, *size = match.root.type.shape
        apart = (groups, len(members), rows)
        if not channels_last(match.root.type):
            by_groups = reshape(value, (images, *apart, *size))
            return reshape(transpose(by_groups, 1, 2), (images, channels, *size))
        by_groups = reshape(permute(value, (0, 2, 3, 1)), (images, *size, *apart))
        permuted = reshape(transpose(by_groups, 3, 4), (images, *size, channels))
        return permute(permuted, (0, 3, 1, 2))

    def _after(self, one: Call) -> Call:
        return one if self.activation is None else self.activation(one)

    def _around(self, text: str) -> str:
        return f"{self.behind}({text})" if self.behind else text

    def _drawn(self, cat: bool = False) -> Draw:
        told = shapes({} if self.activation is None else self.activation.drawn())
        if self.grouped and cat:
            return lambda dice: _several(dice.choice((2, 3)), told(dice), dice)
        draw = {"one": TWO, "two": shapes(TWO_WINDOWS), "any": either(*map(shapes, IN_GROUPS))}
        return joined(draw[self.windows], told, shapes({"axis": 1} if cat else {}))


def _members(match: Match) -> tuple[list[Ref], list[Member]]:
    """What the convolutions read, and the rest of them. In a concatenation of any number each name
    stands for a tuple."""
    bound, names = match.bound, ("x", "w", "b", "window")
    rows: Iterable[Sequence[Arg]]
    if "v" in bound:
        others = ("x", "v", "c", "other" if "other" in bound else "window")
        rows = [[bound[name] for name in side] for side in (names, others)]
    else:
        columns = [bound[name] for name in names]
        rows = zip(*(arg for arg in columns if isinstance(arg, tuple)), strict=True)
    values, members = list[Ref](), list[Member]()
    for value, weight, bias, rest in rows:
        assert isinstance(value, Ref) and isinstance(weight, Ref) and isinstance(bias, Ref | None)
        shape = match.known.types[weight.name].shape
        values.append(value)
        members.append(Member(weight, shape, bias, of_rest(rest, len(shape) - 2)))
    return values, members


def _modes(match: Match) -> tuple[tuple[Operand, ...], ...]:
    """What each activation of a concatenation of any number is told."""
    found = () if "v" in match.bound else match.bound.get(mode.name, ())
    assert isinstance(found, tuple)
    return found  # type: ignore[return-value]


TWO = shapes(CONVOLUTION, "v: M C taps const; c: M const?")
SOME_GROUPS = TWO_WINDOWS | GROUPED | {"v": "G*M C wider const", "c": "G*M const?", "G": (2, 3, 4)}
IN_GROUPS = [
    SOME_GROUPS | {"RIM": rims, **dict.fromkeys("CNM", channels)}
    for rims in ((0,), (0, 0, 1, 2))
    for channels in ((1,), (1, 2, 3), (1, 2, 3))
]
"""A third of them depthwise, of one window or of two."""


def _several(count: int, told: Mapping[str, object], dice: random.Random) -> Mapping[str, object]:
    """So many in a concatenation, of which the first may be of another window than the others. They
    read one value, so it is drawn as a constant."""

    def read(given: Drawing) -> object:
        return (given.value("x", "B G*C room const"),) * count

    others = count - 1
    draw = shapes(
        dice.choice(IN_GROUPS),
        x=read,
        w=("G*N C taps const", *["G*M C wider const"] * others),
        b=("G*N const?", *["G*M const?"] * others),
        window=(WindowChoices(), *["widened"] * others),
        axis=lambda given: given.dice.choice((1, -1 - len(given.window[0]))),
        WALK=WindowChoices(),
    )
    names = ("x", "w", "b", "window", "axis")
    drawn = {name: one for name, one in draw(dice).items() if name in names}
    return drawn | {name: (one,) * count for name, one in told.items()}


def batches(match: Match) -> Refused | None:
    """Two inputs that differ in their number of images only; the weights may be anything."""
    if match.x.arg == match.y.arg:
        return Refused("it is one convolution twice")
    if match.x.shape[1:] != match.y.shape[1:]:
        return Refused(f"the inputs are {match.x.shape} and {match.y.shape}")
    images = len(match.x.shape) == len(match.w.shape)
    return Refused.unless(images, "the inputs have no axis of images")


def one_batch(match: Match) -> tuple[Pattern, ...]:
    """convolution(x, w, b), convolution(y, w, b) -> slices of convolution(cat(x, y), w, b)"""
    n, m = match.x.shape[0], match.y.shape[0]
    both = convolution(cat((x, y)), w, b, rest="window")
    return slice_of(both, 0, 0, n), slice_of(both, 0, n, n + m)


ONE_WINDOW = Merge("one", "conv(x, cat(w, v), cat(b, c))")
PADDED = Merge("two", "conv(x, cat(pad(w), pad(v)), cat(b, c))")
IN_EACH_GROUP = Merge("any", "each group of conv(x, pad(w) and pad(v), b and c)")

RULES: tuple[Rule, ...] = (
    *(merge.rules()[0] for merge in (ONE_WINDOW, PADDED)),
    Rule(
        "conv(x, w, b), conv(y, w, b) -> slices of conv(cat(x, y), w, b)",
        find=(FIRST, convolution(y, w, b, rest="window")),
        replace=one_batch,
        when=batches,
        draw=either(
            shapes(GROUPED, "y: D G*C room image; w: G*N C taps maybe"),
            shapes(GROUPED, "y: D G*C room image; w: G*N C taps maybe"),
            shapes(TRANSPOSED, "y: D G*C room image; w: G*C N taps maybe"),
        ),
    ),
)
INTERLEAVED: tuple[Rule, ...] = IN_EACH_GROUP.rules()
BEHIND = {
    name: [replace(merge, behind=name).rules() for merge in (ONE_WINDOW, PADDED, IN_EACH_GROUP)]
    for name in ACTIVATIONS
}
ACTIVATED: tuple[Rule, ...] = tuple(
    rule
    for one, two, grouped in BEHIND.values()
    for rule in (one[0], two[0], one[1], two[1], *grouped)
)

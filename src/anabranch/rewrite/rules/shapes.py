"""The shapes of what a rule finds, as text: they say where it applies, and instances are drawn of
them. A rule needs no code for either:

    linear(x, w, b)              shapes(x="... K", w="N K maybe", b="N const?")
    convolution(x, w, b, *by)    shapes(x="B C room image", w="N C taps const", by=WindowChoices())
    linear(cat(parts, axis), w)  shapes(parts="... [K]", axis="K of parts", w="N sum(K)")

A lower-case name is a wildcard, and its text a list of sizes. A letter is one size wherever it
stands, from its own range if it has one (`G=(1, 2)`), or what it is told to be (`G="sum(P)"`).
Sizes may be multiplied and added up (`G*C`, `K+-1`), halved (`N/2`), or be numbers. Several axes at
once are

    ...  A..    any further axes, the same for all; of all such, three at most, or as many as a
                range says (`MORE=(0, 1)` for "...", `A=(2,)` for "A..")
    taps room   the kernel of the window, and an input with at least one result along each axis
    whole       as room, for windows that leave nothing over
    wider       the kernel of another window, with whose room it has as many results: around one of
                the two there are more taps along each axis, `RIM=(0, 1)` of so many on either side
    ones        a one for each axis of the window
    strides     how it walks; `taps.0` is the first of such sizes alone
    paddings
    [C]         of several tensors, each with a size of its own (`PARTS=(2, 3)`: how many);
                `sum(C)` is their sum, `sum(C[:2])` that of the first two, `count` how many

and the last word says what is drawn (`KINDS`), a computed tensor where there is none; with
`several` behind it, it is drawn once for all `count` of them. `K of x` is the axis of x that K
stands at, from either end. An entry that is no text stands for itself, a tuple for what is in it,
and `OneOf` for one of several. `rules.shapes_condition` says what of it is a condition.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from anabranch.rewrite.rules.drawing import (
    GROUPS,
    KINDS,
    NUMBERS,
    OWN_SIZE,
    SEVERAL,
    Drawing,
    OneOf,
    Ways,
    WindowChoices,
)
from anabranch.rewrite.rules.shapes_condition import (
    AnyCondition,
    AxisCondition,
    ShapesCondition,
    TensorCondition,
    WindowCondition,
)

ANY_GROUPS = (1, 1, 2, 3)
END = 2**63 - 1
"""Where a slice to the end ends."""


CONVOLUTION: dict[str, object] = {
    **{"x": "B C room image", "w": "N C taps const", "b": "N const?", "window": WindowChoices()},
}
GROUPED: dict[str, object] = {
    **CONVOLUTION,
    **{"x": "B G*C room image", "w": "G*N C taps const", "b": "G*N const?", "G": ANY_GROUPS},
}
TWO_WINDOWS = CONVOLUTION | {
    **{"v": "M C wider const", "c": "M const?", "other": "widened", "RIM": (0, 0, 1, 2)},
}
"""Of two convolutions of one input whose windows fit in one."""
TRANSPOSED = GROUPED | {"w": "G*C N taps const", "window": WindowChoices(transposed=True)}
LINEAR: dict[str, object] = {"x": "... K", "w": "N K const", "b": "N const?"}
"""Of layers by themselves."""
ONE_TAP = WindowChoices(kernel=(1,), stride=(1,), padding=(0,), dilation=(1,))
UNPADDED = WindowChoices(padding=(0,))


@dataclass(frozen=True, slots=True, eq=False)
class RuleShapes:
    """What is said of the wildcards by their names, and of letters; `letters`: sizes that the
    pattern has as arguments. Called, it draws a value for each."""

    entries: Mapping[str, object]
    letters: tuple[str, ...] = ()

    def __call__(self, dice: random.Random) -> Mapping[str, object]:
        """Random arguments of these shapes."""
        drawing = Drawing(dice, self.entries)
        return drawing.all() | {letter: drawing.size(letter) for letter in self.letters}

    def fitting(self, names: Collection[str]) -> ShapesCondition:
        """The condition that wildcards of these names have these shapes."""
        told = {name: entry for name, entry in self.entries.items() if name in names}
        tensors = (_wanted(name, entry) for name, entry in told.items())
        axes = (self._axis(name, entry) for name, entry in told.items())
        windows = (self._window(name, entry) for name, entry in told.items())
        return ShapesCondition(
            tuple(tensor for tensor in tensors if tensor),
            tuple(axis for axis in axes if axis),
            tuple(window for window in windows if window),
            tuple(name for name, entry in told.items() if _is_number(entry)),
            tuple(name for name, entry in told.items() if entry is None),
            self.letters,
        )

    def _axis(self, name: str, entry: object) -> AxisCondition | None:
        if not isinstance(entry, str) or " of " not in entry:
            return None
        letter, _, shape = entry.partition(" of ")
        text = self.entries.get(shape, shape)
        tokens = tuple(token for token in str(text).split() if token not in (*KINDS, "several"))
        return AxisCondition(name, letter, tokens, shape if shape in self.entries else "")

    def _window(self, name: str, entry: object) -> WindowCondition | None:
        told = self.entries.get(GROUPS, ())
        groups = 0 if told == () else 2 if isinstance(told, tuple) and min(told) > 1 else 1
        if entry == "plain":
            return WindowCondition(name, 0, 1, 0, None)
        if entry == "widened":
            return WindowCondition(name, groups, None, None, None)
        if not isinstance(entry, WindowChoices) or entry.transposed:
            return None
        padding = None if entry.half else _only(entry.padding)
        # Of one tap any dilation says the same.
        dilation = None if _only(entry.kernel) == 1 else _only(entry.dilation)
        return WindowCondition(name, groups, _only(entry.stride), padding, dilation)


@dataclass(frozen=True, slots=True, eq=False)
class EitherShapes:
    """One of several, each of which may be such a choice again."""

    ways: tuple[AnyShapes, ...]

    def __call__(self, dice: random.Random) -> Mapping[str, object]:
        """Random arguments of one of them."""
        return dice.choice(self.ways)(dice)

    def fitting(self, names: Collection[str]) -> ShapesCondition | AnyCondition:
        """The condition that one of them fits."""
        conditions = tuple(dict.fromkeys(way.fitting(names) for way in self.ways))
        return conditions[0] if len(conditions) == 1 else AnyCondition(conditions)


AnyShapes = RuleShapes | EitherShapes


def shapes(*descriptions: str | Mapping[str, object], **more: object) -> RuleShapes:
    """Of each lower-case name; upper-case names are the ranges of letters. Entries may be given as
    one text (`"x: ... K; w: N K const"`), or be those of others; what is said last holds."""
    entries: dict[str, object] = {}
    for description in (*descriptions, more):
        entries |= written(description) if isinstance(description, str) else description
    return RuleShapes(entries)


def written(text: str) -> dict[str, object]:
    """The entries of a text."""
    pairs = (entry.partition(":") for entry in text.split(";"))
    return {name.strip(): shape.strip() for name, _, shape in pairs}


def either(*ways: AnyShapes) -> EitherShapes:
    """As one of these."""
    return EitherShapes(ways)


def _wanted(name: str, entry: object) -> TensorCondition | None:
    """What the entry says of a tensor, or of several; None if it is of none."""
    if not isinstance(entry, str) or " of " in entry:
        return None
    several = entry.endswith(SEVERAL)
    tokens = entry.removesuffix(SEVERAL).split()
    kind = tokens.pop() if tokens and tokens[-1] in KINDS else ""
    if kind in (*NUMBERS, "sizes", "plain", "widened"):
        return None
    many = several or any(OWN_SIZE.fullmatch(token) for token in tokens)
    return TensorCondition(name, tuple(tokens), kind, many)


def _is_number(entry: object) -> bool:
    choices = entry.choices if isinstance(entry, OneOf) else ()
    return bool(choices) and all(type(choice) in (int, float) for choice in choices)


def _only(ways: Ways) -> int | None:
    """The one number along all axes; None where there are several, or none."""
    numbers = {n for way in ways for n in (way if isinstance(way, Sequence) else (way,))}
    return numbers.pop() if len(numbers) == 1 else None


def ends(*sizes: int) -> Callable[[Drawing], object]:
    """So much before and behind each axis of a window, one of these."""
    return lambda drawing: tuple(
        drawing.dice.choice(sizes) for _ in drawing.window[0] for _ in range(2)
    )


def each(*choices: object) -> Callable[[Drawing], object]:
    """For each of several tensors one of these."""
    return lambda drawing: tuple(
        drawing.value("", drawing.dice.choice(choices)) for _ in range(drawing.size("count"))
    )


def pools(
    rest: tuple[object, ...], *descriptions: str | Mapping[str, object], **more: object
) -> EitherShapes:
    """The shapes of a pooling along two axes, whose arguments behind its padding these are
    (`pool`); its strides may be left out, or be one number."""
    ways = (((1, 1, 2, 3), "strides sizes"), ((), ()), ((2,), (2,)))
    kernel = (1, 2, 3, 5)
    return either(
        *(
            shapes(
                *descriptions,
                WALK=WindowChoices((2,), kernel, stride, dilation=(1,), half=True),
                pool=("taps sizes", told, "paddings sizes", *rest),
                **more,
            )
            for stride, told in ways
        )
    )

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
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from anabranch.ir.graph import Constant
from anabranch.ir.ops import channels_last_strides
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules import draws
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes
from anabranch.rewrite.rules.shapes_condition import (
    WALKED,
    AnyCondition,
    AxisCondition,
    ShapesCondition,
    TensorCondition,
    WindowCondition,
    calculated,
    is_further,
    is_several,
)

Ways = Sequence[int] | Sequence[Sequence[int]]
DrawnSizes = dict[str, int | Sizes]
"""What the letters stand for; several sizes for a name of several axes."""

KINDS: Mapping[str, str] = {
    "image": "a tensor, its channels side by side now and then",
    "any": "a tensor, and no condition of its shape",
    "const": "a constant",
    "const?": "a constant or None",
    "maybe": "a constant or a tensor",
    "maybe?": "a constant, a tensor or None",
    "int64": "a tensor of whole numbers",
    "int32": "a tensor of whole numbers",
    "broadcast": "a tensor of size one along some of its axes",
    "sizes": "the sizes themselves",
    "size": "the one size",
    "place": "a number from nought to less than this size",
    "index": "a place along an axis of this size, from either end",
    "upto": "a number from one to this size",
    "plain": "a window of one tap for as many axes as the other",
    "widened": "the window of the kernel `wider`",
}
MORE, PARTS, DTYPE, GROUPS, RIM = "MORE", "PARTS", "DTYPE", "G", "RIM"
"""Ranges of how many further axes there are, and how many parts; the dtype of all that is not whole
numbers; the letter for a window's groups if it is given a range; taps beside those of a window."""
UNUSUAL_SHARE = 0.3
"""Of all draws: how often something is unusual."""
MOST_FURTHER_AXES = 3
"""Further axes of an instance, of all names together."""
ANY_GROUPS = (1, 1, 2, 3)
NUMBERS: Mapping[str, Callable[[random.Random, int], int]] = {
    "size": lambda dice, size: size,
    "place": lambda dice, size: dice.randrange(size),
    "index": lambda dice, size: dice.randrange(-size, size),
    "upto": lambda dice, size: dice.randint(1, size),
}
OWN_SIZE = re.compile(r"\[(\w+)\]")
SEVERAL = " several"
END = 2**63 - 1
"""Where a slice to the end ends."""


@dataclass(frozen=True, slots=True, init=False)
class OneOf:
    """One of these, each as it would stand alone."""

    choices: tuple[object, ...]

    def __init__(self, *choices: object) -> None:
        object.__setattr__(self, "choices", choices)


@dataclass(frozen=True, slots=True)
class WindowChoices:
    """How a convolution walks along its input, for each axis of space one of each, or of those of
    this axis: `padding=((1,), (0, 1))`. Without strides it steps by its kernel; `half`: it is
    padded by half its kernel at most. A `transposed` one has no padding."""

    axes: Sequence[int] = (1, 2, 2, 2, 2, 3)
    kernel: Ways = (1, 1, 2, 3, 3, 4)
    stride: Ways = (1, 1, 2, 3)
    padding: Ways = (0, 0, 1, 2)
    dilation: Ways = (1, 1, 1, 2)
    half: bool = False
    transposed: bool = False


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
        given = Drawing(dice, self.entries)
        return given.all() | {letter: given.size(letter) for letter in self.letters}

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


def shapes(*given: str | Mapping[str, object], **more: object) -> RuleShapes:
    """Of each lower-case name; upper-case names are the ranges of letters. Entries may be given as
    one text (`"x: ... K; w: N K const"`), or be those of others; what is said last holds."""
    entries: dict[str, object] = {}
    for one in (*given, more):
        entries |= written(one) if isinstance(one, str) else one
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
    found = {n for way in ways for n in (way if isinstance(way, Sequence) else (way,))}
    return found.pop() if len(found) == 1 else None


def ends(*sizes: int) -> Callable[[Drawing], object]:
    """So much before and behind each axis of a window, one of these."""
    return lambda given: tuple(given.dice.choice(sizes) for _ in given.window[0] for _ in range(2))


def each(*choices: object) -> Callable[[Drawing], object]:
    """For each of several tensors one of these."""
    return lambda given: tuple(
        given.value("", given.dice.choice(choices)) for _ in range(given.size("count"))
    )


def pools(
    rest: tuple[object, ...], *given: str | Mapping[str, object], **more: object
) -> EitherShapes:
    """The shapes of a pooling along two axes, whose arguments behind its padding these are
    (`pool`); its strides may be left out, or be one number."""
    ways = (((1, 1, 2, 3), "strides sizes"), ((), ()), ((2,), (2,)))
    kernel = (1, 2, 3, 5)
    return either(
        *(
            shapes(
                *given,
                WALK=WindowChoices((2,), kernel, stride, dilation=(1,), half=True),
                pool=("taps sizes", told, "paddings sizes", *rest),
                **more,
            )
            for stride, told in ways
        )
    )


@dataclass(slots=True)
class Drawing:
    """One instance as it is drawn: what a letter stands for is settled when it is first read."""

    dice: random.Random
    entries: Mapping[str, object]
    known: DrawnSizes = field(default_factory=dict)
    _windows: list[tuple[Sizes, ConvWindow]] = field(default_factory=list)
    _room: Sizes = ()
    _counts: dict[str, int] = field(default_factory=dict)

    def all(self) -> dict[str, object]:
        """What each wildcard stands for."""
        names = [name for name in self.entries if name.islower()]
        return {name: self.value(name, self.entries[name]) for name in names}

    def value(self, name: str, entry: object) -> object:
        """What one wildcard stands for."""
        if isinstance(entry, OneOf):
            return self.value(name, self.dice.choice(entry.choices))
        if isinstance(entry, WindowChoices):
            return self.window[1].args
        if isinstance(entry, tuple):
            return tuple(self.value(f"{name}{i}", item) for i, item in enumerate(entry))
        if callable(entry):
            return entry(self)
        return self._text(name, entry) if isinstance(entry, str) else entry

    def _text(self, name: str, text: str) -> object:
        first, of, shape = text.partition(" of ")
        if of:
            return self._axis(first, shape)
        if text.endswith(SEVERAL):
            return (self._text(name, text.removesuffix(SEVERAL)),) * self.size("count")
        if owns := list(dict.fromkeys(OWN_SIZE.findall(text))):
            parts = range(self.size("count"))
            return tuple(self._text(f"{name}{i}", self._of_part(text, owns, i)) for i in parts)
        *tokens, kind = text.split() or [""]
        if kind not in KINDS:
            tokens, kind = text.split(), ""
        if kind == "plain":
            ones = self._several("ones")
            return ConvWindow(ones, (0,) * len(ones), ones).args
        if kind == "widened":
            return self._both[1][1].args
        sizes = self.sizes(tokens)
        if kind in NUMBERS:
            return NUMBERS[kind](self.dice, *sizes)
        return sizes if kind == "sizes" else self._operand(name, kind, sizes)

    def _of_part(self, text: str, owns: Collection[str], part: int) -> str:
        """The text of one of several tensors, with its own sizes."""
        for letter in owns:
            text = text.replace(f"[{letter}]", str(self._several(f"[{letter}]")[part]))
        return text

    def _operand(self, name: str, kind: str, sizes: Sizes) -> object:
        dtype = self.entries.get(DTYPE, torch.float32)
        assert isinstance(dtype, torch.dtype)
        if kind == "broadcast":
            sizes = tuple(1 if self.dice.random() < UNUSUAL_SHARE else size for size in sizes)
        strided = kind == "image" and len(sizes) == 4 and self.dice.random() < UNUSUAL_SHARE
        computed = TensorType(sizes, dtype, channels_last_strides(sizes) if strided else ())
        constant = Constant(name, computed, name)
        ways: Mapping[str, tuple[object, ...]] = {
            "const": (constant,),
            "const?": (constant, None),
            "maybe": (constant, computed),
            "maybe?": (constant, computed, None),
            "int64": (TensorType(sizes, torch.int64),),
            "int32": (TensorType(sizes, torch.int32),),
        }
        return self.dice.choice(ways.get(kind, (computed,)))

    def _axis(self, letter: str, shape: str) -> int:
        """Where the letter stands in a shape, or in that of a wildcard, from either end."""
        text = self.entries.get(shape, shape)
        assert isinstance(text, str)
        tokens = [token for token in text.split() if token not in KINDS]
        counts = [len(self._several(token)) if is_several(token) else 1 for token in tokens]
        at = sum(counts[: [token.strip("[]") for token in tokens].index(letter)])
        return self.dice.choice((at, at - sum(counts)))

    def sizes(self, tokens: Sequence[str]) -> Sizes:
        """What these stand for, one after the other."""
        found: list[int] = []
        for token in tokens:
            found += self._several(token) if is_several(token) else [self.size(token)]
        return tuple(found)

    def _several(self, token: str) -> Sizes:
        if token not in self.known:
            self.known[token] = self._drawn(token)
        found = self.known[token]
        assert isinstance(found, tuple)
        return found

    def _drawn(self, token: str) -> Sizes:
        if token in WALKED:
            return self._walked(token)
        if token.startswith("["):
            letter, count = token.strip("[]"), len(self._several(PARTS))
            return tuple(self._fresh(letter) for _ in range(count))
        if token == PARTS:
            return (1,) * self.dice.choice(self._range(PARTS, (2, 3, 4)))
        return tuple(self._fresh(token) for _ in range(self._further(token)))

    def _walked(self, token: str) -> Sizes:
        kernel, by = self.window
        if token == "wider":
            return self._both[1][0]
        if token == "room":
            return self._room or draws.room(self.dice, kernel, by)
        if token == "whole":
            sides = zip(self._several("room"), kernel, by.padding, by.stride, strict=True)
            return tuple(n + -(n + 2 * p - k) % s for n, k, p, s in sides)
        ones = (1,) * len(kernel)
        return {"taps": kernel, "strides": by.stride, "paddings": by.padding}.get(token, ones)

    def _further(self, token: str) -> int:
        """How many axes this name has. Those without a range share a number of them."""
        name = MORE if token == "..." else token.removesuffix("..")
        if name in self.entries:
            return self.dice.choice(self._range(name, ()))
        if not self._counts:
            left = self.dice.randint(0, MOST_FURTHER_AXES)
            texts = " ".join(_texts(tuple(self.entries.values())))
            names = list(dict.fromkeys(filter(is_further, texts.split())))
            for other in (one for one in names if one.removesuffix("..") not in self.entries):
                self._counts[other] = left if other == names[-1] else self.dice.randint(0, left)
                left -= self._counts[other]
        return self._counts[token]

    def size(self, text: str) -> int:
        """A number, a letter, or what is calculated of them."""
        found = calculated(text, self._known)
        assert found is not None, text
        return found

    def _known(self, name: str) -> int | Sizes:
        if name == "count":
            return len(self._several(PARTS))
        if is_several(name) or name.startswith("["):
            return self._several(name)
        if not name.isupper():
            raise ValueError(f"{name!r} is no size, and no kind of {', '.join(KINDS)}")
        if name not in self.known:
            self.known[name] = self._fresh(name)
        return self.known[name]

    def _fresh(self, letter: str) -> int:
        told = self.entries.get(letter)
        return (
            self.size(told)
            if isinstance(told, str)
            else self.dice.choice(self._range(letter, draws.SIZES))
        )

    def _range(self, name: str, default: Sequence[int]) -> Sequence[int]:
        given = self.entries.get(name, default)
        assert isinstance(given, Sequence)
        return given

    @property
    def window(self) -> tuple[Sizes, ConvWindow]:
        """The kernel, and how it walks."""
        return self._both[0]

    @property
    def _both(self) -> list[tuple[Sizes, ConvWindow]]:
        """The window, and another one if taps are to stand around one of the two."""
        if not self._windows:
            by, *_ = (entry for entry in self.entries.values() if isinstance(entry, WindowChoices))
            groups = self.size(GROUPS) if GROUPS in self.entries else 1
            one = _walk(self.dice, by, groups)
            if RIM in self.entries:
                self._room = draws.room(self.dice, *one)
                self._windows = _widened(self.dice, one, self._room, self._range(RIM, ()))
            else:
                self._windows = [one]
        return self._windows


def _walk(dice: random.Random, by: WindowChoices, groups: int) -> tuple[Sizes, ConvWindow]:
    axes = dice.choice(by.axes)

    def some(ways: Ways) -> Sizes:
        return tuple(dice.choice(_of_axis(ways, axis)) for axis in range(axes))

    kernel = some(by.kernel)
    stride, dilation = some(by.stride) if by.stride else kernel, some(by.dilation)
    padding = tuple(dice.randint(0, k // 2) for k in kernel) if by.half else some(by.padding)
    if by.transposed:
        return kernel, ConvWindow(stride, (0,) * axes, dilation, transposed=True, groups=groups)
    return kernel, ConvWindow(stride, padding, dilation, groups=groups)


def _widened(
    dice: random.Random, one: tuple[Sizes, ConvWindow], room: Sizes, rims: Sequence[int]
) -> list[tuple[Sizes, ConvWindow]]:
    """Two windows, along each axis this one in one of them, and one with taps around in the other.
    Of one tap any dilation says the same."""
    (kernel, by), axes = one, range(len(one[0]))
    chosen = [dice.choice(rims) for _ in axes]
    if any(rims) and not any(chosen):
        chosen[0] = max(rims)
    pairs = []
    for k, s, p, d, n, before in zip(
        kernel, by.stride, by.padding, by.dilation, room, chosen, strict=True
    ):
        d = d if k > 1 else dice.choice((1, 2, 3))
        spare = (n + 2 * p - d * (k - 1) - 1) % s  # of these steps some may be taken behind
        fit = [rim for rim in rims if 0 <= spare + d * (before - rim) < s]
        after = before if dice.random() < 1 - UNUSUAL_SHARE else dice.choice(fit)
        pair = [(k, p, d), (k + before + after, p + before * d, d)]
        pairs.append(pair if dice.random() < 1 - UNUSUAL_SHARE else pair[::-1])
    found = []
    for sides in zip(*pairs, strict=True):
        told = [(k, p, d if k > 1 else dice.choice((1, 2, 3))) for k, p, d in sides]
        taps, padding, dilation = (tuple(side[i] for side in told) for i in range(3))
        found.append((taps, replace(by, padding=padding, dilation=dilation)))
    return found


def _of_axis(ways: Ways, axis: int) -> Sequence[int]:
    each = [way for way in ways if isinstance(way, Sequence)]
    return each[axis] if each else [way for way in ways if isinstance(way, int)]


def _texts(entry: object) -> Iterator[str]:
    """All texts of an entry, whichever is chosen."""
    if isinstance(entry, str):
        yield entry
    items = entry.choices if isinstance(entry, OneOf) else entry
    if isinstance(items, tuple):
        yield from (text for item in items for text in _texts(item))

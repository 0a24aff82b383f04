"""One instance of a rule as it is drawn of the texts of its shapes (the grammar: `rules.shapes`).

    Drawing(dice, {"x": "N K", "w": "M K const"}).all()        x: f32[3,5], w: f32[2,5] constant

A letter's size is drawn when it is first read, and stands wherever the letter does. Windows and the
image that they walk over are drawn together, so that there is at least one result along each axis.
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
from anabranch.rewrite.rules.conv_windows import ConvWindow, Sizes
from anabranch.rewrite.rules.size_letters import WALKED, calculated, is_further, is_several

SIZES = (1, 2, 3, 4, 5, 6, 7)
"""Channels, rows and columns: one, primes, and numbers that divide."""
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
NUMBERS: Mapping[str, Callable[[random.Random, int], int]] = {
    "size": lambda dice, size: size,
    "place": lambda dice, size: dice.randrange(size),
    "index": lambda dice, size: dice.randrange(-size, size),
    "upto": lambda dice, size: dice.randint(1, size),
}
OWN_SIZE = re.compile(r"\[(\w+)\]")
SEVERAL = " several"


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


@dataclass(slots=True)
class Drawing:
    """One instance as it is drawn: what a letter stands for is settled when it is first read."""

    dice: random.Random
    entries: Mapping[str, object]
    size_of: DrawnSizes = field(default_factory=dict)
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
        sizes: list[int] = []
        for token in tokens:
            sizes += self._several(token) if is_several(token) else [self.size(token)]
        return tuple(sizes)

    def _several(self, token: str) -> Sizes:
        if token not in self.size_of:
            self.size_of[token] = self._drawn(token)
        sizes = self.size_of[token]
        assert isinstance(sizes, tuple)
        return sizes

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
            return self._room or room(self.dice, kernel, by)
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
            for other in (each for each in names if each.removesuffix("..") not in self.entries):
                self._counts[other] = left if other == names[-1] else self.dice.randint(0, left)
                left -= self._counts[other]
        return self._counts[token]

    def size(self, text: str) -> int:
        """A number, a letter, or what is calculated of them."""
        size = calculated(text, self._number)
        assert size is not None, text
        return size

    def _number(self, name: str) -> int | Sizes:
        if name == "count":
            return len(self._several(PARTS))
        if is_several(name) or name.startswith("["):
            return self._several(name)
        if not name.isupper():
            raise ValueError(f"{name!r} is no size, and no kind of {', '.join(KINDS)}")
        if name not in self.size_of:
            self.size_of[name] = self._fresh(name)
        return self.size_of[name]

    def _fresh(self, letter: str) -> int:
        told = self.entries.get(letter)
        return (
            self.size(told)
            if isinstance(told, str)
            else self.dice.choice(self._range(letter, SIZES))
        )

    def _range(self, name: str, default: Sequence[int]) -> Sequence[int]:
        choices = self.entries.get(name, default)
        assert isinstance(choices, Sequence)
        return choices

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
            first = _walk(self.dice, by, groups)
            if RIM in self.entries:
                self._room = room(self.dice, *first)
                self._windows = _widened(self.dice, first, self._room, self._range(RIM, ()))
            else:
                self._windows = [first]
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
    dice: random.Random, first: tuple[Sizes, ConvWindow], room: Sizes, rims: Sequence[int]
) -> list[tuple[Sizes, ConvWindow]]:
    """Two windows, along each axis this one in one of them, and one with taps around in the other.
    Of one tap any dilation says the same."""
    (kernel, by), axes = first, range(len(first[0]))
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
    windows = []
    for sides in zip(*pairs, strict=True):
        told = [(k, p, d if k > 1 else dice.choice((1, 2, 3))) for k, p, d in sides]
        taps, padding, dilation = (tuple(side[i] for side in told) for i in range(3))
        windows.append((taps, replace(by, padding=padding, dilation=dilation)))
    return windows


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


def room(dice: random.Random, kernel: Sizes, by: ConvWindow) -> Sizes:
    """The size of an input that gives the window at least one result along each axis."""
    reach = (
        d * (k - 1) + 1 - 2 * p for k, p, d in zip(kernel, by.padding, by.dilation, strict=True)
    )
    return tuple(max(1, least) + dice.randint(0, 5) for least in reach)

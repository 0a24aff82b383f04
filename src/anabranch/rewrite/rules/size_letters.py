"""Sizes that letters of shapes stand for: tokens and shapes -> what is bound, or a refusal.

    x: N ... K    f32[2,5,7]        N is 2, ... is (5,), K is 7
    w: K M        f32[6,3]          refused: K is 7 elsewhere
    y: K+M        f32[10]           compared once K and M are known

A letter is one size wherever it stands, and a name of several axes the same sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import prod

from anabranch.ir.graph import Arg
from anabranch.ir.refused import Refused
from anabranch.rewrite.rules.conv_windows import Sizes

Tokens = tuple[str, ...]
BoundSizes = dict[str, int | Sizes]
"""What the letters and the names of several axes stand for."""
WALKED = ("taps", "room", "whole", "wider", "ones", "strides", "paddings")
"""Names of an axis of space each."""
FREE = ("whole", "wider", "strides", "paddings")
"""Those of them that are other sizes wherever they stand."""
OF_SEVERAL = re.compile(r"(sum|prod)\(([\w.]+)(?:\[:(\d+)\])?\)")
"""The sizes calculated of all sizes of one name, or of the first of them."""
SPACE = "space"
"""How many axes of space there are, of all of `WALKED`."""


def unify(shapes: Mapping[str, Tokens], actual: Mapping[str, Sizes]) -> BoundSizes | Refused:
    """What the letters stand for if these are the tensors' shapes; or which shape is no instance of
    its letters."""
    bound: BoundSizes = {}
    later: list[tuple[str, Tokens, Sizes]] = []
    for name, shape in actual.items():
        if why := unify_shape(name, shapes[name], shape, bound, later):
            return why
    return unify_later(later, bound) or bound


def unify_shape(
    name: str,
    tokens: Tokens,
    shape: Sizes,
    bound: BoundSizes,
    later: list[tuple[str, Tokens, Sizes]],
    place: int | None = None,
    at: Arg = None,
) -> Refused | None:
    """Why this is no instance of these tokens; what it binds is added. What cannot be told yet is
    for later. `place`: the token that stands at axis `at`, where that is known."""
    several = _several(tokens)
    lengths = {i: axes_of(tokens[i], bound) for i in several}
    unknown = [i for i, length in lengths.items() if length is None]
    if len(unknown) > 1:
        if place is not None and isinstance(at, int):
            at %= max(1, len(shape))
            return unify_shape(name, tokens[:place], shape[:at], bound, later) or unify_shape(
                name, tokens[place:], shape[at:], bound, later
            )
        if len(shape) < len(tokens) - len(several):
            return Refused(f"{name} has {_axes(shape)}")
        later.append((name, tokens, shape))
        return None
    free = len(shape) - (len(tokens) - len(several)) - sum(n or 0 for n in lengths.values())
    if free < 0 or (free and not unknown):
        return Refused(f"{name} has {_axes(shape)}")
    begin = 0
    for i, token in enumerate(tokens):
        part: int | Sizes
        if i in lengths:
            length = free if (axes := lengths[i]) is None else axes
            part = shape[begin : begin + length]
            begin += length
            if token in WALKED:
                bound[SPACE], bound["ones"] = length, (1,) * length
                if token in FREE:
                    continue
        else:
            part = shape[begin]
            begin += 1
            if not token.isalnum():
                later.append((name, (token,), (part,)))
                continue
            if token.isdigit():
                if part != int(token):
                    return Refused(f"{name} is {shape}, and not of size {token} along an axis")
                continue
        if bound.setdefault(token, part) != part:
            return Refused(f"{name} is {shape}, and {token} is {bound[token]} elsewhere")
    return None


def unify_later(later: Sequence[tuple[str, Tokens, Sizes]], bound: BoundSizes) -> Refused | None:
    """Why one of the shapes left for later is no instance; what they bind is added."""
    for name, tokens, shape in later:
        if len(tokens) == 1 and not is_several(tokens[0]):
            if why := _calculated_otherwise(name, tokens[0], shape[0], bound):
                return why
            continue
        again: list[tuple[str, Tokens, Sizes]] = []
        if why := unify_shape(name, tokens, shape, bound, again):
            return why
        if len(again) == 1 and again[0][1] == tokens:
            continue  # two names of several axes, and nothing says where one of them ends
        if why := unify_later(again, bound):
            return why
    return None


def _calculated_otherwise(name: str, text: str, size: int, bound: BoundSizes) -> Refused | None:
    """Why the size is not what a text says; of a product with one letter that is not known yet the
    letter is bound."""
    wanted = calculated(text, bound.get)
    if wanted is None:
        sizes = {part: calculated(part, bound.get) for part in text.split("*")}
        unknown = [part for part, value in sizes.items() if value is None]
        if len(unknown) == 1 and unknown[0].isalnum():
            bound[unknown[0]] = size // max(1, prod(value or 1 for value in sizes.values()))
            wanted = calculated(text, bound.get)
    if wanted is None or wanted == size:
        return None
    return Refused(f"{name} has {size} where {text} is {wanted}")


def calculated(text: str, size_of: Callable[[str], int | Sizes | None]) -> int | None:
    """The size that a text says, `G*C` or `sum(K)`; None where one of its letters is not known."""
    if text.isalpha():
        size = size_of(text)
        return size if isinstance(size, int) else None
    sign, parts = _terms(text)
    if sign:
        total = 0 if sign == "+" else 1
        for part in parts:
            size = calculated(part, size_of)
            if size is None:
                return None
            total = total + size if sign == "+" else total * size
        return total
    if text.lstrip("-").isdigit():
        return int(text)
    if text.endswith("/2"):
        half = calculated(text[:-2], size_of)
        return None if half is None else half // 2
    if match := OF_SEVERAL.fullmatch(text):
        several, end = size_of(f"[{match[2]}]" if match[1] == "sum" else match[2]), match[3]
        together = sum if match[1] == "sum" else prod
        return (
            together(several[: int(end) if end else None]) if isinstance(several, tuple) else None
        )
    name, _, at = text.partition(".")
    size = size_of(name if at else text)
    if isinstance(size, tuple):
        return size[int(at)] if at else None
    return size


@cache
def _terms(text: str) -> tuple[str, tuple[str, ...]]:
    """What is added up or multiplied, and its sign; of one term no sign."""
    sign = "+" if "+" in text else "*" if "*" in text else ""
    return sign, tuple(text.split(sign)) if sign else (text,)


def axes_of(token: str, bound: Mapping[str, int | Sizes]) -> int | None:
    """How many axes this name stands for; None if nothing says it yet."""
    size = bound.get(SPACE if token in WALKED else token)
    return len(size) if isinstance(size, tuple) else size


def _axes(shape: Sizes) -> str:
    return "one axis: it is a vector" if len(shape) == 1 else f"{len(shape)} axes"


@cache
def _several(tokens: Tokens) -> tuple[int, ...]:
    """Which of them stand for several axes."""
    return tuple(i for i, token in enumerate(tokens) if is_several(token))


def is_further(name: str) -> bool:
    """Whether the name stands for any further axes."""
    return name.endswith("..")


def is_several(token: str) -> bool:
    """Whether the token stands for several axes at once."""
    return is_further(token) or token in WALKED

"""Numbers of Python's that a call changes in an object that the model holds, as windows of a
StaticCache of transformers count their tokens: calls pass them, and get them back.

    cache.length += x.shape[1]; return x * cache.length
    around(x, ("anabranch.held:cache", tensor(5)))
        CountedResult(x * 8, (("cache", (8,)),)), and cache.length is what it was

What the model reads is what `.item()` of that tensor is: a question, at which it is cut. So what it
decides by the number is a way through the model, and what it computes of it goes by the call's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anabranch.errors import CaptureError, InputError
from anabranch.frontend.held_parts import HeldPart
from anabranch.frontend.source import running_instead

COUNTING = (int, float, bool)
"""Types of what may be passed so."""
NumberGroup = tuple[HeldPart, ...]
"""Numbers that are one before a call, and after it: those of all layers, say."""


class CountedResult(NamedTuple):
    """A result of a model, and by the name of each object what was left of its numbers."""

    result: Any
    numbers: tuple[tuple[str, tuple[Any, ...]], ...]


class CountedError(CaptureError):
    """The model changes numbers of Python's in what it holds. `groups`: these, by the mark of the
    object."""

    def __init__(self, what: str, groups: Mapping[str, tuple[NumberGroup, ...]]) -> None:
        super().__init__(
            what,
            "one plan has it as it was in the call that was captured",
            "keep it in a tensor of the object, and write into that; or leave out fullgraph=True, "
            "sizes and dynamic_shapes: then the model is cut, and calls go by the number",
        )
        self.groups = dict(groups)


def grouped(parts: Sequence[HeldPart], after: Sequence[Any]) -> tuple[NumberGroup, ...]:
    """The numbers among these parts that are others `after` a call, by what they were and are."""
    groups: dict[tuple[Any, ...], list[HeldPart]] = {}
    for part, now in zip(parts, after, strict=True):
        if type(part.value) in COUNTING and type(now) is type(part.value) and now != part.value:
            groups.setdefault((type(now), part.key, part.value, now), []).append(part)
    return tuple(map(tuple, groups.values()))


def passed(groups: Sequence[NumberGroup], name: str) -> tuple[Tensor, ...]:
    """The numbers as they are now, each as a tensor. InputError where those of a group differ, or
    one is of another type. `name`: of the object."""
    tensors = []
    for group in groups:
        number = group[0].now()
        for part in group:
            now = part.now()
            if type(now) is not type(part.value):
                raise InputError(
                    f"{name}.{part.path} is {now!r:.80}, compiled for {part.value!r:.80}",
                    "a call passes it, as a number of this type",
                    f"have such a number there, or compile again for this {name}",
                )
            if now != number:
                raise InputError(
                    f"{name}.{part.path} is {now!r:.80}, and {name}.{group[0].path} is "
                    f"{number!r:.80}",
                    "a call passes one number for both: they were equal before the call that was "
                    "compiled, and after it",
                    f"have them equal, or compile again for this {name}",
                )
        tensors.append(torch.tensor(number))
    return tuple(tensors)


@contextmanager
def numbers_within(
    groups: Sequence[NumberGroup], tensors: Sequence[Tensor], name: str
) -> Iterator[None]:
    """Within it the object of this `name` has these numbers."""
    were = [(part, part.now()) for group in groups for part in group]
    try:
        for group, tensor in zip(groups, tensors, strict=True):
            with running_instead(f"{name}.{group[0].path}"):
                number = tensor.item()
            for part in group:
                part.holder[part.key] = number
        yield
    finally:
        for part, was in were:
            part.holder[part.key] = was


def counted(groups: Sequence[NumberGroup]) -> tuple[Any, ...]:
    """What lies at each of their places now."""
    return tuple(part.now() for group in groups for part in group)


def write_numbers(groups: Sequence[NumberGroup], numbers: Sequence[Any]) -> None:
    """Give each of them the number that a call left."""
    parts = [part for group in groups for part in group]
    for part, number in zip(parts, numbers, strict=True):
        part.holder[part.key] = number

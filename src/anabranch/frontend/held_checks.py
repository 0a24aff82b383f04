"""Refusals of arguments that a model cannot hold: it gives them new tensors, or only reads theirs.

cache.keys = torch.cat([cache.keys, k])     refused: each call gives it another tensor
cache.length += 1                           refused of one plan, which would have the length as it
                                            was; where the model may be cut, calls pass it
scale * settings.mask                       refused: a plan would have a copy of the mask
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import nn

from anabranch.errors import CaptureError
from anabranch.frontend.held_arguments import (
    OBJECTS,
    HeldArguments,
    bare,
    held_of,
)
from anabranch.frontend.held_containers import same
from anabranch.frontend.held_numbers import CountedError, NumberGroup, grouped
from anabranch.frontend.held_parts import HeldPart, parts_of, tensors_among
from anabranch.frontend.observe import observe
from anabranch.frontend.structure import MARK
from anabranch.frontend.surroundings import surroundings
from anabranch.ir.graph import Graph

CHANGES = "forward changes a Python value of an argument"


def check_written(model: Any, graph: Graph) -> None:
    """CaptureError where a constant of the graph is a tensor of an argument that the model holds:
    plans have copies of what they only read, which would not follow it."""
    check_not_read(model, [path for constant in graph.constants for path in constant.source])


def check_not_read(model: Any, read: Iterable[str]) -> None:
    """The same of names of tensors that are read alone."""
    held = held_of(model)
    names = () if held is None else tuple(mark.removeprefix(MARK) for mark in held.objects)
    for path in read:
        if path.startswith(tuple(f"{name}." for name in names)):
            raise CaptureError(
                f"the model reads {path} and does not write it",
                "of an argument that is no tensor, only what the model writes is followed; "
                "a plan would have a copy of this",
                "give that tensor as an argument of its own, or register the class of the "
                "argument with torch.utils._pytree.register_pytree_node",
            )


def check_held(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], changed: Sequence[str]
) -> None:
    """CaptureError where a call gives what the model holds other tensors, which is looked at on
    copies, or other Python values; a CountedError where these are numbers alone. `changed`: names
    of what a call changes."""
    held = held_of(model)
    values = [name.removeprefix(OBJECTS) for name in changed if name.startswith(OBJECTS)]
    if held is None or not values:
        return
    looks = _around_a_call(model, held, args, kwargs)
    for mark, (before, after) in looks.items():
        if assigned := _assigned(before, after):
            kind = type(held.objects[mark]).__name__
            raise CaptureError(
                f"forward assigns a new tensor to {mark.removeprefix(MARK)}.{assigned}",
                f"a plan writes into the tensors that the {kind} had when it was compiled",
                "let it have all of them beforehand (a StaticCache of transformers: "
                "early_initialization, or one call and then reset()), and write into those; one "
                "that grows, as a DynamicCache, cannot be held",
            )
    numbers = {mark: _numbers(held.parts[mark], *look) for mark, look in looks.items()}
    counts = {mark: groups for mark, groups in numbers.items() if groups}
    for mark, groups in counts.items():
        if None not in numbers.values():
            raise CountedError(f"{CHANGES}: {mark.removeprefix(MARK)}.{groups[0][0].path}", counts)
    raise CaptureError(
        f"{CHANGES}: {_told(values[0])}",
        "a plan has it as it was in the call that was captured; of what is there before the call, "
        "numbers that stay numbers may change",
        "keep it in a tensor of the object, and write into that",
    )


_Parts = tuple[HeldPart, ...]


def _around_a_call(
    model: nn.Module, held: HeldArguments, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, tuple[_Parts, _Parts]]:
    """By the mark of each object what a copy of it holds before and after a call; {} where there
    are none to be had."""
    apart = {
        id(each.value): each.value.detach().clone()
        for tensors in held.tensors.values()
        for each in tensors
    }
    looks: dict[str, tuple[_Parts, _Parts]] = {}
    with suppress(Exception):
        copies = {mark: copy.deepcopy(value, {**apart}) for mark, value in held.objects.items()}
        like = HeldArguments.of(copies)

        def call(*args: Any, **kwargs: Any) -> None:
            bare(model)(*args, **kwargs)
            for mark, twin in copies.items():
                looks[mark] = like.parts[mark], tuple(parts_of(twin))

        observe(call, *like.restored(args, kwargs), surroundings())
    return looks


def _assigned(before: _Parts, after: _Parts) -> str:
    """The first place that has another tensor after a call; "" if there is none."""
    was = {each.path: each.value for each in tensors_among(before)}
    now = {each.path: each.value for each in tensors_among(after)}
    return next((path for path in now if now[path] is not was.get(path)), "")


def _numbers(parts: _Parts, before: _Parts, after: _Parts) -> tuple[NumberGroup, ...] | None:
    """Of the `parts` of an object, the numbers that a call changes; None where it changes anything
    else of it."""
    if not [part.path for part in parts] == [b.path for b in before] == [a.path for a in after]:
        return None
    groups = grouped(parts, [part.value for part in after])
    counting = {id(part) for group in groups for part in group}
    for part, was, now in zip(parts, before, after, strict=True):
        if id(part) not in counting and (was.size != now.size or not same(was.value, now.value)):
            return None
    return groups


def _told(name: str) -> str:
    """The name of what is held, without the dict that it is found by."""
    return name.removeprefix("['").replace("']", "", 1)

"""Refusals of arguments that a model cannot hold: it gives them new tensors, or only reads theirs.

cache.keys = torch.cat([cache.keys, k])     refused: each call gives it another tensor
cache.length += 1                           refused: a plan would have the length as it was
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
    tensors_within,
)
from anabranch.frontend.observe import observe
from anabranch.frontend.structure import MARK
from anabranch.frontend.surroundings import surroundings
from anabranch.ir.graph import Graph


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
    copies, or other Python values. `changed`: names of what a call changes."""
    held = held_of(model)
    values = [name.removeprefix(OBJECTS) for name in changed if name.startswith(OBJECTS)]
    if held is None or not values:
        return
    assigned = _assigned(model, held, args, kwargs)
    if assigned:
        kind = type(held.objects[MARK + assigned.partition(".")[0]]).__name__
        raise CaptureError(
            f"forward assigns a new tensor to {assigned}",
            f"a plan writes into the tensors that the {kind} had when it was compiled",
            "let it have all of them beforehand (a StaticCache of transformers: "
            "early_initialization, or one call and then reset()), and write into those; one that "
            "grows, as a DynamicCache, cannot be held",
        )
    raise CaptureError(
        f"forward changes a Python value of an argument: {_told(values[0])}",
        "a plan has it as it was in the call that was captured",
        "keep it in a tensor of the object, and write into that",
    )


def _assigned(
    model: nn.Module, held: HeldArguments, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """The first place within copies of what is held that a call gives another tensor; "" if it
    gives none one, or they cannot be copied."""
    apart = {
        id(each.value): each.value.detach().clone()
        for tensors in held.tensors.values()
        for each in tensors
    }
    places = list[str]()

    with suppress(Exception):
        copies = {mark: copy.deepcopy(value, {**apart}) for mark, value in held.objects.items()}
        like = HeldArguments.of(copies)

        def call(*args: Any, **kwargs: Any) -> None:
            bare(model)(*args, **kwargs)
            for mark, tensors in like.tensors.items():
                was = {each.path: each.value for each in tensors}
                now = {each.path: each.value for each in tensors_within(copies[mark])}
                name = mark.removeprefix(MARK)
                places.extend(f"{name}.{p}" for p in now if now[p] is not was.get(p))

        observe(call, *like.restored(args, kwargs), surroundings())
    return next(iter(places), "")


def _told(name: str) -> str:
    """The name of what is held, without the dict that it is found by."""
    return name.removeprefix("['").replace("']", "", 1)

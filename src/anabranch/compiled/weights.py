"""The weights of a compiled model by the names that its model has for them.

A plan has constants, and of some only what was computed of several weights. The model that it was
compiled from has the weights themselves: they are the plan's as long as nobody changed them, or
what it was refitted with. Else the plan is asked for those that lie in its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.compiled.entry import Entry
from anabranch.compiled.sources import sources
from anabranch.compiler.compilation import Compilation
from anabranch.errors import OptionError, WeightsError
from anabranch.frontend.state import tensors_of, unwrapped
from anabranch.ir.key import digest_source, digest_tensors

Stamps = Mapping[str, tuple[int, int | None]]
"""By name where a tensor is, and how often it was written to; None where nobody counts."""


def check_unseen(model: Any, stamps: Stamps) -> None:
    """WeightsError where the model, which a call is to run, has other weights than plans, which
    have those with these stamps."""
    held = dict(tensors_of(unwrapped(model))) if isinstance(model, nn.Module) else {}
    now = stamps_of({name: held[name] for name in stamps if name in held})
    name = next((name for name, stamp in now.items() if stamp != stamps[name]), "")
    if name:
        raise WeightsError(
            f"no plan answers this call, and the model has another {name} than the plans",
            "unseen='eager' runs the model itself, and its answers would be of other weights than "
            "those of all other calls",
            "load the weights that you want into the model, and call refit(model)",
        )


def stamps_of(tensors: Mapping[str, Tensor]) -> Stamps:
    """For each tensor its place and version, by which a later change is noticed."""
    return {name: _stamp(tensor) for name, tensor in tensors.items()}


def _stamp(tensor: Tensor) -> tuple[int, int | None]:
    return tensor.data_ptr(), None if tensor.is_inference() else tensor._version


def weights_of(
    model: Any,
    entries: Sequence[Entry],
    fitted: Stamps | None = None,
    beside: Mapping[str, Tensor] | None = None,
    compiled: Stamps | None = None,
) -> dict[str, Tensor]:
    """Weights by name. OptionError where they are not known, or not those of the plan any more.
    `fitted`: what the plans were refitted with, None if they were not; `compiled`: what the model
    had when it was compiled; `beside`: weights of theirs that are kept because plans lack them."""
    if entries and not entries[-1].plan.tasks.constants and not isinstance(model, nn.Module):
        return {}
    state = _state(model) if isinstance(model, nn.Module) else {}
    compilation = entries[-1].compilation if entries else None
    changed = "they are not those of a model"
    if isinstance(model, nn.Module) and compilation is not None:
        changed = changed_since(state, compilation, fitted)
        if not changed:
            return state
    weights, unknown = sources(entries[-1].plan) if entries else ({}, ())
    weights = {**(beside or {}), **weights}
    unknown = tuple(name for name in unknown if name not in weights)
    recipe = entries[-1].plan.recipe if entries else None
    names = (
        [tensor.name for tensor in recipe.state if tensor.persistent] if recipe is not None else []
    )
    there = [name for name in names if name in weights or name in state]
    had = {**(compiled or {}), **(fitted or {})}
    # What no plan reads is the model's own, unless that has another one by now, or never had it.
    of_model = {name: state[name] for name in there if name not in weights}
    lost = [name for name, tensor in of_model.items() if had.get(name) != _stamp(tensor)]
    if names and not unknown and not lost:
        return {name: (weights if name in weights else of_model)[name] for name in there}
    if compilation is None or not isinstance(model, nn.Module):
        told = f", and of {unknown[0]} it has only what was computed of it" if unknown else ""
        raise OptionError(
            "the weights of this compiled model are not known by name",
            f"it was loaded from a file, compiled from a function, or copied from such a one{told}",
            "ask the model that it was compiled from, or give it all weights with load_state_dict, "
            "which keeps them",
        )
    if fitted is not None and (unknown or lost):
        told = f"of {unknown[0]} it has only what was computed of it" if unknown else ""
        raise OptionError(
            f"the compiled model has other weights than the model it was compiled from: {changed}",
            f"it was given them by refit, and {told or f'has no {lost[0]}, which no plan reads'}",
            "give it them with load_state_dict, which keeps them, or load them into the model, "
            "too, and call refit(model)",
        )
    raise OptionError(
        f"the weights of the model were changed after compiling: {changed}",
        "the plan has those it was given last, and not all of them by themselves",
        "read the model's own state_dict(), or give the plan the new weights with "
        "refit(model) or load_state_dict(model.state_dict())",
    )


def expected(entries: Sequence[Entry]) -> dict[str, Tensor]:
    """Tensors without data for the weights that a state dict of the model has; empty where nobody
    knows of any."""
    recipe = entries[-1].plan.recipe if entries else None
    state = recipe.state if recipe is not None else ()
    return {
        tensor.name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for tensor in state
        if tensor.persistent
    }


def changed_since(
    state: Mapping[str, Tensor], compilation: Compilation, fitted: Stamps | None
) -> str:
    """The name of a weight that is another one than the plan has; "" if there is none."""
    if fitted is not None:
        there = {name: _stamp(tensor) for name, tensor in state.items() if name in fitted}
        return next((name for name, stamp in there.items() if stamp != fitted[name]), "")
    compiled = {constant.name: constant.digest for constant in compilation.captured.graph.constants}
    names = [(name, source) for name, source in compilation.captured.sources if source in state]
    digests = digest_tensors([state[source] for _, source in names])
    for (name, source), digest in zip(names, digests, strict=True):
        named = digest_source(digest, source)
        if compiled.get(name, named) != named:
            return source
    return ""


def check_alike(entries: Sequence[Entry], compilation: Compilation) -> None:
    """OptionError where a plan is made of other weights than those before it have."""
    recipe = entries[0].plan.recipe if entries else None
    if recipe is None:
        return
    before = {leaf.source: leaf.digest for leaf in recipe.sources if leaf.source}
    for constant in compilation.captured.graph.constants:
        if before.get(constant.source, constant.digest) != constant.digest:
            raise other_weights(constant.source[0])


def other_weights(name: str) -> OptionError:
    """The error where plans of one model would hold different values of the weight `name`."""
    return OptionError(
        f"the model has other weights than the plans that it was compiled to: {name}",
        "plans of one compiled model have the same weights for all sizes, and these were changed "
        "between two of them",
        "call refit(model) first, then add(...)",
    )


def _state(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor
        for name, tensor in unwrapped(model).state_dict().items()
        if isinstance(tensor, Tensor)
    }

"""What a saved training step says beside its plans: what it was compiled with <-> plain data, from
anybody.

{"ends": true, "accumulate": 1, "keep_grad": false, "calls": 20,
 "alike": [["optimizer.0.weight.step", "optimizer.0.bias.step"]],
 "settings": [[["betas", "(0.9, 0.999)"], ["weight_decay", "0.01"]]], "optimizer": "AdamW",
 "scaling": [["growth_factor", 2.0], ["backoff_factor", 0.5], ["growth_interval", 2000.0]]}

`ends`: whether a call of this plan ends with an update; `calls`: how many were made; `alike`: names
of tensors of which the plan reads one, for they are equal; `settings`: of each group of the
optimizer what the plan has as it was, as Python writes it; `optimizer`: its class; `scaling`: how
the scaler's scale changes. Older files say neither of the last two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from anabranch.cache.codec import values
from anabranch.compiled.sources import sources
from anabranch.errors import ArtifactError, InputError, WeightsError
from anabranch.frontend.training import Held
from anabranch.frontend.varying import MAY_VARY
from anabranch.ir.plan import Plan
from anabranch.ir.types import type_of
from anabranch.targets.places import ALIGNED

KEY = "training"
"""Under which name facts of a saved plan have it."""
MOST_CALLS = 1 << 40
LONGEST_WORD = 1000
"""Characters of a name or a setting that an error may show."""

GroupSettings = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class SavedStep:
    """One plan of a training step, as above."""

    ends: bool
    accumulate: int
    keep_grad: bool
    calls: int
    alike: tuple[tuple[str, ...], ...]
    settings: GroupSettings
    optimizer: str = ""
    scaling: tuple[tuple[str, float], ...] = ()


CODEC = values(SavedStep, strict=True)


def settings_of(groups: Sequence[Mapping[str, Any]]) -> GroupSettings:
    """The settings that plans have of each group, as Python writes it, in one line."""
    return tuple(
        tuple(sorted((key, " ".join(repr(value).split())) for key, value in group.items()))
        for group in groups
    )


def written(saved: SavedStep) -> Any:
    """As JSON has it."""
    return json.loads(CODEC.write(saved, None))


def read_back(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> SavedStep:
    """What `written` wrote; ArtifactError where the file holds no training step."""
    if KEY not in facts:
        raise ArtifactError(
            f"{path} holds no training step",
            "it is a compiled model",
            "load it with anabranch.load",
        )
    saved: SavedStep | None
    try:
        saved = CODEC.read(json.dumps(facts[KEY]).encode(), None)
    except ValueError:
        saved = None
    if saved is None or not _makes_sense(saved):
        raise ArtifactError(
            f"{path} is damaged",
            "what it says of its training step means nothing",
            "save the step again",
        )
    return saved


def _makes_sense(saved: SavedStep) -> bool:
    """Whether its numbers are some that a step may have, and its words may be shown."""
    words = [word for group in saved.settings for pair in group for word in pair]
    words += [name for names in saved.alike for name in names]
    words += [saved.optimizer, *(name for name, _ in saved.scaling)]
    shown = all(word.isprintable() and len(word) <= LONGEST_WORD for word in words)
    return shown and saved.accumulate >= 1 and 0 <= saved.calls < MOST_CALLS


def check_no_step(path: str | os.PathLike[str], facts: Mapping[str, Any]) -> None:
    """ArtifactError for a plan that is a training step's."""
    if KEY in facts:
        raise ArtifactError(
            f"{path} holds a training step",
            "it reads and writes the tensors of a model and an optimizer, which load is not given",
            "load it with anabranch.load_step(path, model, optimizer)",
        )


def without_values(plan: Plan) -> Plan:
    """The plan without what its states are."""
    states = tuple(replace(state, value=None) for state in plan.tasks.states)
    return replace(plan, tasks=replace(plan.tasks, states=states))


def with_shared(plans: Sequence[Plan]) -> list[Plan]:
    """The plans with one tensor for each constant that several have of one content: plans that end
    with an update and those that do not have each their own."""
    first: dict[tuple[str, str], Tensor] = {}
    shared = []
    for plan in plans:
        constants = []
        for constant in plan.tasks.constants:
            value = constant.value
            if value is not None:
                earlier = first.setdefault((constant.digest, constant.type.text), value)
                value = earlier if torch.equal(earlier, value) else value
            constants.append(replace(constant, value=value))
        shared.append(replace(plan, tasks=replace(plan.tasks, constants=tuple(constants))))
    return shared


def varying_in(saved: SavedStep, groups: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the settings that the plan reads in each call: it was not saved what they are."""
    names = {name for may in MAY_VARY.values() for name in may}
    noted = {key for group in saved.settings for key, _ in group}
    has = [name for group in groups for name in group if name in names and name not in noted]
    return tuple(dict.fromkeys(has))


def class_of(optimizer: Optimizer) -> str:
    """As saved steps name the class of an optimizer."""
    return type(optimizer).__qualname__


def check_class(saved: SavedStep, optimizer: Optimizer) -> None:
    """InputError where the optimizer is of another class than the plan updates as."""
    now = class_of(optimizer)
    if saved.optimizer and saved.optimizer != now:
        raise InputError(
            f"the optimizer is {now}, and the step was compiled for {saved.optimizer}",
            "a plan updates the weights as the optimizer did that it was compiled with",
            f"give load_step the optimizer {saved.optimizer}, or compile the step again",
        )


def check_settings(saved: SavedStep, now: GroupSettings) -> None:
    """InputError where the optimizer has other settings than the plan."""
    if len(saved.settings) != len(now):
        raise InputError(
            f"the optimizer has {len(now)} groups of parameters",
            f"the saved step was compiled for {len(saved.settings)}",
            "make the optimizer as it was, or compile the step again",
        )
    for number, (was, current) in enumerate(zip(saved.settings, now, strict=True)):
        mine, theirs = dict(current), dict(was)
        for key in sorted({*mine, *theirs}):
            if mine.get(key) != theirs.get(key):
                raise InputError(
                    f"{key} of group {number} was {theirs.get(key)} when the step was compiled, "
                    f"and is {mine.get(key)}",
                    "a plan reads anew the settings alone that it was compiled to read",
                    f"make the optimizer with {key}={theirs.get(key)}, or compile the step again",
                )


def check_loss(read: Collection[str], held: Held) -> None:
    """WeightsError where the plan reads tensors of a loss that is not given. `read`: names."""
    lost = sorted(name for name in read if name.startswith("loss.") and name not in held.names)
    if lost:
        raise WeightsError(
            f"the step reads {lost[0]}, and no loss that has it is given",
            "tensors of a loss, and of modules that it refers to, are none of the model's",
            "give load_step the loss that the step was compiled with, as loss_fn",
        )


def state_places(plan: Plan, held: Held, device: torch.device) -> dict[str, Tensor]:
    """By the names that the step has for them the tensors that the plan's states are. WeightsError
    where model and optimizer have none, or another one, of a name."""
    mine = dict(zip(held.names, held.tensors, strict=True))
    types = {value.name: value.type for value in plan.tasks.inputs}
    places = {}
    for state in plan.tasks.states:
        tensor, type = mine.get(state.path), types[state.name]
        told = "nothing" if tensor is None else f"{type_of(tensor).text} on {tensor.device}"
        if tensor is not None and tensor.data_ptr() % ALIGNED:
            told += " at an odd address"
        elif tensor is not None and type_of(tensor) == type and tensor.device == device:
            places[state.path] = tensor.detach()
            continue
        raise WeightsError(
            f"{state.path} is {told}",
            f"the saved step reads and writes {type.text} on {device} there",
            "make model, optimizer and scaler as they were when the step was saved",
        )
    return places


def write_read_only(plans: Sequence[Plan], held: Held) -> None:
    """Give the tensors that the step only reads (frozen weights, a teacher's) the values that the
    plans have of them. What a plan has only in part stays as it is."""
    mine = dict(zip(held.names, held.tensors, strict=True))
    for plan in plans:
        for name, value in sources(plan)[0].items():
            tensor = mine.get(name)
            if tensor is None or tensor.shape != value.shape:
                continue
            if not torch.equal(tensor.detach(), value.to(tensor.device)):
                tensor.copy_(value)


def alike_in(saved: SavedStep, held: Held) -> Held:
    """The same tensors, of which those are alike that the saved step takes for one."""
    place = {name: i for i, name in enumerate(held.names)}
    groups = (tuple(place[name] for name in names if name in place) for names in saved.alike)
    return replace(held, alike=tuple(group for group in groups if len(group) > 1))

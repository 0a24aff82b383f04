"""A drawn model -> a training step: what is trainable, the loss, the optimizer, and how it runs.

    self.w0 = nn.Parameter(...)    trained, frozen, or the same tensor as an earlier one like it
    loss                           of all results: squares, cross entropy, or a power
    optimizer                      with one group of parameters, or two
    form                           clip_norm, accumulate, keep_grad; autocast

Each choice is drawn of the seed and of what it is about, so that a smaller model has those that the
larger one had.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

FROZEN, TIED, UNUSED, SCALED = 0.12, 0.25, 0.2, 0.4
CLIPPED, ACCUMULATED, KEPT_CHANCE, AUTOCAST, GROUPS, EXTRAS = 0.25, 0.2, 0.85, 0.2, 0.25, 0.25
CLIP = 0.5
MOST_CLASSES = 32

OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "decay": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
}
SIGNED = ("adam", "amsgrad", "adamw", "rmsprop")
"""Those whose step goes by the sign of a gradient, however small: theirs are always kept."""


@dataclass(frozen=True)
class StepForm:
    """How the step runs: the arguments of `compile_step`, and the optimizer's name."""

    optimizer: str
    clip_norm: float | None
    accumulate: int
    keep_grad: bool
    groups: int

    @staticmethod
    def draw(seed: int) -> StepForm:
        """The form of this seed."""
        dice = random.Random(f"form {seed}")
        name = dice.choice(list(OPTIMIZERS))
        clip, twice = dice.random() < CLIPPED, dice.random() < ACCUMULATED
        keep = dice.random() < KEPT_CHANCE or name in SIGNED
        groups = 1 + (dice.random() < GROUPS)
        return StepForm(name, CLIP if clip else None, 1 + twice, keep, groups)

    def optimizer_of(self, model: nn.Module) -> Optimizer:
        """The optimizer of the model's parameters, frozen ones among them."""
        kind, settings = OPTIMIZERS[self.optimizer]
        every = list(model.parameters())
        parts = [every[i :: self.groups] for i in range(self.groups)]
        rates = [settings["lr"] / (1 + i) for i in range(self.groups)]
        groups = [
            {"params": part, "lr": rate} for part, rate in zip(parts, rates, strict=True) if part
        ]
        optimizer: Optimizer = kind(groups, **settings)
        return optimizer


@dataclass(frozen=True)
class Loss:
    """Called with the model and its batch, which ends with a target for each result that is read.
    `sorts`: for each of these results its number among all, and how it becomes a number."""

    sorts: tuple[tuple[int, str], ...]
    autocast: bool
    extras: bool

    @staticmethod
    def draw(seed: int, model: nn.Module, inputs: Sequence[Tensor]) -> Loss:
        """A loss of what the model returns."""
        dice = random.Random(f"loss {seed}")
        autocast, extras = dice.random() < AUTOCAST, dice.random() < EXTRAS
        sort = dice.choice(("squares", "squares", "cross entropy", "power"))
        with torch.no_grad():
            results = _results(model(*inputs))
        sorts = [
            (i, _sort(sort, value))
            for i, value in enumerate(results)
            if value.is_floating_point() and value.numel()
        ]
        return Loss(tuple(sorts), autocast, extras)

    def targets(self, seed: int, model: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What the results of a call of these shapes are compared with."""
        dice = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            results = _results(model(*inputs))
        targets = list[Tensor]()
        for i, sort in self.sorts:
            shape = results[i].shape
            if sort == "cross entropy":
                targets.append(torch.randint(shape[-1], shape[:-1], generator=dice))
            elif sort == "squares":
                targets.append(torch.randn(shape, generator=dice))
        return tuple(targets)

    def __call__(self, model: nn.Module, *batch: Tensor) -> Any:
        """The loss, or the loss and all results."""
        count = sum(sort != "power" for _, sort in self.sorts)
        inputs, targets = batch[: len(batch) - count], iter(batch[len(batch) - count :])
        with torch.autocast(batch[0].device.type, torch.bfloat16, enabled=self.autocast):
            returned = model(*inputs)
        results = _results(returned)
        parts = [_part(sort, results[i], targets) for i, sort in self.sorts]
        loss = torch.stack(parts).mean()
        return (loss, returned) if self.extras else loss


class Scaled(nn.Module):
    """A model whose inputs are scaled by numbers that are trained."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.scale = nn.Parameter(torch.tensor([1.25, 0.75]))

    def forward(self, *inputs: Tensor) -> Any:
        """What the model makes of them."""
        scaled = (
            x * self.scale[i % 2] if x.is_floating_point() else x for i, x in enumerate(inputs)
        )
        return self.model(*scaled)


def trainable(model: nn.Module, seed: int, scaled: bool) -> nn.Module:
    """The model with its floating constants trained, frozen or shared, and without dropout, which
    draws anew in each call. `scaled`: its inputs are scaled, as some drawn models' are anyway."""
    shapes: dict[tuple[Any, ...], nn.Parameter] = {}
    for path, part in list(model.named_modules()):
        for name, value in list(part._parameters.items()):
            if value is None:
                continue
            dice = random.Random(f"parameter {seed} {path}.{name}")
            value.requires_grad_(value.is_floating_point() and dice.random() >= FROZEN)
            key = tuple(value.shape), value.dtype, value.requires_grad
            first = shapes.setdefault(key, value)
            if first is not value and dice.random() < TIED:
                setattr(part, name, first)
    dice = random.Random(f"model {seed}")
    if dice.random() < SCALED or scaled:
        like = next((p for p in model.parameters() if p.is_floating_point()), torch.ones(()))
        model = Scaled(model).to(like)
    if dice.random() < UNUSED:
        model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    for part in model.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0
        if isinstance(getattr(part, "dropout", None), float):
            part.dropout = 0.0  # type: ignore[assignment]
    return model


def twin(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy, of this dtype."""
    other = copy.deepcopy(model)
    return other if dtype is None else other.to(dtype)


def _results(returned: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(returned) if isinstance(leaf, Tensor)]


def _sort(sort: str, value: Tensor) -> str:
    classes = value.shape[-1] if value.dim() > 1 else 0
    if sort == "cross entropy" and not 2 <= classes <= MOST_CLASSES:
        return "squares"
    return sort


def _part(sort: str, value: Tensor, targets: Any) -> Tensor:
    value = value.double() if value.dtype == torch.float64 else value.float()
    if sort == "cross entropy":
        return F.cross_entropy(value.reshape(-1, value.shape[-1]), next(targets).reshape(-1))
    if sort == "squares":
        return F.mse_loss(value, next(targets).to(value.dtype))
    return value.abs().clamp(max=8).pow(3).sum() / value.numel()

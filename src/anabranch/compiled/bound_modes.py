"""The modes of modules, training or evaluation, are those that a training step was compiled in.

    modes = BoundModes.of(model, loss_fn)
    model.eval()
    modes.check()        InputError: the module 1 is in evaluation mode, and was in training mode

Only modules count whose code reads `training`, as dropout and batch norm do: of others both modes
are one.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from anabranch.errors import InputError

MODE = "training"
"""What modules call theirs."""


@dataclass(frozen=True, slots=True)
class BoundModes:
    """Modules with their names, and whether each was in training mode."""

    parts: tuple[tuple[str, nn.Module, bool], ...]

    @staticmethod
    def of(*called: Any) -> BoundModes:
        """Those of the modules among what a step calls; of all of them if a function among it reads
        modes."""
        asked = any(_reads_mode(function) for function in called)
        modules = {id(each): each for each in called if isinstance(each, nn.Module)}
        parts = (
            (f"the module {path}" if path else "the model", part, part.training)
            for module in modules.values()
            for path, part in module.named_modules()
            if asked or any(map(_reads_mode, _methods(part)))
        )
        return BoundModes(tuple(parts))

    def check(self) -> None:
        """InputError where a module is in the other mode now."""
        for name, part, trains in self.parts:
            if part.training is not trains:
                now, then = (
                    ("training", "evaluation") if part.training else ("evaluation", "training")
                )
                raise InputError(
                    f"{name} is in {now} mode, and was in {then} mode when the step was compiled",
                    "its code asks for the mode, and a plan computes what it does in one",
                    f"call {'train()' if trains else 'eval()'} before the step, or compile a step "
                    "of the other mode",
                )


def _methods(part: nn.Module) -> Iterator[Any]:
    """All functions of its classes, but for those of every module."""
    for kind in type(part).__mro__:
        if kind is not nn.Module:
            yield from vars(kind).values()


def _reads_mode(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and _says_mode(code)


def _says_mode(code: types.CodeType) -> bool:
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return MODE in code.co_names or any(map(_says_mode, inner))

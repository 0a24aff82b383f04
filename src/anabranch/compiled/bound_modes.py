"""The modules of a training step are those that it was compiled of, and in the modes, training or
evaluation, that they were in.

    modes = BoundModes.of(model, loss_fn)
    model.eval()
    modes.check()        InputError: the module 1 is in evaluation mode, and was in training mode

    model[1] = nn.GELU()
    modes.check()        InputError: the module 1 is another one than when the step was compiled

    model.append(nn.Linear(5, 5))
    modes.check()        InputError: the module 4 was added since the step was compiled

    model[0].register_forward_hook(print)
    modes.check()        InputError: a hook was added or removed since the step was compiled

Only modes of modules count whose code reads `training`, as dropout and batch norm do: of others
both modes are one.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from anabranch.compiled.registries import Registries
from anabranch.errors import InputError

MODE = "training"
"""What modules call theirs."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class BoundModes:
    """Modules with their names, and whether each was in training mode; where modules have their
    parts; where they have hooks, and how many there were."""

    parts: tuple[tuple[str, nn.Module, bool], ...]
    places: Registries
    hooks: tuple[Mapping[int, Any], ...]
    hooked: int

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
        places = Registries.of(
            (path, part._modules)
            for module in modules.values()
            for path, part in module.named_modules()
        )
        inner_most = (part for module in modules.values() for part in module.modules())
        hooks = tuple(getattr(part, kind) for part in inner_most for kind in HOOKS)
        return BoundModes(tuple(parts), places, hooks, sum(map(len, hooks)))

    def check(self) -> None:
        """InputError where a module is in the other mode now, or is another one, or where hooks
        have come or gone."""
        if any(self.hooks) if not self.hooked else sum(map(len, self.hooks)) != self.hooked:
            raise InputError(
                "a hook of a module was added or removed since the step was compiled",
                "a plan computes what modules did with the hooks that they had, and calls none",
                "remove it again (hook.remove()), or compile the step again",
            )
        if self.places.changed():
            self._refuse_changes()
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

    def _refuse_changes(self) -> None:
        for name, was, now in self.places.changes():
            change = "is another one than when" if was is not None else "was added since"
            raise InputError(
                f"the module {name} {change if now is not None else 'was removed since'} the step "
                "was compiled",
                "a plan computes what the modules did that it was compiled of",
                "have the modules as they were, or compile the step again, with an optimizer of "
                "their parameters",
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

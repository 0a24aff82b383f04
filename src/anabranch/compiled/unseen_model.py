"""The model that a call runs where no plan answers it is the one that was compiled: otherwise two
models would answer calls, each some.

    then = ModelThen.of(model)
    model.train()
    then.check(model, (x,), {})       InputError: the model is in training mode
    model[0].eps = 0.1
    then.check(model, (x,), {})       InputError: 0.eps is another one

What forward itself changes, as a counter, is no change.
Registered weights are looked at elsewhere (`weights.check_unseen`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anabranch.compiled.weights import Stamps, stamps_of
from anabranch.errors import InputError
from anabranch.frontend.attributes import each_attribute
from anabranch.frontend.observe import observe
from anabranch.frontend.state import unwrapped
from anabranch.frontend.surroundings import surroundings


@dataclass(frozen=True, slots=True)
class ModelThen:
    """By name the attributes, by path whether each module was in training mode, and by name the
    tensors that are plain attributes; `counted`: names of what forward itself changes."""

    attributes: Mapping[str, str]
    trained: Mapping[str, bool]
    tensors: Stamps
    counted: frozenset[str] = frozenset()

    @staticmethod
    def of(model: Any, counted: Collection[str] = ()) -> ModelThen:
        """As it is now; nothing is known of what is no module."""
        if not isinstance(model, nn.Module):
            return ModelThen({}, {}, {})
        modules = dict(unwrapped(model).named_modules())
        held = {
            f"{path}.{name}".removeprefix("."): value
            for path, module in modules.items()
            for name, value in vars(module).items()
            if isinstance(value, Tensor)
        }
        trained = {path: module.training for path, module in modules.items()}
        return ModelThen(each_attribute(model), trained, stamps_of(held), frozenset(counted))

    def check(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModelThen:
        """As it is now. InputError where it is another one. Where something is otherwise, a call
        with these arguments shows what of it forward itself changes."""
        now = ModelThen.of(model, self.counted)
        what = self._otherwise(now)
        if any(name for name, _ in what):
            changed = observe(model, args, kwargs, surroundings()).changed
            now = ModelThen.of(model, {*self.counted, *changed})
            what = [each for each in what if each[0] not in now.counted]
        if what:
            raise InputError(
                f"no plan answers this call, and {what[0][1]}",
                "such a call runs the model itself, and its answer would be of another model than "
                "those of all other calls",
                "have the model as it was when it was compiled, or compile it again",
            )
        return now

    def _otherwise(self, now: ModelThen) -> list[tuple[str, str]]:
        """The names of what is otherwise, each with a sentence."""
        told = list[tuple[str, str]]()
        for path, trains in now.trained.items():
            if trains != self.trained.get(path, trains):
                mode = "training" if trains else "evaluation"
                told.append(("", f"{_called(path)} is in {mode} mode since it was compiled"))
        for name in _unlike(self.attributes, now.attributes) - self.counted:
            if name in now.trained or name in self.trained:
                told.append(("", f"{_called(name)} is another one, or has other hooks"))
            else:
                told.append((name, f"the model's {name} is another one than when it was compiled"))
        for name in _unlike(self.tensors, now.tensors) - self.counted:
            told.append((name, f"the model's {name} was written to since it was compiled"))
        return sorted(told)


def _unlike(before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    return {name for name in {**before, **now} if before.get(name) != now.get(name)}


def _called(path: str) -> str:
    return f"the module {path}" if path else "the model"

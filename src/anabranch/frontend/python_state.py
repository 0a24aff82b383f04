"""Looks at what Python holds of a model, and at what a call of it changes there.

    state = PythonState.of(model)
    model(x)
    state.changes()     ["layers.0.calls", "history", "module CALLS"]: attributes, containers in
    state.restore()     them, globals, class attributes and closures; all as they were

What is looked at: reached.py. How each sort of thing is read and put back: held_containers.py,
held_values.py, held_tensors.py. Tensors that are written to are the recorder's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anabranch.frontend import held_tensors
from anabranch.frontend.held_containers import (
    ABSENT,
    as_it_was,
    copied,
    differences,
    exchange,
    put_back,
    same,
    untouched,
)
from anabranch.frontend.held_values import ValueKind
from anabranch.frontend.reachable_state import (
    DICTS,
    UNTOLD,
    USER_DICTS,
    ReachedState,
    function_of,
    is_dunder,
    items_of,
    unheard,
)

LOST = " (cannot be put back)"
"""How the name of what nobody can put back ends."""


class Holder:
    """The things called in the place of models, and functions, which it `holds`."""

    @property
    def holds(self) -> tuple[Any, ...]:
        """Those that are called."""
        raise NotImplementedError

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The parameters and buffers of these, by name."""
        return {}


@dataclass(frozen=True, slots=True)
class PythonState:
    """All that may change, with its name and what it was."""

    was: ReachedState

    @staticmethod
    def of(model: Any) -> PythonState:
        """The contents of the containers, globals and class attributes that the model reaches
        now."""
        return PythonState(ReachedState.by(model.holds if isinstance(model, Holder) else (model,)))

    def changes(self) -> list[str]:
        """Names of what is not as it was."""
        changed: list[str] = []
        with unheard():
            for live, path, was in self.was.held.values():
                if path is not None and not untouched(live, was):
                    changed += differences(live, path, was, UNTOLD)
            for number, live, path, was in self._other_dicts():
                if path is not None:
                    inside = differences(live, path, was)
                    changed += inside if number < len(USER_DICTS) else [f"{path}{DICTS[number]}"]
            for tensor, path, name, was in self.was.tensors.values():
                if not held_tensors.untouched(tensor, was):
                    changed += held_tensors.differences(tensor, f"{path}{name}", was)
            for live, path, kind, was in self.was.values.values():
                if not kind.same(kind.read(live), was):
                    changed.append(path if self._can_be_put_back(live, kind, was) else path + LOST)
        for owner, name, told, value in self.was.bound:
            changed += [] if same(_read(owner, name), value) else [told]
        changed += [f"{kind.__name__}.{name}" for kind, name in self._added()]
        return [name for name in dict.fromkeys(changed) if name not in self.was.derived]

    def restore(self) -> None:
        """Put back into each container and attribute what it held."""
        with unheard():
            for live, _, was in self.was.held.values():
                if not untouched(live, was):
                    put_back(live, was)
            for _, live, _, was in self._other_dicts():
                put_back(live, was)
            for tensor, _, _, was in self.was.tensors.values():
                if not held_tensors.untouched(tensor, was):
                    held_tensors.put_back(tensor, was)
        for owner, name, _, was in self.was.bound:
            if _read(owner, name) is not was:
                _write(owner, name, was)
        for kind, name in self._added():
            delattr(kind, name)
        with unheard():
            self._restore_values()

    def _other_dicts(self) -> Iterator[tuple[int, Any, str | None, Any]]:
        """Those of modules that are not as they were, with their number among `DICTS`."""
        for lives, path, held in self.was.dicts:
            for number, live in enumerate(lives):
                if (live or held[number]) and not as_it_was(live, held[number]):
                    yield number, live, path, held[number]

    def _restore_values(self) -> None:
        for live, path, kind, was in list(self.was.values.values()):
            if kind.same(kind.read(live), was) or not kind.kept(was):
                continue
            now = kind.put_back(live, was)
            if now is not live:  # what lies in containers is as it was: there it is exchanged
                self._exchange(live, now)
                self.was.values[id(live)] = now, path, kind, was

    def _can_be_put_back(self, live: Any, kind: ValueKind, was: Any) -> bool:
        """Whether it can be, or another one can stand in its place wherever it is held."""
        if not kind.kept(was):
            return False
        return not kind.replaced or any(value is live for value in self._reachable())

    def _reachable(self) -> Iterator[Any]:
        """What may be exchanged for another thing."""
        for _, _, was in self.was.held.values():
            yield from was.values() if isinstance(was, dict) else items_of(was)
        yield from (value for _, _, _, value in self.was.bound)

    def _exchange(self, old: Any, other: Any) -> None:
        for key, (live, path, _) in list(self.was.held.items()):
            if exchange(live, old, other):
                self.was.held[key] = live, path, copied(live)
        for number, (owner, name, told, value) in enumerate(self.was.bound):
            if value is old:
                _write(owner, name, other)
                self.was.bound[number] = owner, name, told, other

    def _added(self) -> list[tuple[type, str]]:
        """What classes have that they had not; functions and what Python itself notes are none."""
        return [
            (kind, name)
            for kind, names in self.was.classes
            for name in vars(kind).keys() - names
            if not is_dunder(name) and function_of(vars(kind)[name]) is None
        ]


def _read(owner: Any, name: str) -> Any:
    return owner.get(name, ABSENT) if isinstance(owner, dict) else vars(owner).get(name, ABSENT)


def _write(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)

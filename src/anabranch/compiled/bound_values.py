"""Python numbers that a training step reads beside its batch are those that it was compiled with.

    loss = lambda model, x, t: config.beta * cross_entropy(model(x), t)
    config.beta = 0.5        at the next call a warning: config.beta was 1.0, and is 0.5

A plan has such a number as a constant. Looked at are attributes of modules and of objects, items of
dicts and lists, closed-over and global names, as far as the code of the loss and of the modules
says them; what forward itself counts is none of them. It is a warning, for nobody knows whether the
code computes with the number or shows it.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from anabranch.frontend.held_containers import ABSENT
from anabranch.frontend.source import is_code_of_users

NUMBERS_AND_TEXTS = (int, float, bool, str)
MOST_ITEMS = 256
"""Of a container: a larger one is a table of data."""
NOT_CALLED = frozenset(("__init__", "extra_repr", "__repr__", "__setstate__"))
"""Methods whose names say nothing of a call."""
OF_MODULES = frozenset(vars(nn.Module()))
LOOKED_AT_ELSEWHERE = (nn.Module, Tensor, type, types.ModuleType)
"""Values that are looked at elsewhere, or not at all."""

ValuePlace = tuple[str, Callable[[], Any], Any]
"""A name, what reads its value, and the value that it had."""


@dataclass(slots=True)
class BoundValues:
    """The places of a step; `told`: names of those that were found changed."""

    places: list[ValuePlace]
    told: set[str] = field(default_factory=set)

    @staticmethod
    def of(model: nn.Module, loss_fn: Any) -> BoundValues:
        """Those of a model and a loss."""
        search = _Looking()
        called = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
        search.function(called)
        said = _names(called)
        for root in (model, loss_fn):
            for path, part in root.named_modules() if isinstance(root, nn.Module) else ():
                search.module(path or type(part).__name__, part, said)
        return BoundValues(search.places)

    def changed(self) -> list[str]:
        """Sentences about values that are others now, each name once."""
        said = []
        for name, read, was in self.places:
            now = read()
            if now is was or name in self.told or (type(now) is type(was) and now == was):
                continue
            self.told.add(name)
            shown = (
                "gone"
                if now is ABSENT
                else repr(now)
                if isinstance(now, NUMBERS_AND_TEXTS)
                else "another"
            )
            said.append(f"{name} was {was!r} when the step was compiled, and is {shown}")
        return said


class _Looking:
    """Finds places from functions and modules."""

    def __init__(self) -> None:
        self.places: list[ValuePlace] = []
        self._seen = set[int]()

    def function(self, called: Any) -> None:
        """All that the code of a function, and of the user's functions that it names, says."""
        owner, called = getattr(called, "__self__", None), getattr(called, "__func__", called)
        code = getattr(called, "__code__", None)
        if code is None or id(code) in self._seen or not is_code_of_users(called):
            return
        self._seen.add(id(code))
        names = _names(called)
        if owner is not None:
            self._value(type(owner).__name__, partial(_itself, owner), names)
        for name, cell in zip(code.co_freevars, called.__closure__ or (), strict=True):
            self._value(name, partial(_content, cell), names)
        for name in sorted(names & called.__globals__.keys()):
            self._value(name, partial(called.__globals__.get, name, ABSENT), names)

    def module(self, path: str, part: nn.Module, said: frozenset[str]) -> None:
        """Attributes that the code of its classes, or of the loss, says."""
        names, counted = set(said), set[str]()
        for kind in type(part).__mro__:
            for method, function in vars(kind).items() if kind is not nn.Module else ():
                if method not in NOT_CALLED:
                    names |= _names(function)
                    self.function(function)
                if method == "forward":
                    counted |= _assigned(function)
        left = names - counted - OF_MODULES
        self._attributes(path, vars(part), left)

    def _attributes(self, path: str, held: Mapping[str, Any], names: Any) -> None:
        for name, value in held.items():
            if name in names and isinstance(value, NUMBERS_AND_TEXTS):
                self.places.append((f"{path}.{name}", partial(held.get, name, ABSENT), value))

    def _value(self, name: str, read: Callable[[], Any], names: frozenset[str]) -> None:
        """A value under a name: a number, or what holds some."""
        value = read()
        if isinstance(value, NUMBERS_AND_TEXTS):
            self.places.append((name, read, value))
        elif isinstance(value, dict | list) and len(value) <= MOST_ITEMS:
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(item, NUMBERS_AND_TEXTS):
                    self.places.append((f"{name}[{key!r}]", partial(_item, value, key), item))
        elif isinstance(value, types.FunctionType | types.MethodType):
            self.function(value)
        elif not isinstance(value, LOOKED_AT_ELSEWHERE) and hasattr(value, "__dict__"):
            self._attributes(name, vars(value), names)


def _itself(value: Any) -> Any:
    return value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return ABSENT


def _item(container: Any, key: Any) -> Any:
    try:
        return container[key]
    except (KeyError, IndexError):
        return ABSENT


def _codes(function: Any) -> Iterator[types.CodeType]:
    """The code of a function, and of those within it."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    left = [code] if isinstance(code, types.CodeType) else []
    while left:
        code = left.pop()
        yield code
        left += [each for each in code.co_consts if isinstance(each, types.CodeType)]


def _names(function: Any) -> frozenset[str]:
    """Names of globals and attributes that it says."""
    return frozenset(name for code in _codes(function) for name in code.co_names)


def _assigned(function: Any) -> set[str]:
    """Attributes that it assigns."""
    steps = (step for code in _codes(function) for step in dis.get_instructions(code))
    return {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}

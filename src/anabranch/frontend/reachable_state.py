"""All that Python reaches of a model and that may change: what each thing is now, by its name.

    ReachedState.by(model)     held     container or cell    "history"          and what it held
                          values   random.Random        "source"           and its state
                          tensors  a weight             "layers.0.weight"  and where it lies
                          bound    globals, attributes of classes          and their values

Attributes and hooks of all modules are looked at, and all that they reach through containers,
plain objects and closures; of globals, those whose names the code of these classes and functions
reads.
"""

from __future__ import annotations

import functools
import logging
import threading
import types
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import _disable_current_modes

from anabranch.frontend import held_tensors
from anabranch.frontend.held_containers import ABSENT, PLAIN_VALUES, copied, named, slots_of
from anabranch.frontend.held_values import ValueKind, kind_of
from anabranch.frontend.source import is_code_of_users, is_users

UNTOLD = frozenset(vars(nn.Module())) - {"training"} | {"_flat_weights", "_flat_weight_refs"}
"""Attributes of nn.Module itself whose change says nothing to a user."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
TENSOR_DICTS = ("_parameters", "_buffers")
USER_DICTS = (*TENSOR_DICTS, "_modules")
"""Dicts among them of which the content is the user's."""
HOOK_DICTS = tuple(name for name in vars(nn.Module()) if "hooks" in name)
"""Dicts of all sorts of hooks: most of them are empty."""
DICTS = (*USER_DICTS, *HOOK_DICTS)
NOTHING: dict[Any, Any] = {}
_all_dicts = itemgetter(*DICTS)
DERIVED_FROM = ("_g", "_orig")
"""How parameters are called from which an attribute is computed."""
UNCHANGING = frozenset((*PLAIN_VALUES, torch.dtype, torch.device, torch.Size))
"""Values of these very classes have nothing within them that is looked at."""
LOGGING = (logging.Filterer, logging.LoggerAdapter, logging.Manager)
"""Every logger reaches all others, of torch too, which note what they are asked."""
NO_STATE = (types.ModuleType, type, threading.Thread, *LOGGING)
"""What a model may refer to and is no state of its own; a thread runs by itself."""
MOST_CONTAINERS = 200_000
"""Containers that are looked at: beyond that it takes longer than it is worth."""
OURS = "anabranch.compiled"
"""The package whose objects a plan keeps: where it is a part of the model, they are none of the
model's."""


@dataclass(slots=True)
class ReachedState:
    """By its identity each thing that may change, with its name and what it was; what changes there
    is not told where there is no name."""

    held: dict[int, tuple[Any, str | None, Any]] = field(default_factory=dict)
    """Containers, cells, and objects with slots."""
    values: dict[int, tuple[Any, str, ValueKind, Any]] = field(default_factory=dict)
    tensors: dict[int, tuple[Tensor, str, str, Any]] = field(default_factory=dict)
    dicts: list[tuple[Sequence[Any], str | None, Sequence[Any]]] = field(default_factory=list)
    """For each module the dicts of its parts, tensors and hooks, and what they held."""
    bound: list[tuple[Any, str, str, Any]] = field(default_factory=list)
    """Globals and class attributes: owner, name there, name for a user, value."""
    derived: set[str] = field(default_factory=set)
    """Names of attributes that torch computes of parameters before each call."""
    classes: list[tuple[type, frozenset[str]]] = field(default_factory=list)
    """Classes, and the names of all that they had."""
    _code: set[int] = field(default_factory=set)
    _kinds: dict[type, ValueKind | None] = field(default_factory=dict)

    @staticmethod
    def by(models: Sequence[Any]) -> ReachedState:
        """The contents of the containers, globals and class attributes that the model reaches
        now."""
        state = ReachedState()
        with unheard(), suppress(RecursionError):  # deeper than Python can go is not looked at
            for model in models:
                if isinstance(model, nn.Module):
                    state._model(model, "")
                else:
                    state._value(model, "the function")
            for name in GLOBAL_HOOKS:
                state._value(getattr(nn.modules.module, name), name)
        return state

    def _model(self, model: nn.Module, path: str) -> None:
        """All parts first, that whatever else refers to one of them finds it named."""
        parts: list[tuple[nn.Module, str]] = []
        self._parts(model, path, parts)
        for part, name in parts:
            self._attributes(part, name)

    def _parts(self, part: nn.Module, path: str, parts: list[tuple[nn.Module, str]]) -> None:
        inside = part.__dict__
        if id(inside) in self.held or type(part).__module__.startswith(OURS):
            return
        if isinstance(part, torch.jit.ScriptModule):  # what it holds is not in Python
            return
        # A module that was written for a graph keeps notes of that graph.
        told = None if isinstance(part, fx.GraphModule) else path
        self._keep(inside, told)
        parts.append((part, path))
        lives = _dicts(inside)
        held = [live.copy() if live else NOTHING for live in lives]
        self.dicts.append((lives, told, held))
        for tensors in held[: len(TENSOR_DICTS)]:
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in self.tensors:
                    self.tensors[id(tensor)] = tensor, path, name, held_tensors.read(tensor)
        for name, child in held[len(TENSOR_DICTS)].items():
            if child is not None:
                self._parts(child, f"{path}{name}.", parts)

    def _attributes(self, part: nn.Module, path: str) -> None:
        self.derived.update(f"{path}{name}" for name in _derived(part))
        for name, value in part.__dict__.items():
            if type(value) not in UNCHANGING and name not in UNTOLD:
                self._value(value, f"{path}{name}")
        for name in HOOKS:
            for hook in part.__dict__.get(name, NOTHING).values():
                self._value(hook, f"{path}{name}")
        if id(type(part)) not in self._code:
            self._class(type(part))

    def _keep(self, container: Any, path: str | None) -> bool:
        """Remember what it holds; False where that was done, or there is too much."""
        if id(container) in self.held or len(self.held) >= MOST_CONTAINERS:
            return False
        self.held[id(container)] = container, path, copied(container)
        return True

    def _value(self, value: Any, path: str) -> None:
        """Whatever may change within a value."""
        if isinstance(value, (*PLAIN_VALUES, *NO_STATE)):
            return
        if isinstance(value, Tensor):
            if id(value) not in self.tensors:
                self.tensors[id(value)] = value, path, "", held_tensors.read(value)
        elif isinstance(value, nn.Module):
            self._model(value, f"{path}.")
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, (tuple, frozenset, functools.partial, types.MethodType)):
            for item in items_of(value):
                self._value(item, path)
        elif isinstance(value, (list, deque, set, dict)):
            if self._keep(value, path):
                inner = copied(value)
                for key, item in inner.items() if isinstance(inner, dict) else ():
                    self._value(item, named(path, key))
                for item in () if isinstance(inner, dict) else inner:
                    self._value(item, path)
                self._object(value, path)
        else:
            self._of_kind(value, path)
            self._object(value, path)

    def _of_kind(self, value: Any, path: str) -> None:
        if type(value) not in self._kinds:
            self._kinds[type(value)] = kind_of(type(value))
        kind = self._kinds[type(value)]
        if kind is None or id(value) in self.values or len(self.values) >= MOST_CONTAINERS:
            return
        try:
            was = kind.read(value)
        except Exception:  # a closed file, an iterator that nobody can look into
            return
        self.values[id(value)] = value, path, kind, was
        for inner in kind.within(was):
            self._value(inner, path)

    def _object(self, value: Any, path: str) -> None:
        """Attributes, and slots of what is no container itself."""
        if not _is_users_object(type(value)):
            return
        inside = getattr(value, "__dict__", None)
        if isinstance(inside, dict) and self._keep(inside, f"{path}."):
            for name, item in list(inside.items()):
                self._value(item, f"{path}.{name}")
        has_slots = not isinstance(value, (list, deque, set, dict)) and slots_of(type(value))
        if has_slots and self._keep(value, f"{path}."):
            for name, item in copied(value).items():
                self._value(item, f"{path}.{name}")

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if id(base) in self._code or not _is_users_class(base):
                continue
            self._code.add(id(base))
            self.classes.append((base, frozenset(vars(base))))
            for name, value in list(vars(base).items()):
                function = function_of(value)
                if function is not None:
                    self._function(function, f"{base.__name__}.{name}")
                elif not is_dunder(name):
                    self.bound.append((base, name, f"{base.__name__}.{name}", value))
                    self._value(value, f"{base.__name__}.{name}")

    def _function(self, function: types.FunctionType, path: str) -> None:
        """The globals that it reads, and what it closes over."""
        if id(function) in self._code or not is_code_of_users(function):
            return
        self._code.add(id(function))
        self._value(function.__dict__, path)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if self._keep(cell, f"{path}: {name}"):
                self._value(copied(cell), f"{path}: {name}")
        self._value(function.__defaults__, path)
        space, names = function.__globals__, list(_names(function.__code__))
        for name in names:
            self._global(space, name, names)

    def _global(self, space: dict[str, Any], name: str, names: list[str]) -> None:
        value = space.get(name, ABSENT)
        if value is ABSENT:
            return
        told = f"the global {name}"
        if isinstance(value, types.ModuleType):
            if is_users(getattr(value, "__file__", None) or "<frozen"):
                for inner in names:
                    if inner != name and id(vars(value)) != id(space) and inner in vars(value):
                        self._global(vars(value), inner, [])
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, type):
            self._class(value)
        else:
            self.bound.append((space, name, told, value))
            self._value(value, told)


def _dicts(inside: dict[str, Any]) -> Sequence[Any]:
    """The `DICTS` of a module; one that torch has scripted has not all of them."""
    try:
        return _all_dicts(inside)  # type: ignore[no-any-return]
    except KeyError:
        return [inside.get(name, NOTHING) for name in DICTS]


def _derived(part: nn.Module) -> Iterator[str]:
    """What torch.nn.utils' weight_norm, spectral_norm and pruning make of their parameters."""
    for name in part._parameters:
        for end in DERIVED_FROM:
            if name.endswith(end) and isinstance(vars(part).get(name.removesuffix(end)), Tensor):
                yield name.removesuffix(end)


def items_of(value: Any) -> tuple[Any, ...]:
    """The contents of a thing that cannot change itself, or a copy of a container."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return tuple(value) if isinstance(value, (tuple, frozenset, list)) else (value,)


def unheard() -> ExitStack:
    """A context in which nobody's modes hear of what is looked at."""
    stack = ExitStack()
    stack.enter_context(_disable_current_modes())
    stack.enter_context(torch._C.DisableTorchFunction())
    return stack


def is_dunder(name: str) -> bool:
    """Whether it is one of Python's own names."""
    return name.startswith("__") and name.endswith("__")


def function_of(value: Any) -> types.FunctionType | None:
    """The function of a method, static method, class method or property."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return value if isinstance(value, types.FunctionType) else None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that code reads, inner functions included; but for those
    that nobody can write, as of what pytest puts in for an `assert`."""
    yield from filter(str.isidentifier, code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_users_class(kind: type) -> bool:
    module: str = getattr(kind, "__module__", None) or "builtins"
    return module.partition(".")[0] not in ("torch", "builtins", "abc", "typing", "collections")


def _is_users_object(kind: type) -> bool:
    """Whether attributes of such an object are looked at: also of collections that Python has."""
    module: str = getattr(kind, "__module__", None) or "builtins"
    return module.partition(".")[0] not in ("torch", "builtins") and not module.startswith(OURS)

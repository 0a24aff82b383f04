"""What Python holds of a model, and what a call of it changes there.

    state = PythonState.of(model)
    model(x)
    state.changes()     ["layers.0.calls", "history", "module CALLS"]: attributes, containers in
    state.restore()     them, globals, class attributes and closures; all as they were

Attributes and forward hooks of all modules are looked at, and all that they reach through
containers, plain objects and closures; of globals, those whose names the code of these classes and
functions reads. Tensors that are written to are the recorder's affair; that a weight is given
other memory (`weight.data = ...`) no operator shows, and is looked at here.
"""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import is_
from typing import Any

import torch
from torch import Tensor, fx, nn

from anabranch.frontend.source import is_users

UNTOLD = frozenset(vars(nn.Module())) - {"training"} | {"_flat_weights", "_flat_weight_refs"}
"""Attributes of nn.Module itself whose change says nothing to a user."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks")
GLOBAL_HOOKS = tuple(f"_global{name}" for name in HOOKS)
USER_DICTS = ("_parameters", "_buffers", "_modules")
"""Dicts among them of which the content is the user's."""
DERIVED_FROM = ("_g", "_orig")
"""How parameters are called from which an attribute is computed."""
PLAIN_VALUES = (int, float, complex, bool, str, bytes, type(None))
UNCHANGING = frozenset((*PLAIN_VALUES, Tensor, nn.Parameter))
"""Values of these very classes have nothing within them that is looked at."""
MOST_CONTAINERS = 200_000
"""Containers that are looked at: beyond that it takes longer than it is worth."""
BUILT_IN = (OrderedDict, dict, list, deque, set)
"""Containers are read and written by the methods of these: a class of the user's may have given
its own another meaning (a dict of transformers makes an activation of whatever is read of it)."""
EXACT = frozenset((dict, list))
"""Most are these themselves, which need not be asked what they derive from."""
ABSENT = object()


class Holder:
    """What is called in the place of models, and functions, which it `holds`."""

    @property
    def holds(self) -> tuple[Any, ...]:
        """Those that are called."""
        raise NotImplementedError


@dataclass(slots=True)
class PythonState:
    """By its identity each container, with its name and what it held."""

    held: dict[int, tuple[Any, str | None, Any]] = field(default_factory=dict)
    bound: list[tuple[Any, str, str, Any]] = field(default_factory=list)
    """Globals and class attributes: owner, name there, name for a user, value."""
    derived: set[str] = field(default_factory=set)
    """Names of attributes that torch computes of parameters before each call."""
    memory: list[tuple[str, Tensor, Tensor, Any]] = field(default_factory=list)
    """Weights and buffers by name: another tensor of what lay in them, and where that was."""
    classes: list[tuple[type, frozenset[str]]] = field(default_factory=list)
    """Classes, and the names of all that they had."""
    _code: set[int] = field(default_factory=set)

    @staticmethod
    def of(model: Any) -> PythonState:
        """What the containers, globals and class attributes hold that the model reaches now."""
        state = PythonState()
        with suppress(RecursionError):  # what lies deeper than Python can go is not looked at
            for one in model.holds if isinstance(model, Holder) else (model,):
                for path, part in one.named_modules() if isinstance(one, nn.Module) else ():
                    state._module(part, f"{path}." if path else "")
                state._value(one, "the function")
            for name in GLOBAL_HOOKS:
                for hook in getattr(nn.modules.module, name).values():
                    state._value(hook, name)
        return state

    def changes(self) -> list[str]:
        """Names of what is not as it was."""
        found: list[str] = []
        for live, path, held in self.held.values():
            if path is not None and not _untouched(live, held):
                found += _changed(live, path, held)
        for owner, name, told, value in self.bound:
            found += [] if same(_read(owner, name), value) else [told]
        found += [f"{told}.data" for told, tensor, _, at in self.memory if _memory(tensor) != at]
        found += [f"{kind.__name__}.{name}" for kind, name in self._added()]
        return [name for name in dict.fromkeys(found) if name not in self.derived]

    def restore(self) -> None:
        """Put back into each container and attribute what it held."""
        for live, _, was in self.held.values():
            if not _untouched(live, was):
                _restore(live, was)
        for owner, name, _, was in self.bound:
            if _read(owner, name) is not was:
                _write(owner, name, was)
        for _, tensor, was, at in self.memory:
            if _memory(tensor) != at:
                tensor.data = was
        for kind, name in self._added():
            delattr(kind, name)

    def _added(self) -> list[tuple[type, str]]:
        """What classes have that they had not; functions and what Python itself notes are none."""
        return [
            (kind, name)
            for kind, names in self.classes
            for name in vars(kind).keys() - names
            if not _is_dunder(name) and _function_of(vars(kind)[name]) is None
        ]

    def _module(self, part: nn.Module, path: str) -> None:
        # A module that was written for a graph keeps notes of that graph.
        self._keep(part.__dict__, None if isinstance(part, fx.GraphModule) else path)
        for name in USER_DICTS:
            self._keep(part.__dict__[name], path)
        self.derived.update(f"{path}{name}" for name in _derived(part))
        for name, value in part.__dict__.items():
            if name not in UNTOLD and type(value) not in UNCHANGING:
                self._value(value, f"{path}{name}")
        self.memory += [
            (f"{path}{name}", tensor, tensor.detach(), _memory(tensor))
            for name, tensor in (*part._parameters.items(), *part._buffers.items())
            if tensor is not None and _lies_in_memory(tensor)
        ]
        for name in HOOKS:
            for hook in getattr(part, name).values():
                self._value(hook, f"{path}{name}")
        self._class(type(part))

    def _keep(self, container: Any, path: str | None) -> bool:
        """Remember what it holds; False where that was done, or there is too much. What changes
        there is not told if there is no `path`."""
        if id(container) in self.held or len(self.held) >= MOST_CONTAINERS:
            return False
        self.held[id(container)] = container, path, _copy(container)
        return True

    def _value(self, value: Any, path: str) -> None:
        """Whatever may change within a value."""
        for inner, name in _reached(value, path, self._keep):
            if isinstance(inner, types.FunctionType):
                self._function(inner, name)
            else:
                self._value(inner, name)

    def _class(self, kind: type) -> None:
        for base in kind.__mro__:
            if id(base) in self._code or not _is_users_class(base):
                continue
            self._code.add(id(base))
            self.classes.append((base, frozenset(vars(base))))
            for name, value in list(vars(base).items()):
                function = _function_of(value)
                if function is not None:
                    self._function(function, f"{base.__name__}.{name}")
                elif not _is_dunder(name):
                    self.bound.append((base, name, f"{base.__name__}.{name}", value))
                    self._value(value, f"{base.__name__}.{name}")

    def _function(self, function: types.FunctionType, path: str) -> None:
        """The globals that it reads, and what it closes over."""
        if id(function) in self._code or not is_users(function.__code__.co_filename):
            return
        self._code.add(id(function))
        self._value(function.__dict__, path)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in cells:
            if self._keep(cell, f"{path}: {name}"):
                self._value(_copy(cell), f"{path}: {name}")
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
            if is_users(getattr(value, "__file__", None) or "<"):
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


def _derived(part: nn.Module) -> Iterator[str]:
    """What torch.nn.utils' weight_norm, spectral_norm and pruning make of their parameters."""
    for name in part._parameters:
        for end in DERIVED_FROM:
            if name.endswith(end) and isinstance(vars(part).get(name.removesuffix(end)), Tensor):
                yield name.removesuffix(end)


def _reached(value: Any, path: str, keep: Callable[[Any, str], bool]) -> Iterator[tuple[Any, str]]:
    """What may change, within a value that has been kept or cannot change itself."""
    if isinstance(value, (*PLAIN_VALUES, torch.Tensor, types.ModuleType, type, nn.Module)):
        return  # parts have been looked at; another model is not ours
    if isinstance(value, types.FunctionType):
        yield value, path
    elif isinstance(value, (list, deque, set)):
        if keep(value, path):
            yield from ((item, path) for item in _copy(value))
    elif isinstance(value, dict):
        if keep(value, path):
            yield from ((item, f"{path}{_key(key)}") for key, item in _copy(value).items())
    elif isinstance(value, (tuple, frozenset)):
        yield from ((item, path) for item in value)
    elif isinstance(value, functools.partial):
        yield from ((item, path) for item in (value.func, value.args, value.keywords))
    elif isinstance(value, types.MethodType):
        yield from ((item, path) for item in (value.__func__, value.__self__))
    else:
        inside = getattr(value, "__dict__", None) if _is_users_class(type(value)) else None
        if isinstance(inside, dict) and keep(inside, f"{path}."):
            yield from ((item, f"{path}.{name}") for name, item in list(inside.items()))


def _changed(live: Any, path: str, was: Any) -> Iterator[str]:
    """Names of what a container holds now and did not, or the other way round."""
    now = _copy(live)
    if isinstance(live, types.CellType):
        if not same(now, was):
            yield path
    elif _as_it_was(now, was):
        return
    elif isinstance(live, dict):
        for key in dict.fromkeys([*was, *now]):
            if not same(now.get(key, ABSENT), was.get(key, ABSENT)) and key not in UNTOLD:
                named = path == "" or path.endswith(".")
                yield f"{path}{key}" if named else f"{path}{_key(key)}"
    elif len(now) != len(was) or not all(map(same, now, was)):
        yield path


def _key(key: Any) -> str:
    return f"[{key!r:.40}]" if isinstance(key, PLAIN_VALUES) else "[...]"


def same(now: Any, was: Any) -> bool:
    """Whether nobody can tell one from the other: they are one, or equal numbers, strings, and
    lists and tuples of the same."""
    if now is was:
        return True
    if type(now) is not type(was):
        return False
    if isinstance(now, (list, tuple)):
        return len(now) == len(was) and all(map(same, now, was))
    return isinstance(now, PLAIN_VALUES) and bool(now == was or now != now)


def _copy(live: Any) -> Any:
    if type(live) in EXACT:
        return live.copy()
    if isinstance(live, types.CellType):
        try:
            return live.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT
    kind = _built_in(live)
    return dict(kind.items(live)) if issubclass(kind, dict) else list(kind.__iter__(live))


def _untouched(live: Any, was: Any) -> bool:
    """Whether a container of the commonest sorts is as it was; of others nothing is said here."""
    return type(live) in EXACT and _as_it_was(live, was)


def _as_it_was(now: Any, was: Any) -> bool:
    """Whether two copies of a container hold the same objects in the same order."""
    if len(now) != len(was) or not all(map(is_, now, was)):
        return False
    return not isinstance(now, dict) or all(map(is_, now.values(), was.values()))


def _built_in(live: Any) -> Any:
    """Which of the built-in containers it is at heart."""
    return next(kind for kind in BUILT_IN if isinstance(live, kind))


def _restore(live: Any, was: Any) -> None:
    """Make a container hold again exactly what it held."""
    now = _copy(live)
    if isinstance(live, types.CellType):
        if now is not was:
            if was is ABSENT:
                del live.cell_contents
            else:
                live.cell_contents = was
        return
    if _as_it_was(now, was):
        return
    kind = _built_in(live)
    kind.clear(live)
    if isinstance(live, dict):
        for key, value in was.items():
            kind.__setitem__(live, key, value)
    else:
        kind.update(live, was) if isinstance(live, set) else kind.extend(live, was)


def _read(owner: Any, name: str) -> Any:
    return owner.get(name, ABSENT) if isinstance(owner, dict) else vars(owner).get(name, ABSENT)


def _write(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _lies_in_memory(tensor: Any) -> bool:
    return type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout == torch.strided


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies, and in which form."""
    place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype
    return *place, tensor.shape, tensor.stride()


def _function_of(value: Any) -> types.FunctionType | None:
    """The function of a method, static method, class method or property."""
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)
    return value if isinstance(value, types.FunctionType) else None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes that code reads, inner functions included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_users_class(kind: type) -> bool:
    module: str = getattr(kind, "__module__", None) or "builtins"
    return module.partition(".")[0] not in ("torch", "builtins", "abc", "typing", "collections")

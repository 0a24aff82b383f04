"""Values with a state of their own inside, which are no containers: sources of random numbers,
arrays, text in memory, iterators, caches of functions.

    kind = kind_of(type(value))       None for a value that nobody can change, or see into
    was = kind.read(value)
    kind.same(kind.read(value), was)  whether it is as it was
    kind.put_back(value, was)         value itself, or what can stand in its place
    kind.kept(was)                    False: it cannot be put back, for nobody can copy a generator

An iterator goes on only: what was its state is another iterator, which takes its place where it is
held.
"""

from __future__ import annotations

import array
import ast
import contextvars
import ctypes
import functools
import io
import itertools
import random
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from anabranch.frontend.held_containers import ABSENT, same
from anabranch.frontend.source import is_code_of_users

MOST_BYTES = 64 << 20
"""Bytes of an array of NumPy's that are copied; of a larger one some elements are compared."""
COMPARED = 1024
"""Elements of a larger array: a table in a file may have more than the memory."""
ITERATORS_IN = ("builtins", "itertools")
_CDATA: type = ctypes.c_int.__mro__[-2]
"""What all types of ctypes derive from."""


def _always(was: Any) -> bool:
    return True


def _nothing(value: Any) -> Iterable[Any]:
    return ()


def _equal(now: Any, was: Any) -> bool:
    return bool(now == was)


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How a kind of value is `read`, and `put_back` to what was read; `within`: what else may
    change that it refers to. `kept`: whether what was read is enough to put it back. `replaced`: by
    another object in its place."""

    read: Callable[[Any], Any]
    put_back: Callable[[Any, Any], Any]
    same: Callable[[Any, Any], bool] = _equal
    kept: Callable[[Any], bool] = _always
    within: Callable[[Any], Iterable[Any]] = _nothing
    replaced: bool = False


def kind_of(value: type) -> ValueKind | None:
    """The kind of values of this class."""
    for base in value.__mro__:
        if base in KINDS:
            return KINDS[base]
        if base.__module__.partition(".")[0] == "numpy" and (kind := _of_numpy(base)):
            return kind
        if base.__module__ in ITERATORS_IN and hasattr(base, "__next__"):
            return ITERATOR
    return None


def _of_numpy(base: type) -> ValueKind | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if base is numpy.ndarray:
        return ARRAY
    if base is numpy.random.RandomState:
        return ValueKind(lambda r: r.get_state(), _write_old_random, _same_state)
    if base is numpy.random.Generator:
        return ValueKind(lambda g: g.bit_generator.state, _write_random, _same_state)
    if base is numpy.random.BitGenerator:
        return ValueKind(lambda b: b.state, _write_bits, _same_state)
    return None


def _write_old_random(live: Any, was: Any) -> Any:
    live.set_state(was)
    return live


def _write_random(live: Any, was: Any) -> Any:
    live.bit_generator.state = was
    return live


def _write_bits(live: Any, was: Any) -> Any:
    live.state = was
    return live


def _same_state(now: Any, was: Any) -> bool:
    """Of random numbers of NumPy's: arrays and numbers in dicts and tuples."""
    if isinstance(now, dict):
        return all(_same_state(now[key], was[key]) for key in now)
    if isinstance(now, tuple):
        return all(map(_same_state, now, was))
    return bool(now.tobytes() == was.tobytes() if hasattr(now, "tobytes") else now == was)


def _read_array(live: Any) -> Any:
    """Its form, its content, and whether that is all of it; nothing of one that cannot change."""
    if not live.flags.writeable:
        return None
    form = live.shape, live.dtype
    if live.dtype.hasobject:
        return *form, tuple(live.flat), True
    if live.nbytes > MOST_BYTES:
        step = max(live.size // COMPARED, 1)
        return *form, live.flat[::step].tobytes(), False
    return *form, live.tobytes(), True


def _write_array(live: Any, was: Any) -> Any:
    shape, dtype, content, _ = was
    if live.shape != shape:
        live.resize(shape, refcheck=False)
    if dtype.hasobject:
        live.flat[:] = content
    else:
        live[...] = sys.modules["numpy"].frombuffer(content, dtype).reshape(shape)
    return live


def _array_kept(was: Any) -> bool:
    return bool(was[3])


def _same_array(now: Any, was: Any) -> bool:
    if now is None or was is None:
        return now is was
    return bool(now[:2] == was[:2]) and same(now[2], was[2])


def _read_generator(live: torch.Generator) -> Any:
    """That of torch itself is the recorder's affair."""
    if live is torch.default_generator:
        return None
    return live.get_state().numpy().tobytes()


def _write_generator(live: torch.Generator, was: bytes) -> Any:
    live.set_state(torch.frombuffer(bytearray(was), dtype=torch.uint8))
    return live


def _write_array_of_python(live: Any, was: Any) -> Any:
    live[:] = was
    return live


def _write_memory(live: Any, was: bytes) -> Any:
    ctypes.memmove(ctypes.addressof(live), was, len(was))
    return live


def _write_text(live: Any, was: Any) -> Any:
    live.__setstate__(was)
    return live


def _read_variable(live: Any) -> Any:
    try:
        return live.get()
    except LookupError:
        return ABSENT


def _is_set(was: Any) -> bool:
    return was is not ABSENT


def _write_variable(live: Any, was: Any) -> Any:
    live.set(was)
    return live


def _read_cache(live: Any) -> Any:
    """How many results a function of the user's has computed, and how many of them it keeps."""
    if not is_code_of_users(live.__wrapped__):
        return None
    told = live.cache_info()
    return told.misses, told.currsize


def _empty(live: Any, was: Any) -> Any:
    live.cache_clear()
    return live


def _was_empty(was: Any) -> bool:
    return bool(was[0] == 0)


@dataclass(frozen=True, slots=True)
class _Paused:
    """An iterator as it stood: what makes it anew, and what is told to that."""

    make: Any
    args: tuple[Any, ...]
    more: Any = None

    def again(self) -> Any:
        """An iterator that goes on from there."""
        iterator = self.make(*map(_again, self.args))
        if self.more is not None:
            iterator.__setstate__(_own(_again(self.more)))
        return iterator


@dataclass(frozen=True, slots=True)
class _Running:
    """A generator: the place in its code, and its variables."""

    place: Any
    variables: tuple[Any, ...]


def _paused(value: Any, within: tuple[int, ...] = ()) -> Any:
    """An iterator as it stands, with those that it reads; any other value is itself."""
    if isinstance(value, tuple):
        return tuple(_paused(item, within) for item in value)
    kind = type(value)
    if id(value) in within or kind.__module__ not in ITERATORS_IN or not hasattr(kind, "__next__"):
        return value
    within = (*within, id(value))
    if kind is itertools.count:
        return _Paused(kind, tuple(ast.literal_eval(f"({repr(value)[len('count(') : -1]},)")))
    if isinstance(value, types.GeneratorType):
        if value.gi_frame is None:
            return _Running(None, ())
        return _Running(value.gi_frame.f_lasti, _variables(value.gi_frame.f_locals, within))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        make, args, *more = value.__reduce__()
    return _Paused(make, _paused(args, within), _paused(_own(more[0]), within) if more else None)


def _own(told: Any) -> Any:
    """What is told to an iterator, with lists of its own: `cycle` appends to what it has told."""
    if isinstance(told, tuple):
        return tuple(map(_own, told))
    return list(told) if isinstance(told, list) else told


def _variables(names: dict[str, Any], within: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple((name, _paused(value, within)) for name, value in names.items())


def _again(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_again, value))
    return value.again() if isinstance(value, _Paused) else value


def _same_pause(now: Any, was: Any) -> bool:
    if type(now) is not type(was):
        return False
    if isinstance(now, _Paused):
        return _same_pause((now.make, now.args, now.more), (was.make, was.args, was.more))
    if isinstance(now, _Running):
        return _same_pause((now.place, now.variables), (was.place, was.variables))
    if isinstance(now, tuple):
        return len(now) == len(was) and all(map(_same_pause, now, was))
    return same(now, was)


def _can_go_on(was: Any) -> bool:
    if isinstance(was, tuple):
        return all(map(_can_go_on, was))
    if isinstance(was, _Paused):
        return _can_go_on(was.args) and _can_go_on(was.more)
    return not isinstance(was, (_Running, types.GeneratorType))


def _read_by(was: Any) -> Iterable[Any]:
    """What an iterator goes through, and those that it reads."""
    for item in was.args if isinstance(was, _Paused) else ():
        yield from _read_by(item) if isinstance(item, _Paused) else (item,)


ITERATOR = ValueKind(
    _paused, lambda live, was: was.again(), _same_pause, _can_go_on, _read_by, True
)
ARRAY = ValueKind(_read_array, _write_array, _same_array, _array_kept)
KINDS: dict[type, ValueKind] = {
    random.Random: ValueKind(lambda r: r.getstate(), lambda r, was: r.setstate(was) or r),
    torch.Generator: ValueKind(_read_generator, _write_generator),
    io.StringIO: ValueKind(lambda s: s.__getstate__(), _write_text),
    io.BytesIO: ValueKind(lambda s: s.__getstate__(), _write_text),
    array.array: ValueKind(
        lambda a: a[:], _write_array_of_python, lambda a, b: bytes(a) == bytes(b)
    ),
    bytearray: ValueKind(bytes, _write_array_of_python),
    contextvars.ContextVar: ValueKind(_read_variable, _write_variable, same, _is_set),
    _CDATA: ValueKind(bytes, _write_memory),
    functools._lru_cache_wrapper: ValueKind(_read_cache, _empty, kept=_was_empty),
}

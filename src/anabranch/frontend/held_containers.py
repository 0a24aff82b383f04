"""What a container, a closure's cell or an object with slots holds: a copy of it, what differs from
that later on, and how it is put back.

    was = copied(live)                          {"a": 1}
    live["a"] = 2
    list(differences(live, "cache", was))       ["cache['a']"]
    put_back(live, was)                         live == {"a": 1}

What is held is looked at by identity: numbers, strings, and lists, tuples and dicts of such are the
same if they are equal, too.
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator
from operator import is_
from typing import Any

from anabranch.frontend.source import is_users

PLAIN_VALUES = (int, float, complex, bool, str, bytes, type(None))
BUILT_IN = (OrderedDict, dict, list, deque, set)
"""Containers are read and written by the methods of these: a class of the user's may have given
its own another meaning (a dict of transformers makes an activation of whatever is read of it)."""
EXACT = frozenset((dict, list))
"""Most are these themselves, which need not be asked what they derive from."""
ABSENT = object()


def copied(live: Any) -> Any:
    """A dict or a list of what it holds; of a cell its content."""
    if type(live) in EXACT:
        return live.copy()
    if isinstance(live, types.CellType):
        try:
            return live.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT
    kind = _built_in(live)
    if kind is None:
        return {name: _slot(live, slot) for name, slot in slots_of(type(live))}
    return dict(kind.items(live)) if issubclass(kind, dict) else list(kind.__iter__(live))


def untouched(live: Any, was: Any) -> bool:
    """Whether a container of the commonest sorts is as it was; of others nothing is said here."""
    return type(live) in EXACT and as_it_was(live, was)


def as_it_was(now: Any, was: Any) -> bool:
    """Whether two copies of a container hold the same objects in the same order."""
    if len(now) != len(was) or not all(map(is_, now, was)):
        return False
    return not isinstance(now, dict) or all(map(is_, now.values(), was.values()))


def differences(live: Any, path: str, was: Any, untold: Collection[str] = ()) -> Iterator[str]:
    """Names of what a container holds now and did not, or the other way round."""
    now = copied(live)
    if isinstance(live, types.CellType):
        if not same(now, was):
            yield path
    elif as_it_was(now, was):
        return
    elif isinstance(now, dict):
        keys = dict.fromkeys([*was, *now])
        other = [k for k in keys if not same(now.get(k, ABSENT), was.get(k, ABSENT))]
        yield from (named(path, key) for key in other if key not in untold)
        if not other and isinstance(live, OrderedDict) and list(now) != list(was):
            yield path
    elif len(now) != len(was) or not all(map(same, now, was)):
        yield path


def named(path: str, key: Any) -> str:
    """What is held under the key: an attribute, where the path ends as that of an object does."""
    if isinstance(key, str) and (path == "" or path.endswith(".")):
        return f"{path}{key}"
    return f"{path}[{key!r:.40}]" if isinstance(key, PLAIN_VALUES) else f"{path}[...]"


def same(now: Any, was: Any) -> bool:
    """Whether nobody can tell one from the other: they are one, or equal numbers, strings, and
    lists, tuples and dicts of the same. torch.export leaves equal dicts in place of a module's."""
    if now is was:
        return True
    if type(now) is not type(was):
        return False
    if isinstance(now, (list, tuple)):
        return len(now) == len(was) and all(map(same, now, was))
    if type(now) is dict:
        return len(now) == len(was) and all(map(same, (*now, *now.values()), (*was, *was.values())))
    return isinstance(now, PLAIN_VALUES) and bool(now == was or now != now)


def put_back(live: Any, was: Any) -> None:
    """Make a container hold again exactly what it held."""
    now = copied(live)
    if isinstance(live, types.CellType):
        if now is not was:
            if was is ABSENT:
                del live.cell_contents
            else:
                live.cell_contents = was
        return
    if as_it_was(now, was):
        return
    kind = _built_in(live)
    if kind is None:
        for name, slot in slots_of(type(live)):
            if was[name] is not ABSENT:
                slot.__set__(live, was[name])
            elif now[name] is not ABSENT:
                slot.__delete__(live)
        return
    kind.clear(live)
    if isinstance(live, dict):
        for key, value in was.items():
            kind.__setitem__(live, key, value)
    else:
        kind.update(live, was) if isinstance(live, set) else kind.extend(live, was)


def exchange(live: Any, old: Any, other: Any) -> bool:
    """Have it hold the `other` wherever it holds `old`; False where it does not."""
    was = copied(live)
    held: dict[Any, Any]
    if isinstance(live, types.CellType):
        held = {"": was}
    else:
        held = was if isinstance(was, dict) else dict(enumerate(was))
    if not any(value is old for value in held.values()):
        return False
    new = {key: other if value is old else value for key, value in held.items()}
    if isinstance(live, types.CellType):
        put_back(live, other)
    else:
        put_back(live, new if isinstance(was, dict) else list(new.values()))
    return True


def slots_of(kind: type) -> tuple[tuple[str, Any], ...]:
    """The slots that a class and those that it derives from give their objects. Classes of Python's
    own keep in some of theirs what they have computed once: a path its text."""
    return tuple(
        (name, slot)
        for base in kind.__mro__
        if "__slots__" in vars(base) and _is_in_code_of_users(base)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    )


def _slot(live: Any, slot: Any) -> Any:
    try:
        return slot.__get__(live)
    except AttributeError:  # not assigned
        return ABSENT


def _built_in(live: Any) -> Any:
    """Which of the built-in containers it is at heart; None if it is none."""
    return next((kind for kind in BUILT_IN if isinstance(live, kind)), None)


def _is_in_code_of_users(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return module is not None and is_users(getattr(module, "__file__", None) or "a prompt")

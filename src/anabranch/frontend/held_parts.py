"""What objects with tensors hold, and what that holds in turn: the places of all of it.

tensors_within(cache)    HeldPart("layers.0.keys", {"keys": .., ..}, "keys", tensor), ..
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from anabranch.frontend.held_containers import ABSENT, same
from anabranch.frontend.reachable_state import NO_STATE, UNCHANGING

NO_OBJECTS = (Tensor, nn.Module, str, bytes, int, float, complex, type(None), type)
"""Arguments that have a meaning of their own."""
CONTAINERS = (list, tuple, dict)


@dataclass(frozen=True, slots=True)
class HeldPart:
    """What an object holds: the `value` lies in the `holder`, a dict of attributes or a container,
    under the `key`; `path`: a qualified name within the object; `size`: of a container."""

    path: str
    holder: Any
    key: Any
    value: Any
    size: int | None = None

    def now(self) -> Any:
        """What lies there; ABSENT if nothing does."""
        holder, key = self.holder, self.key
        if isinstance(holder, dict):
            return holder.get(key, ABSENT)
        return holder[key] if len(holder) > key else ABSENT

    def is_there(self) -> bool:
        """Whether it is still this very value, or an equal number or text."""
        now, was = self.now(), self.value
        if now is not was and not same(now, was):
            plain = type(was) in UNCHANGING and type(now) is type(was)
            return plain and bool(now == was)
        return self.size is None or len(now) == self.size


def tensors_within(value: Any) -> tuple[HeldPart, ...]:
    """The tensors that an object holds, each once, and under a path that no other has."""
    return tensors_among(parts_of(value))


def tensors_among(parts: Iterable[HeldPart]) -> tuple[HeldPart, ...]:
    """The tensors among what an object holds, each once, and under a path that no other has."""
    held: dict[str, HeldPart] = {}
    seen = set[int]()
    for part in parts:
        if isinstance(part.value, Tensor) and id(part.value) not in seen:
            seen.add(id(part.value))
            path = part.path
            while path in held:
                path += "_"
            held[path] = replace(part, path=path)
    return tuple(held.values())


def parts_of(value: Any) -> Iterator[HeldPart]:
    """All that an object holds, and what that holds in turn."""
    seen = set[int]()
    waiting = [("", value)]
    for path, container in waiting:
        if id(container) in seen or isinstance(container, (*NO_OBJECTS, *NO_STATE)):
            continue
        seen.add(id(container))
        holder = container if isinstance(container, CONTAINERS) else _attributes(container)
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, part in list(items):
            within = _within(path, key)
            size = len(part) if isinstance(part, CONTAINERS) else None
            yield HeldPart(within, holder, key, part, size)
            waiting.append((within, part))


def _attributes(value: Any) -> dict[str, Any]:
    return vars(value) if hasattr(value, "__dict__") and not callable(value) else {}


def _within(path: str, key: Any) -> str:
    """The qualified name of what is held under the key, as modules may have buffers by it."""
    word = "".join(c if c.isalnum() or c == "_" else "_" for c in str(key)) or "_"
    while hasattr(nn.Module, word) or word in vars(nn.Module()):
        word += "_"
    return f"{path}.{word}".removeprefix(".")

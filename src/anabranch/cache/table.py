"""One kind of thing that is remembered: its name and version, its keys, and how it is written.

    DECISIONS = Table("kernels", "selection 4", values(tuple[Candidate, ...]))

    get, remember --> found under the key? --> reads as the type says, and fits? --> the value
                           | no                       | no
                           +--------------------------+--------> None; computed anew, and stored

An entry that cannot be read, or is not what it should be, is a miss and never an error: the next
`put` replaces it. A name ends in the version of what is kept: another version is another name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from anabranch.cache.codec import Codec
from anabranch.cache.entries import Cache

K = TypeVar("K")
R = TypeVar("R")
T = TypeVar("T")
N = TypeVar("N", bound=None)

_log = logging.getLogger("anabranch.cache")


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """`shelf`: the table of the file that it lies in; `name`: what begins its keys. Every method
    takes the cache, None for none: nothing is found there, and nothing is kept."""

    shelf: str
    name: str
    codec: Codec[T]

    def key(self, *parts: str) -> str:
        """The whole key of what rests on all these texts."""
        return "\n".join([self.name, *parts])

    def get(
        self, cache: Cache | None, key: str, fits: Callable[[T], bool] = lambda value: True
    ) -> T | None:
        """What is stored under this key. `fits`: whether it is an answer; an exception says that it
        is none, too."""
        return self.find(cache, key, lambda value: value if fits(value) else None)

    def find(
        self, cache: Cache | None, key: str, then: Callable[[T], R | None], beside: Any = None
    ) -> R | None:
        """What `then` makes of what is stored under this key; None, or an exception, says that it
        is no answer. `beside`: what the codec may rest on."""
        return self._read(cache, {key: key}, then, beside).get(key)

    def get_many(self, cache: Cache | None, keys: Mapping[K, str]) -> dict[K, T]:
        """The values stored under these keys, read at once, by what the keys are of."""
        return self._read(cache, keys, lambda value: value)

    def _read(
        self,
        cache: Cache | None,
        keys: Mapping[K, str],
        then: Callable[[T], R | None],
        beside: Any = None,
    ) -> dict[K, R]:
        if cache is None or not keys:
            return {}
        stored, values = cache.read(self.shelf, keys.values()), dict[K, R]()
        for of, key in keys.items():
            if key not in stored:
                continue
            try:
                value = then(self.codec.read(stored[key], beside))
            except Exception as broken:  # a foreign text may fail anywhere
                _log.info("an entry of %s does not fit: %s", self.name, broken)
                continue
            if value is not None:
                values[of] = value
        return values

    def put(self, cache: Cache | None, key: str, value: T, beside: Any = None) -> None:
        """Store this, in place of what was there."""
        self.put_many(cache, {key: value}, beside)

    def put_many(self, cache: Cache | None, items: Mapping[str, T], beside: Any = None) -> None:
        """Store all of these at once, by whole key."""
        if cache is not None and items:
            data = {key: self.codec.write(value, beside) for key, value in items.items()}
            cache.write(self.shelf, data)

    def remember(
        self,
        cache: Cache | None,
        key: str,
        compute: Callable[[], T | N],
        kept: Callable[[T], T | None] = lambda value: value,
        fits: Callable[[T], bool] = lambda value: True,
        recalled: Callable[[T], None] = lambda value: None,
    ) -> T | N:
        """What is stored under this key, of which `recalled` hears; else what is computed, of which
        is stored what `kept` makes of it. None is no answer."""
        value = self.get(cache, key, fits)
        if value is not None:
            recalled(value)
            return value
        computed = compute()
        worth = kept(computed) if computed is not None else None
        if worth is not None:
            self.put(cache, key, worth)
        return computed

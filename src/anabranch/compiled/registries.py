"""Dictionaries in which modules register their parts, parameters and buffers, as they were.

    registries = Registries.of([("2", model[2]._modules), ...])
    model[2].append(nn.ReLU())
    registries.changes()         [("2.3", None, ReLU())]

Each call of a training step asks whether they changed, so this is a few passes in C over all that
they hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, ValuesView
from dataclasses import dataclass
from itertools import chain
from operator import is_not
from typing import Any


@dataclass(slots=True)
class Registries:
    """`names`: of the modules that have them; `sizes` and `values`: how many entries each had, and
    all entries one after the other, which `views` show as they are; `copies`: each as it was."""

    names: list[str]
    mappings: list[Mapping[str, Any]]
    sizes: list[int]
    values: list[Any]
    views: list[ValuesView[Any]]
    copies: list[dict[str, Any]]

    @staticmethod
    def of(named: Iterable[tuple[str, Mapping[str, Any]]]) -> Registries:
        """Those of modules with these names, as they are now."""
        pairs = list(named)
        names, mappings = [name for name, _ in pairs], [mapping for _, mapping in pairs]
        copies = [dict(mapping) for mapping in mappings]
        values = [value for copy in copies for value in copy.values()]
        views = [mapping.values() for mapping in mappings]  # which show what is there at any time
        return Registries(names, mappings, [*map(len, copies)], values, views, copies)

    def changed(self) -> bool:
        """Whether an entry came, went, or is another object."""
        if list(map(len, self.mappings)) != self.sizes:
            return True
        return any(map(is_not, chain.from_iterable(self.views), self.values))

    def changes(self) -> list[tuple[str, Any, Any]]:
        """By the name of an entry the value that it had, and the one that it has; None for none. An
        entry that is registered in another order is none of them."""
        changes = []
        for name, mapping, copy in zip(self.names, self.mappings, self.copies, strict=True):
            for key in dict.fromkeys((*copy, *mapping)):
                was, now = copy.get(key), mapping.get(key)
                if was is not now:
                    changes.append((f"{name}.{key}" if name else key, was, now))
        return changes

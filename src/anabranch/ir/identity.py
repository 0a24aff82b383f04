"""Keys by identity: of what is remembered of a value that takes long to compare.

Itself(profile)     a key that is found at once, and holds the profile as long as it is one
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Itself(Generic[T]):
    """A key of one object, whatever equals that."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

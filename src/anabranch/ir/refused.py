"""Refused: why something may not be done. A value, so that no refusal is silent.

A function that asks whether something may be done answers `Refused | None`; None means that it may.
A refusal is true and None is not, so `or` gives the first refusal of several:

>>> def fits(width: int) -> Refused | None:
...     return Refused.unless(width <= 8, f"{width} columns are more than 8")
>>> def even(width: int) -> Refused | None:
...     return Refused("its columns do not pair") if width % 2 else None
>>> print(fits(12) or even(12))
12 columns are more than 8
>>> print(fits(4) or even(4))
None
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refused:
    """Why something may not be done, in a sentence. Sentences of one kind differ in names and
    numbers only, by which a report groups them."""

    sentence: str

    def __post_init__(self) -> None:
        assert self.sentence, "a refusal says why"

    def __str__(self) -> str:
        return self.sentence

    @staticmethod
    def unless(holds: bool, sentence: str) -> Refused | None:
        """The refusal where something does not hold that must.

        >>> print(Refused.unless(12 <= 8, "12 columns are more than 8"))
        12 columns are more than 8
        """
        return None if holds else Refused(sentence)


def unless(sentence: str, holds: Callable[[T], bool]) -> Callable[[T], Refused | None]:
    """The predicate as a function that refuses with this sentence where it does not hold.

    >>> print(unless("it is a vector", lambda shape: len(shape) > 1)((3,)))
    it is a vector
    """

    @wraps(holds)
    def refusal(value: T) -> Refused | None:
        return Refused.unless(holds(value), sentence)

    return refusal

"""What tables of rules ask beside shapes: one dtype, a number above zero, all of several.

A law of algebra holds for tensors of one floating dtype. Where operands are promoted, the other
side would be rounded elsewhere; whole numbers wrap around and booleans saturate.

    when=every(floating("x", "y"), positive("s"))     None, or the first refusal
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, When, said_by
from anabranch.ir.text import text_arg
from anabranch.ir.types import TensorType

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Conditions:
    """All of them: the refusal of the first that does not hold."""

    conditions: tuple[When, ...]

    @property
    def text(self) -> str:
        """What each of them says, or its name."""
        return ", and ".join(map(said_by, self.conditions))

    def __call__(self, match: Match) -> Refused | None:
        """The first refusal; None if all hold."""
        for condition in self.conditions:
            if refused := condition(match):
                return refused
        return None


def every(*conditions: When) -> When:
    """All of them."""
    return Conditions(conditions)


def types_of(match: Match, *names: str) -> list[TensorType] | Refused:
    """The types of what these wildcards stand for, several values each or one; or which is none."""
    types = []
    for name in names:
        arg = match.bound[name]
        for item in arg if isinstance(arg, tuple) else (arg,):
            if not isinstance(item, Ref):
                return Refused(f"{name} is {text_arg(item)} and no tensor")
            types.append(match.value_facts.types[item.name])
    return types


def floating(*names: str) -> When:
    """Whether they are tensors of one floating dtype."""

    def holds(match: Match) -> Refused | None:
        types = types_of(match, *names)
        if isinstance(types, Refused):
            return types
        dtypes = {type.dtype for type in types}
        if len(dtypes) > 1:
            return Refused(f"{', '.join(names)} are of several dtypes")
        return Refused.unless(
            all(d.is_floating_point for d in dtypes), f"{', '.join(names)} are whole numbers"
        )

    return holds


def positive(name: str) -> When:
    """Whether it is a number above zero."""

    def holds(match: Match) -> Refused | None:
        arg = match.bound[name]
        return Refused.unless(
            isinstance(arg, int | float) and is_number(arg) and arg > 0,
            f"{name} is {text_arg(arg)}",
        )

    return holds


def is_number(arg: Arg) -> bool:
    """Whether an argument is a number and no boolean, which Python takes for one."""
    return isinstance(arg, int | float) and not isinstance(arg, bool)


def values(match: Match, name: str) -> tuple[Ref, ...]:
    """The values that a wildcard stands for that is bound to several."""
    arg = match.bound[name]
    assert isinstance(arg, tuple)
    return tuple(item for item in arg if isinstance(item, Ref))


def folded(op: Callable[[T, T], T], terms: list[T]) -> T:
    """The terms put together by pairs of pairs, so that the depth grows with the logarithm."""
    while len(terms) > 1:
        pairs = [op(terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]

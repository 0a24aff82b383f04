"""What tables of rules say again and again: slices, biases side by side, what must be constant."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Binding, Call, Match, Operand, Pattern, When, Wild
from anabranch.rewrite.pattern_ops import call, cat

T = TypeVar("T")


def slice_of(x: Operand, axis: int, start: int, end: int) -> Call:
    """x[start:end] along an axis, as a pattern."""
    return call("aten.slice.Tensor", x, axis, start, end)


def bound(match: Match, wild: Wild) -> Binding:
    """What the wildcard stands for."""
    binding = getattr(match, wild.name)
    assert isinstance(binding, Binding)
    return binding


def joined_bias(match: Match, *sides: tuple[Wild, int]) -> Operand:
    """The biases of so many channels each, one after the other, zeros where there is none; None if
    there is none at all."""
    if all(bound(match, bias).type is None for bias, _ in sides):
        return None
    return cat(tuple(bias_of(match, bias, channels) for bias, channels in sides))


def bias_of(match: Match, bias: Wild, channels: int) -> Pattern:
    """The bias, or as many zeros if there is none."""
    if bound(match, bias).type is not None:
        return bias
    return call("aten.full.default", (channels,), 0.0, match.root.type.dtype)


def not_constant(match: Match, *names: str) -> Refused | None:
    """Which of these is computed on the way, so that joining it anew for each input would cost
    more than is saved; None if all are constants or not there."""
    return computed(match, *(match.bound[name] for name in names))


def computed(match: Match, *args: Arg) -> Refused | None:
    """The same of arguments."""
    for arg in args:
        if isinstance(arg, Ref) and arg.name not in match.value_facts.constant:
            return Refused(f"%{arg.name} is no constant: to join it would cost a copy each time")
    return None


def refuses(make: Callable[[Match], T | Refused]) -> When:
    """The condition that something can be made of the match."""

    def when(match: Match) -> Refused | None:
        result = make(match)
        return result if isinstance(result, Refused) else None

    return when


def unrefused(make: Callable[[Match], T | Refused]) -> Callable[[Match], T]:
    """What is made of a match that this condition lets pass."""

    def put(match: Match) -> T:
        result = make(match)
        assert not isinstance(result, Refused)
        return result

    return put

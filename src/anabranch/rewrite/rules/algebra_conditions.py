"""What the tables of algebra ask again and again: one dtype, one shape, a number; both directions.

A law of algebra holds for tensors of one floating dtype. Where operands are promoted, the other
side would be rounded elsewhere; whole numbers wrap around and booleans saturate.

    when=every(floating("x", "y"), alike("x", "y"))     None, or the first refusal
"""

from __future__ import annotations

import re
from collections.abc import Callable

from anabranch.ir.graph import Arg, Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, When, wildcards
from anabranch.ir.rule_text import parse_pattern
from anabranch.ir.text import text_arg
from anabranch.ir.types import TensorType
from anabranch.rewrite.pattern_ops import WORDS, pattern


def both(left: str, right: str, sides: tuple[Call, Call], when: When, draw: Draw) -> list[Rule]:
    """The equation in both directions; `when` and `draw` hold for either side."""
    one, two = sides
    assert set(wildcards(one)) == set(wildcards(two)), (left, right)
    return [
        Rule(f"{left} -> {right}", find=one, replace=two, when=when, draw=draw),
        Rule(f"{right} -> {left}", find=two, replace=one, when=when, draw=draw),
    ]


def equations(*texts: str, when: When | None = None, draw: Draw | None = None) -> list[Rule]:
    """The rules that these say, `left -> right`, or with `left = right` both ways. The condition
    and the draw hold for either side.

    >>> [rule.name for rule in equations("x*s + y*s = (x + y)*s")]
    ['x*s + y*s -> (x + y)*s', '(x + y)*s -> x*s + y*s']
    """
    rules: list[Rule] = []
    for text in texts:
        one, sign, two = re.split(" (=|->) ", text)
        sides = [(one, two), (two, one)] if sign == "=" else [(one, two)]
        for left, right in sides:
            put = parse_pattern(right, WORDS)
            assert isinstance(put, Pattern), text
            rules.append(Rule(f"{left} -> {right}", pattern(left), put, when, draw))
    return rules


def every(*conditions: When) -> When:
    """All of them: the refusal of the first that does not hold."""

    def holds(match: Match) -> Refused | None:
        answers = (condition(match) for condition in conditions)
        return next((refused for refused in answers if refused), None)

    return holds


def types_of(match: Match, *names: str) -> list[TensorType] | Refused:
    """The types of what these wildcards stand for, several values each or one; or which is none."""
    found = []
    for name in names:
        arg = match.bound[name]
        for item in arg if isinstance(arg, tuple) else (arg,):
            if not isinstance(item, Ref):
                return Refused(f"{name} is {text_arg(item)} and no tensor")
            found.append(match.known.types[item.name])
    return found


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


def alike(*names: str) -> When:
    """Whether they are tensors of one shape and floating dtype."""

    def holds(match: Match) -> Refused | None:
        types = types_of(match, *names)
        if isinstance(types, Refused):
            return types
        if len({type.shape for type in types}) > 1:
            return Refused(f"{', '.join(names)} are of several shapes")
        return None

    return every(floating(*names), holds)


def matrices(*names: str) -> When:
    """Whether none of them is a vector, which a product takes for a row or a column as it likes."""

    def holds(match: Match) -> Refused | None:
        vectors = [name for name in names if len(match.known.types[_name(match, name)].shape) < 2]
        return Refused(f"{vectors[0]} is a vector") if vectors else None

    return holds


def number(name: str) -> When:
    """Whether it is a number, and not a tensor."""

    def holds(match: Match) -> Refused | None:
        arg = match.bound[name]
        return Refused.unless(is_number(arg), f"{name} is {text_arg(arg)} and no number")

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


def folded(op: Callable[[Operand, Operand], Pattern], terms: list[Pattern]) -> Pattern:
    """The terms put together by pairs of pairs, so that the depth grows with the logarithm."""
    while len(terms) > 1:
        pairs = [op(*terms[i : i + 2]) for i in range(0, len(terms) - 1, 2)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def _name(match: Match, name: str) -> str:
    arg = match.bound[name]
    assert isinstance(arg, Ref)
    return arg.name

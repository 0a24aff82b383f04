"""Rules that were found and not written: the equations of `found.json`, as rules that might help.

An equation holds for shapes of a certain form. Each tensor's is a list of letters, a letter is one
size wherever it stands, and "..." at the end is any further axes, the same for all:

    x: "N C ..."   y: "N D ..."     relu(cat([x, y], 1)) -> cat([relu(x), relu(y)], 1)

A letter may also stand where an operator takes a size, as the end of a slice: a match has to say
the size itself there, and a replacement is told it. `anabranch discover` writes the file anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from anabranch.ir.graph import Ref
from anabranch.ir.refused import Refused
from anabranch.ir.rule import (
    Call,
    Draw,
    Match,
    Operand,
    Pattern,
    Patterns,
    Rule,
    When,
    Wild,
    wildcards,
)
from anabranch.ir.rule_text import parse_pattern
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules.algebra_conditions import every, floating, number
from anabranch.rewrite.rules.conv_windows import spread
from anabranch.rewrite.rules.shapes import Drawing, OneOf, WindowChoices

FILE = Path(__file__).with_name("found.json")

Shape = tuple[str, ...]
Shapes = Mapping[str, Shape]
BoundSizes = dict[str, int | tuple[int, ...]]
"""What the letters stand for, and "..." as well."""

MORE = "..."
WINDOW, AVERAGED, LARGEST = "window", "averaged", "largest"
"""The wildcards for how a convolution, an average and a largest number walk along their input."""


@dataclass(frozen=True, slots=True)
class Equation:
    """find -> replace for tensors of these shapes, as text; `written`: the rule in another table
    that does the same; `special`: as of a rule."""

    name: str
    find: str
    replace: str
    shapes: Shapes
    written: str = ""
    special: bool = False

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Equation:
        """The equation of an entry of `found.json`; KeyError where it lacks a field."""
        shapes = {name: tuple(shape.split()) for name, shape in entry["shapes"].items()}
        return Equation(
            *(entry["name"], entry["find"], entry["replace"], shapes),
            *(entry.get("written", ""), entry.get("special", False)),
        )

    @property
    def entry(self) -> dict[str, object]:
        """As it stands in the file."""
        shapes = {name: " ".join(shape) for name, shape in self.shapes.items()}
        found = {"name": self.name, "find": self.find, "replace": self.replace, "shapes": shapes}
        found |= {"written": self.written} if self.written else {}
        return found | ({"special": True} if self.special else {})


def load(text: str) -> tuple[Equation, ...]:
    """The equations of a file."""
    return tuple(Equation.of(entry) for entry in json.loads(text)["rules"])


def rule(equation: Equation) -> Rule:
    """The equation as a rule that checks the shapes, and draws them for its test."""
    find, replace = parse_pattern(equation.find), parse_pattern(equation.replace)
    assert _calls(find) and _patterns(replace)
    shapes = equation.shapes
    told = set(wildcards(find))
    tensors = [name for name in shapes if name in told]
    numbers = sorted(told - set(tensors) - letters(shapes) - PLAIN_ARGUMENTS.keys())
    conditions: list[When] = [floating(*tensors), _fitting(shapes, told), *map(number, numbers)]
    conditions += [plain for name, plain in PLAIN_ARGUMENTS.items() if name in told]
    asked = set(wildcards(replace)) - told

    def put(match: Match) -> Patterns:
        given = unify(shapes, _shapes(match, tensors))
        assert not isinstance(given, Refused)
        filled = fill(replace, {name: given[name] for name in asked})
        assert _patterns(filled)
        return filled

    return Rule(
        equation.name,
        find=find,
        replace=put if asked else replace,
        when=every(*conditions),
        draw=_drawing(shapes, told, numbers),
        special=equation.special,
    )


def _calls(side: Operand) -> TypeGuard[Call | tuple[Call, ...]]:
    """Whether it is a call, or several."""
    return isinstance(side, Call) or (isinstance(side, tuple) and all(map(_calls, side)))


def _patterns(side: Operand) -> TypeGuard[Patterns]:
    """Whether it is a pattern, or several."""
    return isinstance(side, Pattern) or (isinstance(side, tuple) and all(map(_patterns, side)))


def letters(shapes: Shapes) -> set[str]:
    """The letters of all shapes, each one size wherever it stands."""
    return {letter for shape in shapes.values() for letter in shape}


def unify(shapes: Shapes, found: Mapping[str, tuple[int, ...]]) -> BoundSizes | Refused:
    """What the letters stand for if these are the tensors' shapes; or which shape is no instance of
    its letters."""
    known: BoundSizes = {}
    for name, shape in found.items():
        wanted = shapes[name]
        fixed = wanted[:-1] if wanted[-1:] == (MORE,) else wanted
        if len(shape) < len(fixed) or (fixed == wanted and len(shape) != len(fixed)):
            return Refused(f"{name} has {len(shape)} axes")
        pairs = [*zip(fixed, shape, strict=False)]
        more = [(MORE, shape[len(fixed) :])] if fixed != wanted else []
        sizes: list[tuple[str, int | tuple[int, ...]]] = [*pairs, *more]
        for letter, size in sizes:
            if known.setdefault(letter, size) != size:
                return Refused(f"{name} is {shape}, and {letter} is {known[letter]} elsewhere")
    return known


def fill(pattern: Operand, values: Mapping[str, Operand]) -> Operand:
    """The pattern with these wildcards replaced."""
    if isinstance(pattern, Wild):
        return values.get(pattern.name, pattern)
    if isinstance(pattern, Call):
        args = tuple(fill(arg, values) for arg in pattern.args)
        return Call(pattern.op, args, pattern.rest)
    return tuple(fill(item, values) for item in pattern) if isinstance(pattern, tuple) else pattern


def _shapes(match: Match, names: list[str]) -> dict[str, tuple[int, ...]]:
    found = {name: match.bound[name] for name in names}
    return {
        name: match.known.types[arg.name].shape
        for name, arg in found.items()
        if isinstance(arg, Ref)
    }


def _fitting(shapes: Shapes, told: set[str]) -> When:
    """Whether the tensors have the shapes, and the sizes that the pattern binds are theirs."""

    def fits(match: Match) -> Refused | None:
        known = unify(shapes, _shapes(match, [name for name in shapes if name in told]))
        if isinstance(known, Refused):
            return known
        for letter in sorted(told & letters(shapes)):
            given = match.bound[letter]
            if given != known.get(letter):
                return Refused(f"{letter} is {given}, and not {known.get(letter)}")
        return None

    return fits


def _one_group(match: Match) -> Refused | None:
    rest = match.bound[WINDOW]
    assert isinstance(rest, tuple)
    return Refused.unless(rest[3] is False and rest[5] == 1, "it is transposed or has groups")


def _whole_average(match: Match) -> Refused | None:
    rest = match.bound[AVERAGED]
    assert isinstance(rest, tuple)
    return Refused.unless(rest[3] is False, "its last windows are cut short")


def _whole_largest(match: Match) -> Refused | None:
    rest = match.bound[LARGEST]
    assert isinstance(rest, tuple)
    dense = set(spread(rest[3], 2)) == {1}
    return Refused.unless(
        dense and rest[4] is False, "it has windows that may see nothing but padding"
    )


PLAIN_ARGUMENTS: Mapping[str, When] = {
    WINDOW: _one_group,
    AVERAGED: _whole_average,
    LARGEST: _whole_largest,
}
"""When a window is one of those that an equation was tried with."""


POOLING = ("taps sizes", "strides sizes", "paddings sizes")
WALKS: Mapping[str, object] = {
    WINDOW: WindowChoices((2,)),
    AVERAGED: (*POOLING, False, OneOf(True, False), OneOf(None, None, 2, -4)),
    LARGEST: (*POOLING, (1, 1), False),
}
POOL = WindowChoices((2,), dilation=(1,), half=True)
WALKED = {"R": "taps.0", "Q": "taps.1"}
WALKED |= {letter: f"room.{axis}" for axis, pair in enumerate(("HI", "WJ")) for letter in pair}
"""Letters for the kernel of a window, and for an input that has room for it."""


def _drawing(shapes: Shapes, told: set[str], numbers: list[str]) -> Draw:
    entries: dict[str, object] = {
        name: " ".join(shape) for name, shape in shapes.items() if name in told
    }
    entries |= dict.fromkeys(numbers, OneOf(2, -3, 0.5, -0.5))
    entries |= {name: walk for name, walk in WALKS.items() if name in told}
    entries |= WALKED if told & WALKS.keys() else {}
    entries |= {"POOL": POOL} if told & {AVERAGED, LARGEST} else {}
    entries["MORE"] = range(1 if (MORE,) in shapes.values() else 0, 3)

    def draw(dice: random.Random) -> Mapping[str, object]:
        given = Drawing(dice, entries)
        return given.all() | {one: given.size(one) for one in sorted(told & letters(shapes))}

    return draw


def tensor(shape: Shape, known: BoundSizes) -> TensorType:
    """A tensor of this shape."""
    found: list[int] = []
    for letter in shape:
        size = known[letter]
        found += size if isinstance(size, tuple) else (size,)
    return TensorType(tuple(found), torch.float32)


EQUATIONS = load(FILE.read_text(encoding="utf-8")) if FILE.exists() else ()
RULES: tuple[Rule, ...] = tuple(rule(each) for each in EQUATIONS if not each.written)
"""Those that no other table has."""

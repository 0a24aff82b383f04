"""Rules that were found and not written: the equations of `found.json`, as rules that might help.

An equation holds for shapes of a certain form. Each tensor's is a list of letters, a letter is one
size wherever it stands, and "..." at the end is any further axes, the same for all:

    x: "N C ..."   y: "N D ..."     relu(cat([x, y], 1)) -> cat([relu(x), relu(y)], 1)

A letter may also stand where an operator takes a size, as the end of a slice: a match has to say
the size itself there, and a replacement is told it. `anabranch discover` writes the file anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.rule import Match, Rule, When, wildcards
from anabranch.ir.rule_text import parse_pattern
from anabranch.ir.types import TensorType
from anabranch.rewrite.rules import notation
from anabranch.rewrite.rules import shapes as rule_shapes
from anabranch.rewrite.rules.algebra_conditions import every
from anabranch.rewrite.rules.conv_windows import spread
from anabranch.rewrite.rules.drawing import OneOf, WindowChoices
from anabranch.rewrite.rules.size_letters import BoundSizes

FILE = Path(__file__).with_name("found.json")

Shape = tuple[str, ...]
Shapes = Mapping[str, Shape]
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
        fields = {"name": self.name, "find": self.find, "replace": self.replace, "shapes": shapes}
        fields |= {"written": self.written} if self.written else {}
        return fields | ({"special": True} if self.special else {})


def load(text: str) -> tuple[Equation, ...]:
    """The equations of a file."""
    return tuple(Equation.of(entry) for entry in json.loads(text)["rules"])


def rule(equation: Equation) -> Rule:
    """The equation as a rule that checks the shapes, and draws them for its test."""
    told = set(wildcards(parse_pattern(equation.find)))
    plain = [condition for name, condition in PLAIN_ARGUMENTS.items() if name in told]
    return notation.equation(
        equation.name,
        _drawing(equation.shapes, told),
        every(*plain) if plain else None,
        find=equation.find,
        put=equation.replace,
        words={},
        special=equation.special,
    )


def letters(shapes: Shapes) -> set[str]:
    """The letters of all shapes, each one size wherever it stands."""
    return {letter for shape in shapes.values() for letter in shape}


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


PLAIN_ARGUMENTS: Mapping[str, When] = {AVERAGED: _whole_average, LARGEST: _whole_largest}
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


def _drawing(shapes: Shapes, told: set[str]) -> rule_shapes.RuleShapes:
    bound = sorted(told & letters(shapes))
    numbers = told - {*shapes, *bound, *WALKS}
    entries: dict[str, object] = {
        name: " ".join(shape) for name, shape in shapes.items() if name in told
    }
    entries |= dict.fromkeys(sorted(numbers), OneOf(2, -3, 0.5, -0.5))
    entries |= {name: walk for name, walk in WALKS.items() if name in told}
    entries |= WALKED if told & WALKS.keys() else {}
    entries |= {"POOL": POOL} if told & {AVERAGED, LARGEST} else {}
    entries["MORE"] = range(1 if (MORE,) in shapes.values() else 0, 3)
    return rule_shapes.RuleShapes(entries, tuple(bound))


def tensor(shape: Shape, size_of: BoundSizes) -> TensorType:
    """A tensor of this shape."""
    sizes: list[int] = []
    for letter in shape:
        size = size_of[letter]
        sizes += size if isinstance(size, tuple) else (size,)
    return TensorType(tuple(sizes), torch.float32)


EQUATIONS = load(FILE.read_text(encoding="utf-8")) if FILE.exists() else ()
RULES: tuple[Rule, ...] = tuple(rule(each) for each in EQUATIONS if not each.written)
"""Those that no other table has."""

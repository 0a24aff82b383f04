"""How rules are written: what is found and put as text, and the shapes for which it holds.

>>> print(text_rule(equation(
...     "mm(cat([x, y], axis), w) -> mm(x, slice(w, 0, 0, K)) + mm(y, slice(w, 0, K, K + P))",
...     "x: N K; y: N P; w: K+P M; axis: K of x",
... )))
rule mm(cat([x, y], axis), w) -> mm(x, slice(w, 0, 0, K)) + mm(y, slice(w, 0, K, K + P))
  find    aten.mm.default(aten.cat.default([x, y], axis), w)
  replace aten.add.Tensor(aten.mm.default(x, aten.slice.Tensor(w, 0, 0, K)), \
aten.mm.default(y, aten.slice.Tensor(w, 0, K, aten.add.Tensor(K, P))))
  when    x: N K; y: N P; w: K+P M; axis: K of x

A capital letter that is put is the size that the shapes give it. A right side whose structure
depends on numbers is a function of the match. `equations` gives the rules of several texts, and
with `=` of both directions; found rules are written in the same way, in `found.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from anabranch.ir.graph import Node
from anabranch.ir.refused import Refused
from anabranch.ir.rule import (
    Call,
    Draw,
    GlobalScope,
    Match,
    Operand,
    Pattern,
    Patterns,
    Rule,
    When,
    text_pattern,
    text_rule,
    wildcards,
)
from anabranch.ir.rule_text import parse_pattern
from anabranch.rewrite.pattern_ops import WORDS
from anabranch.rewrite.rules.algebra_conditions import Conditions
from anabranch.rewrite.rules.shapes import AnyShapes
from anabranch.rewrite.rules.shapes import shapes as written
from anabranch.rewrite.rules.shapes_condition import AnyCondition, ShapesCondition, fill

__all__ = ["equation", "equations", "text_rule"]

CAPTURED = re.compile(r", \*\w+")
"""Arguments that are captured as a whole: a name of a rule says nothing of them."""


@dataclass(frozen=True, slots=True)
class SizedReplacement:
    """A replacement with letters in it, for the sizes of a match, or with values that may be
    None."""

    pattern: Patterns
    fitting: ShapesCondition | AnyCondition

    @property
    def text(self) -> str:
        """The pattern as text."""
        return text_pattern(self.pattern)

    def __call__(self, match: Match) -> Patterns:
        sizes = self.fitting.sizes(match)
        assert not isinstance(sizes, Refused), sizes
        absent = {name: None for name in self.fitting.optional if match.bound.get(name) is None}
        put = fill(self.pattern, {**sizes, **absent})
        assert _patterns(put)
        return put


def equation(
    name: str,
    shapes: str | AnyShapes | None = None,
    when: When | None = None,
    *,
    draw: Draw | None = None,
    find: str | Call | tuple[Call, ...] = "",
    put: str | Patterns | Callable[[Match], Patterns] = "",
    words: Mapping[str, str] = WORDS,
    scope: GlobalScope = "",
    also: Callable[[Match], tuple[Node, ...]] | None = None,
    special: bool = False,
) -> Rule:
    """The rule of an equation `left -> right`. `shapes`: those of its values, which are its
    condition and are drawn for its test, unless `draw` says what is drawn; `when`: what else must
    hold; `find` and `put`: what stands for a side that the name says in words; the rest is as of
    `Rule`."""
    left, _, right = name.partition(" -> ")
    pattern = parse_pattern(find or left, words) if isinstance(find, str) else find
    assert _calls(pattern), name
    said = parse_pattern(put or right, words) if isinstance(put, str) else put
    held = written(shapes) if isinstance(shapes, str) else shapes
    bound = frozenset(wildcards(pattern))
    fitting = held.fitting(bound) if held else None
    conditions = tuple(condition for condition in (fitting, when) if condition)
    if not callable(said):
        assert _patterns(said), name
        put_names = {*wildcards(said)}
        assert fitting or put_names <= bound, f"{name}: nothing says what {put_names - bound} are"
        if fitting and (put_names - bound or put_names & fitting.optional):
            said = SizedReplacement(said, fitting)
    return Rule(
        name if find else CAPTURED.sub("", name),
        *(pattern, said, Conditions(conditions) if conditions else None, draw or held),
        *(scope, also, special),
    )


def equations(
    *texts: str,
    shapes: str | AnyShapes | None = None,
    when: When | None = None,
    draw: Draw | None = None,
) -> list[Rule]:
    """The rules that these say, `left -> right`, or with `left = right` both ways. The shapes and
    the condition hold for either side.

    >>> [rule.name for rule in equations("x*s + y*s = (x + y)*s")]
    ['x*s + y*s -> (x + y)*s', '(x + y)*s -> x*s + y*s']
    """
    rules: list[Rule] = []
    for text in texts:
        first, sign, second = re.split(" (=|->) ", text)
        for left, right in [(first, second), (second, first)] if sign == "=" else [(first, second)]:
            rules.append(equation(f"{left} -> {right}", shapes, when, draw=draw))
    return rules


def _calls(side: Operand) -> TypeGuard[Call | tuple[Call, ...]]:
    """Whether it is a call, or several."""
    return isinstance(side, Call) or (isinstance(side, tuple) and all(map(_calls, side)))


def _patterns(side: Operand) -> TypeGuard[Patterns]:
    """Whether it is a pattern, or several."""
    return isinstance(side, Pattern) or (isinstance(side, tuple) and all(map(_patterns, side)))

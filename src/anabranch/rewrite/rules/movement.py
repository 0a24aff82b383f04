"""Elements that move, and operators that do not care where they stand. Rules that might help.

    relu(transpose(x))               =  transpose(relu(x))         then next to what made x
    transpose(x) + transpose(y)      =  transpose(x + y)           one move for two
    relu(cat([x, y]))                =  cat([relu(x), relu(y)])    two that may run side by side

A move next to another may cancel it; an operator next to the one that made its operand may become
a part of its kernel.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ir.rule import Match, Pattern, Rule, Wild
from anabranch.rewrite.pattern_ops import cat
from anabranch.rewrite.rules.activations import ACTIVATIONS
from anabranch.rewrite.rules.algebra_conditions import values
from anabranch.rewrite.rules.drawing import Drawing, OneOf
from anabranch.rewrite.rules.notation import equation, equations
from anabranch.rewrite.rules.shapes import RuleShapes, shapes

MOST_PARTS = 6
"""Parts of a concatenation in the largest rule."""


def _transposed(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    rank = len(shape)
    return tuple(dice.randrange(-rank, rank) for _ in range(2))


def _permuted(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    axes = list(range(len(shape)))
    dice.shuffle(axes)
    return (tuple(axes),)


def _reshaped(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    return (dice.choice(((-1,), (*shape, 1), (shape[0], -1))),)


def _sliced(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    axis = dice.randrange(-len(shape), len(shape))
    stop = dice.choice((shape[axis], 2**63 - 1, max(1, shape[axis] - 1)))
    return (axis, dice.choice((0, None, shape[axis] // 2)), stop, dice.choice((1, 1, 2)))


def _selected(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    axis = dice.randrange(-len(shape), len(shape))
    return (axis, dice.randrange(-shape[axis], shape[axis]))


def _expanded(dice: random.Random, shape: tuple[int, ...]) -> tuple[object, ...]:
    kept = (dice.choice((2, 3)) if size == 1 else dice.choice((size, -1)) for size in shape)
    return ((dice.randint(1, 3), *kept), False)


@dataclass(frozen=True, slots=True)
class Move:
    """An operator that only moves elements; `draw`: its further arguments for a shape."""

    name: str
    draw: Callable[[random.Random, tuple[int, ...]], tuple[object, ...]]

    def of(self, value: str) -> str:
        """The move of a value, as text; where it moves it is the wildcard `how`."""
        return f"{self.name}({value}, *how)"

    def shapes(self, names: str, **more: object) -> RuleShapes:
        """Tensors of one shape, and how they are moved."""

        def moved(drawing: Drawing) -> tuple[object, ...]:
            return self.draw(drawing.dice, drawing.sizes(["..."]))

        tensors = dict.fromkeys(names.split(), "...")
        return shapes(tensors, {"how": moved}, more, MORE=(1, 2, 3, 4))


SLICE = Move("slice", _sliced)
MOVES = (
    Move("transpose", _transposed),
    Move("permute", _permuted),
    Move("reshape", _reshaped),
    SLICE,
    Move("select", _selected),
    Move("expand", _expanded),
)
WITH_HEADS = ("relu", "sigmoid", "tanh", "gelu")
"""What stands among transposes and reshapes of heads and gates; all others among images, of which
slices are taken alone."""
BINARY = ("add", "sub", "mul")


def past_unary(name: str, move: Move) -> list[Rule]:
    """Both directions of f(move(x)) = move(f(x)) for an activation by name."""
    f = ACTIVATIONS[name]
    text = f"{f.of(move.of('x'))} = {move.of(f.of('x'))}"
    return equations(text, shapes=move.shapes("x", **f.drawn()))


def past_binary(name: str, move: Move) -> list[Rule]:
    """Both directions of f(move(x), move(y)) = move(f(x, y)), for x and y of one shape and
    dtype."""
    text = f"{name}({move.of('x')}, {move.of('y')}) = {move.of(f'{name}(x, y)')}"
    return equations(text, shapes=move.shapes("x y"))


def past_number(move: Move) -> list[Rule]:
    """Both directions of move(x) * s = move(x * s), for a number s."""
    text = f"{move.of('x')} * s = {move.of('x * s')}"
    return equations(text, shapes=move.shapes("x", s=OneOf(2, -0.5)))


def past_cat(name: str) -> list[Rule]:
    """Of all parts, and of each."""
    f = ACTIVATIONS[name]

    def together(count: int) -> Rule:
        leaves = "abcdef"[:count]
        rule_shapes = shapes(
            {leaf: f"A.. {leaf.upper()}0 B.." for leaf in leaves}, f.drawn(), axis="C of A.. C B.."
        )
        return equation(
            f"cat({', '.join(f'{name}({leaf})' for leaf in leaves)})"
            f" -> {name}(cat({', '.join(leaves)}))",
            rule_shapes,
            find=f"cat([{', '.join(map(f.of, leaves))}], axis)",
            put=f.of(f"cat([{', '.join(leaves)}], axis)"),
        )

    def apart(match: Match) -> Pattern:
        return cat(tuple(f(part) for part in values(match, "parts")), Wild("axis"))

    whole = equation(
        f"{name}(cat(parts)) -> cat({name}(part))",
        shapes("parts: A.. [C] B..; axis: C of parts", f.drawn(), PARTS=(1, 2, 3, 4, 5)),
        find=f.of("cat(parts, axis)"),
        put=apart,
        # Whoever makes a part then makes it as it is needed, and where it is needed: what that
        # saves is the launch of the concatenation, for all that waited for it.
        scope="first",
    )
    return [whole, *(together(count) for count in range(2, MOST_PARTS + 1))]


RULES: tuple[Rule, ...] = (
    *(rule for move in MOVES for name in WITH_HEADS for rule in past_unary(name, move)),
    *(rule for name in ACTIVATIONS if name not in WITH_HEADS for rule in past_unary(name, SLICE)),
    *(rule for move in MOVES for name in BINARY for rule in past_binary(name, move)),
    *(rule for move in MOVES for rule in past_number(move)),
    *(rule for name in ACTIVATIONS for rule in past_cat(name)),
)

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

from anabranch.ir.rule import Call, Draw, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import call, cat
from anabranch.rewrite.rules.activations import ACTIVATIONS
from anabranch.rewrite.rules.algebra_conditions import alike, both, every, floating, number, values
from anabranch.rewrite.rules.shapes import Drawing, OneOf, shapes

x, y, s, how, axis, parts = wild("x y s how axis parts")

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
    op: str
    draw: Callable[[random.Random, tuple[int, ...]], tuple[object, ...]]

    def __call__(self, value: Operand) -> Call:
        """The pattern that moves a value; where it moves it is the wildcard `how`."""
        return Call(self.op, (value,), how.name)

    def drawn(self, names: str, **more: object) -> Draw:
        """Tensors of one shape, and how they are moved."""

        def moved(given: Drawing) -> tuple[object, ...]:
            return self.draw(given.dice, given.sizes(["..."]))

        tensors = dict.fromkeys(names.split(), "...")
        return shapes(tensors, {how.name: moved}, more, MORE=(1, 2, 3, 4))


SLICE = Move("slice", "aten.slice.Tensor", _sliced)
MOVES = (
    Move("transpose", "aten.transpose.int", _transposed),
    Move("permute", "aten.permute.default", _permuted),
    Move("reshape", "aten.reshape.default", _reshaped),
    SLICE,
    Move("select", "aten.select.int", _selected),
    Move("expand", "aten.expand.default", _expanded),
)
WITH_HEADS = ("relu", "sigmoid", "tanh", "gelu")
"""What stands among transposes and reshapes of heads and gates; all others among images, of which
slices are taken alone."""
BINARY: dict[str, Callable[[Operand, Operand], Call]] = {
    name: lambda one, two, name=name: call(f"aten.{name}.Tensor", one, two)  # type: ignore[misc]
    for name in ("add", "sub", "mul")
}


def past_unary(name: str, move: Move) -> list[Rule]:
    """Both directions of f(move(x)) = move(f(x)) for an activation by name."""
    f = ACTIVATIONS[name]
    texts = f"{name}({move.name}(x))", f"{move.name}({name}(x))"
    return both(*texts, (f(move(x)), move(f(x))), floating("x"), move.drawn("x", **f.drawn()))


def past_binary(name: str, move: Move) -> list[Rule]:
    """Both directions of f(move(x), move(y)) = move(f(x, y)), for x and y of one shape and
    dtype."""
    f = BINARY[name]
    texts = f"{name}({move.name}(x), {move.name}(y))", f"{move.name}({name}(x, y))"
    return both(*texts, (f(move(x), move(y)), move(f(x, y))), alike("x", "y"), move.drawn("x y"))


def past_number(move: Move) -> list[Rule]:
    """Both directions of move(x) * s = move(x * s), for a number s."""
    condition = every(floating("x"), number("s"))
    draw = move.drawn("x", s=OneOf(2, -0.5))
    return both(
        f"{move.name}(x) * s", f"{move.name}(x * s)", (move(x) * s, move(x * s)), condition, draw
    )


def past_cat(name: str) -> list[Rule]:
    """Of all parts, and of each."""
    f = ACTIVATIONS[name]

    def together(count: int) -> Rule:
        leaves = wild(" ".join("abcdef"[:count]))
        names = [leaf.name for leaf in leaves]

        draw = shapes(
            {leaf: f"A.. {leaf.upper()}0 B.." for leaf in names}, f.drawn(), axis="C of A.. C B.."
        )
        calls = ", ".join(f"{name}({leaf})" for leaf in names)
        return Rule(
            f"cat({calls}) -> {name}(cat({', '.join(names)}))",
            find=cat(tuple(f(leaf) for leaf in leaves), axis),
            replace=f(cat(tuple(leaves), axis)),
            when=floating(*names),
            draw=draw,
        )

    def apart(match: Match) -> Pattern:
        return cat(tuple(f(part) for part in values(match, "parts")), axis)

    whole = Rule(
        f"{name}(cat(parts)) -> cat({name}(part))",
        find=f(cat(parts, axis)),
        replace=apart,
        when=floating("parts"),
        draw=shapes("parts: A.. [C] B..; axis: C of parts", f.drawn(), PARTS=(1, 2, 3, 4, 5)),
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

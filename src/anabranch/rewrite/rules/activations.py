"""Functions of one number that networks put behind their layers, as patterns.

ACTIVATIONS["hardtanh"](x)  =  hardtanh(x, *mode)     `mode`: its bounds, whatever they are
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ir.rule import Call, Operand
from anabranch.rewrite.pattern_ops import WORDS
from anabranch.rewrite.rules.drawing import Drawing


@dataclass(frozen=True, slots=True)
class Activation:
    """`modes`: what it may be told besides its operand; () where there is nothing to tell."""

    name: str
    modes: tuple[tuple[object, ...], ...] = ()

    def of(self, value: str) -> str:
        """It of a value, as text; its bounds or slope are the wildcard `mode`."""
        return f"{self.name}({value}{', *mode' if self.modes else ''})"

    def __call__(self, value: Operand) -> Call:
        """The pattern that applies it to a value."""
        return Call(WORDS[self.name], (value,), "mode" if self.modes else "")

    def drawn(self) -> dict[str, Callable[[Drawing], object]]:
        """What it is told, for the shapes of a rule."""
        return {"mode": lambda drawing: drawing.dice.choice(self.modes)} if self.modes else {}


ACTIVATIONS: dict[str, Activation] = {
    each.name: each
    for each in (
        *map(Activation, ("relu", "sigmoid", "tanh")),
        Activation("gelu", (("none",), ("tanh",))),
        *map(Activation, ("silu", "hardswish")),
        Activation("hardtanh", ((-1.0, 1.0), (0.0, 6.0))),
        Activation("leaky_relu", ((0.01,), (0.2,))),
    )
}

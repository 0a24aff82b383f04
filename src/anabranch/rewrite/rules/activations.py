"""Functions of one number that networks put behind their layers, as patterns.

ACTIVATIONS["hardtanh"](x)  =  hardtanh(x, *mode)     `mode`: its bounds, whatever they are
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from anabranch.ir.rule import Call, Operand, wild
from anabranch.rewrite.rules.shapes import Drawing

(mode,) = wild("mode")


@dataclass(frozen=True, slots=True)
class Activation:
    """`modes`: what it may be told besides its operand; () where there is nothing to tell."""

    op: str
    modes: tuple[tuple[object, ...], ...] = ()

    def __call__(self, value: Operand) -> Call:
        """The pattern that applies it to a value; its bounds or slope are the wildcard `mode`."""
        return Call(self.op, (value,), mode.name if self.modes else "")

    def drawn(self) -> dict[str, Callable[[Drawing], object]]:
        """What it is told, for the shapes of a rule."""
        return {mode.name: lambda given: given.dice.choice(self.modes)} if self.modes else {}


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation("aten.relu.default"),
    "sigmoid": Activation("aten.sigmoid.default"),
    "tanh": Activation("aten.tanh.default"),
    "gelu": Activation("aten.gelu.default", (("none",), ("tanh",))),
    "silu": Activation("aten.silu.default"),
    "hardswish": Activation("aten.hardswish.default"),
    "hardtanh": Activation("aten.hardtanh.default", ((-1.0, 1.0), (0.0, 6.0))),
    "leaky_relu": Activation("aten.leaky_relu.default", ((0.01,), (0.2,))),
}

"""Linears and convolutions, by what rules of both say of them. Rules that might help.

    layer(cat(x, y), w, b)              =  layer(x, w[:, :64], b) + layer(y, w[:, 64:])
    layer(x, w, b) + layer(y, v, c)     =  layer(cat(x, y), cat(w, v), b + c)
    layer(x, w, b)                      =  cat(layer(x, w[:32], b[:32]), layer(x, w[32:], b[32:]))
    layer(x, w, b)[:, 8:]               =  layer(x, w[8:], b[8:])
    layer(x, w, b) + layer(y, w, c)     =  layer(x + y, w, b + c)
    layer(x, w, b)                      =  layer(x, w) + b

From left to right branches appear that can run side by side, and a concatenation is never made;
from right to left there is one launch for several, and a sum is taken in registers. Weights are
joined and cut when constants are folded, so they must be constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

from anabranch.ir.refused import Refused, unless
from anabranch.ir.rule import Call, Match, Operand, Pattern, Rule, wild
from anabranch.rewrite.pattern_ops import cat, linear
from anabranch.rewrite.rules.algebra_conditions import values
from anabranch.rewrite.rules.conv_windows import convolve, rimmed, two_windows, window
from anabranch.rewrite.rules.drawing import OneOf, WindowChoices
from anabranch.rewrite.rules.notation import equation
from anabranch.rewrite.rules.pattern_parts import bound, refuses, slice_of, unrefused
from anabranch.rewrite.rules.shapes import (
    CONVOLUTION,
    END,
    GROUPED,
    LINEAR,
    TRANSPOSED,
    TWO_WINDOWS,
    either,
    shapes,
)

x, y, w, v, b, c = wild("x y w v b c")

MOST_PARTS = 8
"""Parts of a concatenation that are worth a launch each."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A linear or a convolution; `name`: in equations. `axis`: along which the channels of its
    input and of its result lie, those of a linear also with any other axes before them."""

    name: str
    axis: int

    def of(self, x: str, w: str, b: str, rest: str = "window") -> str:
        """As text, with the window that was found."""
        return f"{self.name}({x}, {w}, {b}{'' if self.axis < 0 else f', *{rest}'})"

    def put(self, match: Match, x: Operand, w: Operand, b: Operand) -> Call:
        """With the window of the match."""
        return linear(x, w, b) if self.axis < 0 else convolve(x, w, b, window(match))


LINEARS, CONVOLUTIONS = LayerKind("linear", -1), LayerKind("conv", 1)


def total_bias(match: Match) -> Operand:
    """The sum of b and c, either of which may be None."""
    biases = [each for each in (b, c) if bound(match, each).type is not None]
    return biases[0] + biases[1] if len(biases) == 2 else biases[0] if biases else None


def of_parts(layer: LayerKind) -> Rule:
    """Of a concatenation: a layer of each part, the bias in the first."""

    def when(match: Match) -> Refused | None:
        count = len(values(match, "parts"))
        if count == 1:
            return Refused("its input has one part")
        few = count <= MOST_PARTS
        return Refused.unless(few, f"its input has {count} parts: too many launches")

    def put(match: Match) -> Pattern:
        refs = values(match, "parts")
        sizes = (match.value_facts.types[ref.name].shape[layer.axis] for ref in refs)
        weights = [slice_of(w, 1, *span) for span in pairwise(accumulate(sizes, initial=0))]
        total = layer.put(match, refs[0], weights[0], b)
        for part, weight in zip(refs[1:], weights[1:], strict=True):
            total = total + layer.put(match, part, weight, None)
        return total

    name = layer.name
    return equation(
        f"{name}(cat(x, y), w, b) -> {name}(x, w[:, :x], b) + {name}(y, w[:, x:])",
        shapes("parts: ... [K]; axis: K of parts; w: N sum(K) const; b: N maybe?")
        if layer.axis < 0
        else shapes(
            "parts: B [C] room; axis: C of parts; w: N sum(C) taps const; b: N maybe?",
            window=WindowChoices(),
        ),
        when,
        find=layer.of("cat(parts, axis)", "w", "b"),
        put=put,
    )


def of_sum(layer: LayerKind) -> Rule:
    """Two that are added up, of inputs of one size; windows that fit in one."""

    def put(match: Match) -> Call | Refused:
        if match.x.arg == match.y.arg:
            return Refused("they read one input: their weights can be added")
        both = cat((x, y), layer.axis % len(match.x.shape))
        if layer.axis < 0:
            return linear(both, cat((w, v), 1), total_bias(match))
        windows = two_windows(match)
        if isinstance(windows, Refused):
            return windows
        by, (first, second) = windows
        return convolve(both, cat((rimmed(w, first), rimmed(v, second)), 1), total_bias(match), by)

    other, base = "y: B D room image; v: N D wider const; c: N const?", TWO_WINDOWS
    same = shapes(base, other, RIM=(0,))
    name = layer.name
    return equation(
        f"{name}(x, w, b) + {name}(y, v, c) -> {name}(cat(x, y), cat(w, v), b + c)",
        shapes(LINEAR, "y: ... L; v: N L const; c: N const?")
        if layer.axis < 0
        else either(same, shapes(base, other)),
        refuses(put),
        find=f"{layer.of('x', 'w', 'b')} + {layer.of('y', 'v', 'c', 'other')}",
        put=unrefused(put),
    )


def in_halves(layer: LayerKind) -> Rule:
    """Two of the same input, the first with as many channels as the second or one more."""
    spans = "0, (N + 1) / 2", "(N + 1) / 2, N"
    sides = (layer.of("x", f"slice(w, 0, {of})", f"slice(b, 0, {of})") for of in spans)
    what, name = "column" if layer.axis < 0 else "channel", layer.name
    return equation(
        f"{name}(x, w, b) -> cat({name}(x, w[:half], b[:half]), {name}(x, w[half:], b[half:]))",
        shapes(LINEAR if layer.axis < 0 else CONVOLUTION, N=(2, 3, 4, 5, 7, 8)),
        unless(f"it has one {what} only", lambda match: match.w.shape[0] > 1),
        find=layer.of("x", "w", "b"),
        put=f"cat([{', '.join(sides)}], {layer.axis})",
    )


def cut(layer: LayerKind, what: str) -> Rule:
    """Only the channels that are read."""
    name, rows = layer.name, "0, start, end, step"
    return equation(
        f"slice({name}(x, w, b), {what}) -> {name}(x, slice(w), slice(b))",
        shapes(
            LINEAR | {"axis": "K of x", "MORE": (0, 1, 2)}
            if layer.axis < 0
            else CONVOLUTION | {"axis": "C of x"},
            start=OneOf(0, None, "N/2 size"),
            end=OneOf("N size", END),
            step=OneOf(1, 1, 2),
        ),
        find=f"slice({layer.of('x', 'w', 'b')}, axis, start, end, step)",
        put=layer.of("x", f"slice(w, {rows})", f"slice(b, {rows})"),
    )


def of_inputs(layer: LayerKind) -> list[Rule]:
    """Two inputs of one layer: their biases are two, and of one layer of a sum one."""
    rule_shapes = (
        shapes("x: ... K; y: ... K; w: N K maybe; b: N maybe?; c: N maybe?")
        if layer.axis < 0
        else either(
            shapes(
                *(GROUPED, "y: B G*C room image; w: G*N C taps maybe"),
                "b: G*N maybe?; c: G*N maybe?",
            ),
            shapes(
                *(TRANSPOSED, "y: B G*C room image; w: G*C N taps maybe"),
                "b: G*N maybe?; c: G*N maybe?",
            ),
        )
    )
    name, first = layer.name, layer.of("x", "w", "b")
    return [
        equation(
            f"{name}(x, w, b) + {name}(y, w, c) -> {name}(x + y, w, b + c)",
            rule_shapes,
            find=f"{first} + {layer.of('y', 'w', 'c')}",
            put=layer.of("x + y", "w", "b + c"),
        ),
        equation(
            f"{name}(x + y, w, b) -> {name}(x, w, b) + {name}(y, w)",
            rule_shapes,
            find=layer.of("x + y", "w", "b"),
            put=f"{first} + {layer.of('y', 'w', 'None')}",
        ),
        equation(
            f"{name}(x, w, b) - {name}(y, w, b) -> {name}(x - y, w)",
            rule_shapes,
            find=f"{first} - {layer.of('y', 'w', 'b')}",
            put=layer.of("x - y", "w", "None"),
        ),
    ]


def bias_apart(layer: LayerKind) -> Rule:
    """The bias by itself."""
    name, bias = layer.name, "b" if layer.axis < 0 else "reshape(b, [1, -1, *ones])"
    return equation(
        f"{name}(x, w, b) -> {name}(x, w) + b",
        shapes("x: ... K; w: N K maybe; b: N maybe")
        if layer.axis < 0
        else either(
            shapes(GROUPED, "w: G*N C taps maybe; b: G*N maybe"),
            shapes(TRANSPOSED, "w: G*C N taps maybe; b: G*N maybe"),
        ),
        find=layer.of("x", "w", "b"),
        put=f"{layer.of('x', 'w', 'None')} + {bias}",
    )


CHANNELS: tuple[Rule, ...] = tuple(make(CONVOLUTIONS) for make in (of_parts, of_sum, in_halves))
"""Of convolutions along their channels."""

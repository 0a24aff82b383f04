"""Settings: the operators and symbolic inputs over which small graphs are enumerated.

A letter of a shape is one size wherever it stands. Sizes are small primes, all different, so that
operands fit by their letters and not by accident, and products of a few small integers are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from anabranch.ir.rule import Call, Operand, Wild
from anabranch.rewrite.pattern_ops import call, cat, linear, relu, t
from anabranch.rewrite.rules.found import AVERAGED, LARGEST, MORE, WINDOW, Shapes
from anabranch.rewrite.rules.size_letters import BoundSizes

END = 2**63 - 1
SIZES: BoundSizes = {
    **{"N": 5, "C": 3, "K": 7, "M": 11, "P": 13},
    **{"B": 2, "O": 5, "H": 4, "W": 3, "R": 3, "Q": 3, "I": 9, "J": 10, MORE: (8, 9)},
}
"""What the letters stand for while graphs are enumerated: "..." for many numbers, so that each
order of a few and of their products is among them; I and J so that four poolings of 3x3, one behind
the other, do not see all of an image from everywhere."""

NUMBERS = (5, -4, -0.5)
"""What s stands for in each of the draws: of both signs, less than one too, no sum of few ones."""

PARTS = (1, 4, 8)
"""Into how many parts whole numbers are cut in each draw: x*x >= x holds for whole numbers and not
for others, 4*x*x + x >= 0 for quarters too. Products of a few eighths are exact as well."""

WINDOWS: Mapping[str, tuple[object, ...]] = {
    WINDOW: ((1, 1), (1, 1), (1, 1), False, (0, 0), 1),
    AVERAGED: ((3, 3), (1, 1), (1, 1), False, True, 8),
    LARGEST: ((3, 3), (1, 1), (1, 1), (1, 1), False),
}
"""How all convolutions and poolings walk along their inputs while graphs are enumerated: by 3x3,
and what they make is as large. An average is divided by eight, which doubles do exactly."""

Build = Callable[..., Call]


SPARE = 3
"""How many more inputs there are for each."""

Size = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operator:
    """How many operands it has, the call of them, whether their order does not matter, and whether
    it is meant for operands of these shapes at all: an image is no weight, though torch would take
    it for one."""

    arity: int
    build: Build
    commutes: bool = False
    meant: Callable[..., bool] = lambda *shapes: True


def _both(name: str) -> Build:
    return lambda left, right: call(f"aten.{name}", left, right)


def _image(shape: Size) -> bool:
    return shape[2:] == (SIZES["H"], SIZES["W"])


def _wide(shape: Size) -> bool:
    return shape[2:] == (SIZES["I"], SIZES["J"])


def _cuts(axis: int, letter: str) -> dict[str, Operator]:
    """The first so many along an axis, and what is behind them: the halves of what was joined."""
    size = Wild(letter)

    def joined(shape: Size) -> bool:
        whole = SIZES[letter]
        return isinstance(whole, int) and len(shape) > axis and shape[axis] == 2 * whole

    def piece(start: Operand, end: Operand) -> Build:
        return lambda x: call("aten.slice.Tensor", x, axis, start, end)

    return {
        f"head{axis}{letter}": Operator(1, piece(0, size), meant=joined),
        f"tail{axis}{letter}": Operator(1, piece(size, END), meant=joined),
    }


OPERATORS: dict[str, Operator] = {
    "add": Operator(2, _both("add.Tensor"), commutes=True),
    "mul": Operator(2, _both("mul.Tensor"), commutes=True),
    "sub": Operator(2, _both("sub.Tensor")),
    "maximum": Operator(2, _both("maximum.default"), commutes=True),
    "matmul": Operator(2, _both("matmul.default")),
    "relu": Operator(1, relu),
    "t": Operator(1, t),
    "twice": Operator(1, lambda x: call("aten.mul.Tensor", x, 2)),
    "scale": Operator(1, lambda x: call("aten.mul.Tensor", x, Wild("s"))),
    "cat0": Operator(2, lambda x, y: cat((x, y), 0)),
    "cat1": Operator(2, lambda x, y: cat((x, y), 1)),
    "conv": Operator(
        2,
        lambda x, w: Call("aten.convolution.default", (x, w, None), WINDOW),
        meant=lambda x, w: _image(x) and w[2:] == (SIZES["R"], SIZES["Q"]),
    ),
    "biased": Operator(
        3,
        lambda x, w, b: Call("aten.convolution.default", (x, w, b), WINDOW),
        meant=lambda x, w, b: _image(x) and len(w) == 4 and len(b) == 1,
    ),
    "linear": Operator(3, linear, meant=lambda x, w, b: (len(x), len(w), len(b)) == (3, 2, 1)),
    "average": Operator(1, lambda x: Call("aten.avg_pool2d.default", (x,), AVERAGED), meant=_wide),
    "largest": Operator(1, lambda x: Call("aten.max_pool2d.default", (x,), LARGEST), meant=_wide),
    "cat2": Operator(2, lambda x, y: cat((x, y), 2)),
    **_cuts(0, "B"),
    **_cuts(0, "N"),
    **_cuts(1, "N"),
    **_cuts(1, "C"),
    **_cuts(1, "K"),
    **_cuts(1, "M"),
    **_cuts(1, "O"),
    **_cuts(2, "M"),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Symbolic inputs and the operators on them."""

    inputs: Shapes
    operators: tuple[str, ...]

    @property
    def spare(self) -> Shapes:
        """Further inputs of the same shapes, for equations that turn out to hold for more of them
        than they were found with."""
        return {
            f"{name}{i}": shape for name, shape in self.inputs.items() for i in range(1, SPARE + 1)
        }


def _shapes(**shapes: str) -> Shapes:
    return {name: tuple(shape.split()) for name, shape in shapes.items()}


SETTINGS: Mapping[str, Setting] = {
    "elements": Setting(
        _shapes(x="...", y="...", z="..."),
        ("add", "mul", "relu", "scale", "twice"),
    ),
    "extremes": Setting(
        _shapes(x="...", y="...", z="..."),
        ("add", "mul", "relu", "maximum"),
    ),
    "differences": Setting(
        _shapes(x="...", y="...", z="..."),
        ("add", "sub", "mul", "relu"),
    ),
    "matrices": Setting(
        _shapes(x="N K", y="N K", a="K M", b="K M", c="M P"),
        ("matmul", "add", "scale", "t", "relu"),
    ),
    "pieces": Setting(
        _shapes(x="N C ...", y="N C ...", z="N C ..."),
        ("cat0", "cat1", "head1C", "tail1C", "add", "mul", "relu", "scale"),
    ),
    "columns": Setting(
        _shapes(x="N K", y="N K", a="K M", b="K M"),
        ("matmul", "add", "cat0", "cat1", "head0N", "tail0N", "head1M", "tail1M"),
    ),
    "transposed": Setting(
        _shapes(x="N K", y="N K"),
        ("t", "add", "mul", "relu", "cat0", "cat1", "head0N", "tail0N", "head1K", "tail1K"),
    ),
    "images": Setting(
        _shapes(x="B C H W", y="B C H W", w="O C R Q", v="O C R Q"),
        ("conv", "add", "cat0", "cat1", "head0B", "tail0B", "head1O", "tail1O", "scale"),
    ),
    "channels": Setting(
        _shapes(x="B C H W", y="B C H W", w="O C R Q", v="O C R Q", b="O", c="O"),
        ("biased", "add", "cat0", "cat1", "head0B", "tail0B", "head1O", "tail1O"),
    ),
    "layers": Setting(
        _shapes(x="B N K", y="B N K", w="M K", v="M K", b="M", c="M"),
        ("linear", "add", "cat0", "cat1", "cat2", "head1N", "tail1N", "head2M", "tail2M"),
    ),
    "pooled": Setting(
        _shapes(x="B C I J", y="B C I J"),
        (
            *("average", "largest", "add", "relu", "maximum", "scale"),
            *("cat0", "cat1", "head0B", "tail0B", "head1C", "tail1C"),
        ),
    ),
    "dense": Setting(
        _shapes(x="N K", z="N M", a="K M", b="K M"),
        ("matmul", "add", "mul", "relu", "cat0", "cat1", "head0N", "tail0N", "head1M", "tail1M"),
    ),
    "convolved": Setting(
        _shapes(x="B C H W", z="B O H W", w="O C R Q", v="O C R Q"),
        ("conv", "add", "mul", "relu", "cat0", "cat1", "head0B", "tail0B", "head1O", "tail1O"),
    ),
}
"""In this order: what holds for any number of axes is known before it is found for two. The last
two have all of TASO's operators on matrices and on images, with what a layer's result is added to
or multiplied by."""

SHIPPED = dict.fromkeys(SETTINGS, 4)
"""Calls of a graph at most, for the file that the package is shipped with: some twelve minutes on
one core, and less than 2 GB."""

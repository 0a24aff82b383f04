"""Which numbers padding has, where that is known, and of which rows the numbers are told.

mask = arange(n) < lengths     the padding's own row numbers are larger than all others
x.masked_fill(~mask, -inf)     the padding of the result is -inf
(x * mask).sum(1)              ... is 0, whatever x is there
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from anabranch.frontend.padded_axes import CARRIED, MADE, Number, PaddedAxis, PaddedCall
from anabranch.ir import ops
from anabranch.ir.graph import Arg, Node, Ref
from anabranch.ir.ops import arguments
from anabranch.ir.types import TensorType

COMPARISONS: Mapping[str, Callable[[float], bool]] = {
    "aten.le": lambda d: d <= 0,
    "aten.lt": lambda d: d < 0,
    "aten.ge": lambda d: d >= 0,
    "aten.gt": lambda d: d > 0,
    "aten.eq": lambda d: d == 0,
    "aten.ne": lambda d: d != 0,
}
EXACT = (torch.int32, torch.int64, torch.float32, torch.float64)
"""Types in which row numbers stay apart: bfloat16 takes 257 for 256, and uint8 for 1."""
ADDING = ("aten.addmm", "aten.baddbmm")
"""Operators that add a product to their first operand, such as a mask."""


@dataclass(slots=True)
class PaddingNumbers:
    """What is known of numbers, value by value. `axes`: where values have rows, of which this fills
    in the numbers of the padding; `types` and `shapes`: of the values that were met."""

    axes: dict[str, tuple[PaddedAxis, ...]]
    types: Mapping[str, TensorType]
    shapes: Mapping[str, tuple[int, ...]]
    content: dict[str, Number] = field(default_factory=dict)
    """Values all of whose elements, padding aside, are one number."""

    def fill(self, name: str, node: Node, call: PaddedCall) -> None:
        """What is known of the numbers of a result: of all of it, and of its padding."""
        result = node.results[0]
        if name in CARRIED:
            if node.uses and node.uses[0] in self.content:
                self.content[result] = self.content[node.uses[0]]
            return  # and their axes are as they were
        whole = self._evaluated(name, node, self.content.get)
        if whole is not None:
            self.content[result] = whole
        filled = []
        for rows in self.axes.get(result, ()):
            fill = self._evaluated(name, node, partial(self._at, rows=rows, node=node))
            if fill is None and name in COMPARISONS:
                fill = self._compared(name, node, call, rows)
            counts = self._counted(name, node, call, rows)
            filled.append(replace(rows, fill=fill, counts=counts))
        if filled:
            self.axes[result] = tuple(filled)

    def fill_added(self, node: Node, call: PaddedCall) -> None:
        """What is known of a sum with a product: an infinite operand remains as it is."""
        (first,), result = call.refs("self"), node.results[0]
        if call.arguments.get("beta", 1) != 1 or result not in self.axes:
            return
        filled = []
        for rows in self.axes[result]:
            fill = self._at(first, rows, node)
            infinite = isinstance(fill, float) and math.isinf(fill)
            filled.append(replace(rows, fill=fill) if infinite else rows)
        self.axes[result] = tuple(filled)

    def _at(self, value: str, rows: PaddedAxis, node: Node) -> Number | None:
        """The number that an operand has in the padding of this axis of the result."""
        shift = len(node.types[0].shape) - len(self.shapes[value])
        for own in self.axes.get(value, ()):
            if own.axis + shift == rows.axis:
                return own.fill
        return self.content.get(value)

    def _evaluated(
        self, name: str, node: Node, get: Callable[[str], Number | None]
    ) -> Number | None:
        """The number that an operator makes of numbers; None where that is not known."""
        if name in ("aten.arange", "aten.empty") or ops.draws(node):
            return None
        numbers = {value: get(value) for value in node.uses}
        if any(number is None for number in numbers.values()):
            return _absorbed(name, arguments(node), numbers)
        if not node.uses:
            if name not in MADE and name != "aten.scalar_tensor":
                return None
            shape = {"aten.full": 1.0, "aten.zeros": 0, "aten.ones": 1}
            args = arguments(node)
            value = args.get("fill_value", args.get("s", shape.get(name)))
            if not isinstance(value, (int, float)):
                return None
            return torch.tensor(value, dtype=node.types[0].dtype).item()
        try:
            tensors = {
                value: torch.tensor(number, dtype=self.types[value].dtype)
                for value, number in numbers.items()
            }
            (result, *_) = ops.call(node, tensors.__getitem__, torch.device("cpu"))
            return result.item() if result.numel() == 1 else None
        except Exception:  # an operator that wants axes, or other numbers than these
            return None

    def _compared(self, name: str, node: Node, call: PaddedCall, rows: PaddedAxis) -> bool | None:
        """Two numbers of rows, of two axes: one of them is padding, and larger."""
        operands = [call.arguments.get(key) for key in ("self", "other")]
        counted = [self._counts(operand, node) for operand in operands]
        if None in counted:
            return None
        (axis, a), (other, b) = counted  # type: ignore[misc]
        if axis == other or rows.axis not in (axis, other):
            return None
        # The padding's number is larger by 1 at least; what is compared changes at 0 alone.
        sign = 1 if rows.axis == axis else -1
        least = 1 + sign * (a - b)
        differences = [least, *(d for d in (0, 1) if d > least), math.inf]
        truths = {COMPARISONS[name](sign * difference) for difference in differences}
        return truths.pop() if len(truths) == 1 else None

    def _counts(self, operand: Arg, node: Node) -> tuple[int, int] | None:
        """The axis of the result whose rows an operand counts, and from which number."""
        if not isinstance(operand, Ref):
            return None
        shift = len(node.types[0].shape) - len(self.shapes[operand.name])
        for own in self.axes.get(operand.name, ()):
            if own.counts is not None:
                return own.axis + shift, own.counts
        return None

    def _counted(self, name: str, node: Node, call: PaddedCall, rows: PaddedAxis) -> int | None:
        """Row numbers stay row numbers where they are copied, or moved by a number."""
        if node.types[0].dtype not in EXACT:
            return None
        if name == "aten.arange":
            return rows.counts
        own = self._counts(call.arguments.get("self"), node)
        if own is None or own[0] != rows.axis:
            return None
        if name in ("aten._to_copy", "aten.clone", "aten.alias") and len(node.uses) == 1:
            return own[1]
        step = call.arguments.get("other")
        step = self.content.get(step.name) if isinstance(step, Ref) else step
        plain = type(step) is int and call.arguments.get("alpha", 1) == 1
        if name in ("aten.add", "aten.sub") and plain:
            assert isinstance(step, int)
            return own[1] + (step if name == "aten.add" else -step)
        return None


def _absorbed(
    name: str, args: Mapping[str, Arg], numbers: Mapping[str, Number | None]
) -> Number | None:
    """The number of a result of which some operands are not known: 0 times anything, say."""

    def number(key: str) -> Number | None:
        value = args.get(key)
        if isinstance(value, Ref):
            return numbers[value.name]
        return value if isinstance(value, (int, float)) else None

    first, other = number("self"), number("other")
    either = [value for value in (first, other) if value is not None]
    plain = args.get("alpha", 1) == 1
    match name.removeprefix("aten."):
        case "mul" | "logical_and" | "bitwise_and" if any(value == 0 for value in either):
            return False if any(value is False for value in either) and name != "aten.mul" else 0
        case "logical_or" if any(either):
            return True
        case "bitwise_or" if any(value is True for value in either):
            return True
        case "add" if plain and (far := [v for v in either if math.isinf(v)]):
            return far[0]
        case "sub" if plain and first is not None and math.isinf(first):
            return first
        case "sub" if plain and other is not None and math.isinf(other):
            return -other
        case "minimum" if -math.inf in either:
            return -math.inf
        case "where" if (chosen := number("condition")) is not None:
            return number("self" if chosen else "other")
        case "masked_fill" if (chosen := number("mask")) is not None:
            return number("value") if chosen else first
    return None

"""A value of a body as a function from an index to an expression, and a call of an operator on such
values: what the tables of lowerings are written in.

    relu:  at(point) = max(x.at(point), 0)
    t:     at(i, j)  = x.at(j, i)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import elementwise_dtypes

from anabranch.ir import ops
from anabranch.ir.graph import Node
from anabranch.ir.rounding import narrower
from anabranch.ir.types import TensorType, meta
from anabranch.kernels.dfg.expr import COMPUTE, Expr, Within
from anabranch.kernels.dfg.index_expr import Index, number
from anabranch.kernels.dfg.simplify import arith, cast, const

Point = tuple[Index, ...]
At = Callable[[Point, Within], Expr]
"""The value at a point; where the bounds do not hold it may be anything, but reads nothing that is
not there."""


class NotLowered(Exception):
    """Why something cannot be lowered, as a sentence."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor as a function. Asked twice for the same point it answers with the same object."""

    type: TensorType
    compute: At
    elements: dict[tuple[Point, Within], Expr] = field(
        default_factory=dict, compare=False, repr=False
    )

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the tensor."""
        return self.type.shape

    def at(self, point: Point, within: Within = ()) -> Expr:
        """The element at this point, read only where `within` holds."""
        assert len(point) == len(self.shape), f"{point} is no index into {self.type.text}"
        key = (point, within)
        if key not in self.elements:
            self.elements[key] = cast(self.compute(point, within), self.type.dtype)
        return self.elements[key]

    def spread(self, point: Point, within: Within = ()) -> Expr:
        """The value broadcast to a space of at least as many dimensions."""
        own = point[len(point) - len(self.shape) :]
        pairs = zip(own, self.shape, strict=True)
        return self.at(tuple(number(0) if n == 1 else i for i, n in pairs), within)


@dataclass(frozen=True, slots=True)
class LoweringCall:
    """A node with its arguments by the names of its schema, values in place of references."""

    node: Node
    arguments: Mapping[str, Any]

    @property
    def type(self) -> TensorType:
        """The type of the call's first result."""
        return self.node.type

    @property
    def dtype(self) -> torch.dtype:
        """What the first result is computed in."""
        return COMPUTE[self.node.type.dtype]

    @property
    def x(self) -> Value:
        """Its first argument, which is the tensor it is about."""
        first: Value = next(iter(self.arguments.values()))
        return first

    def dims(self, name: str) -> tuple[int, ...]:
        """Dimensions as positions in x; None or none means all of them."""
        rank, dims = len(self.x.shape), self.arguments.get(name)
        if dims is None or dims == () or not rank:
            return tuple(range(rank))
        listed = dims if isinstance(dims, tuple) else (dims,)
        return tuple(d % rank for d in listed)

    def dim(self) -> int:
        """The one dimension that "dim" names; NotLowered for a tensor that has none."""
        if not self.x.shape:
            raise NotLowered(f"{self.node.op} along an axis of a tensor without axes")
        return self.dims("dim")[0]


Lowering = Callable[[LoweringCall], tuple[At, ...]]
"""One function for each result; results may be missing at the end, where nothing reads them."""


ROUNDED: dict[torch.dtype, str] = {torch.float16: "as_f16", torch.bfloat16: "as_bf16"}
"""The operation that rounds to a half type, and goes on in fp32."""
HELD_AS_OPERAND = frozenset(
    f"aten.{name}"
    for name in ("remainder", "fmod", "xlogy", "special_xlogy", "softshrink", "hardshrink")
)
"""Where, as where it compares, ATen holds a number beside half tensors in their type; elsewhere in
the type that it computes in."""


def operand(expr: Expr, dtype: torch.dtype, old: torch.dtype) -> Expr:
    """A value of the old type as one that ATen computes with in this one. To a half type, beside
    whose tensors integers and numbers without axes are of that type, it is rounded before."""
    whole = not (old.is_floating_point or old.is_complex) and old.itemsize > 1
    expr = cast(expr, dtype)
    rounds = dtype in ROUNDED and (whole or narrower(dtype, old))
    return arith(ROUNDED[dtype], expr) if rounds else expr


@dataclass(frozen=True, slots=True)
class Operands:
    """The arguments of a pointwise call at one point, as expressions of the type that ATen's
    promotion computes in; numbers become constants of it."""

    call: LoweringCall
    point: Point
    within: Within
    dtype: torch.dtype

    def __getitem__(self, name: str) -> Expr:
        expr = self.get(name)
        assert expr is not None, f"{self.call.node.op} is not given {name}"
        return expr

    def get(self, name: str, dtype: torch.dtype | None = None) -> Expr | None:
        """The operand as an expression of the dtype, by default that of the computation; None if it
        is not given."""
        argument, dtype = self.call.arguments.get(name), dtype or self.dtype
        if isinstance(argument, Value):
            return operand(argument.spread(self.point, self.within), dtype, argument.type.dtype)
        if argument is None:
            return None
        if isinstance(argument, complex | str) or not COMPUTE.get(dtype):
            raise NotLowered(f"{self.call.node.op} with {name}={argument!r} has no lowering")
        held = (
            self.call.type.dtype == torch.bool
            or ops.packet_name(self.call.node.op) in HELD_AS_OPERAND
        )
        if held and dtype.is_floating_point:
            argument = torch.tensor(argument, dtype=dtype).item()
        return const(argument, COMPUTE[dtype])

    def raw(self, name: str) -> Any:
        """The argument as it is given: a value, a number or None."""
        return self.call.arguments.get(name)


Formula = Callable[[Operands], Expr]
"""What a pointwise operator computes at one point."""


def promoted(call: LoweringCall) -> torch.dtype:
    """The type that ATen compares these operands in."""
    args = [
        meta(a.type) if isinstance(a, Value) else a
        for name, a in call.arguments.items()
        if name in ("self", "other") and a is not None
    ]
    return elementwise_dtypes(*args, type_promotion_kind=PROMOTION.DEFAULT)[1]


def arguments(node: Node, values: Mapping[str, Value]) -> LoweringCall:
    """The node's arguments by the names of its schema, with values in place of references."""
    table = {name: _with_values(arg, values) for name, arg in ops.arguments(node).items()}
    return LoweringCall(node, table)


def _with_values(arg: Any, values: Mapping[str, Value]) -> Any:
    if isinstance(arg, tuple):
        return tuple(_with_values(item, values) for item in arg)
    return values[arg.name] if hasattr(arg, "name") and arg.name in values else arg

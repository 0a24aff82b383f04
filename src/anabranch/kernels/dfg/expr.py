"""Dfg: what one launch computes for each point of an index space, as expressions over loads.

This is the data-flow graph of DeepCuts (section 3) in a functional form: a value is a function
from an index to an expression, so putting one function into another is fusion in registers, and
what is equal is computed once. For relu(x + bias) of an NHWC image:

    for n < 1, c < 64, h < 56, w < 56:
      out[n, c, h, w] = f16(max(f32(x[n, c, h, w]) + f32(bias[c]), 0.0))

Expressions know the type they are computed in: fp32 for half types, which are widened when loaded
and rounded once, when stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from anabranch.ir.types import TensorType
from anabranch.kernels.dfg.index_expr import Axis, Index, axes_of, weighted

COMPUTE: dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    **{
        dtype: dtype
        for dtype in (
            *(torch.float32, torch.float64, torch.bool, torch.uint8),
            *(torch.int8, torch.int16, torch.int32, torch.int64),
        )
    },
}
"""What values of each type are computed in; a type that is not listed has no kernels."""


@dataclass(frozen=True, slots=True)
class IndexBound:
    """low <= index < high; the index has no constant, so that equal conditions are equal."""

    index: Index
    low: int
    high: int


class ExprMemo:
    """Facts found out of an expression, which never changes, are kept with the object: equal ones
    each have their own, for provenance and fills differ. Set when first asked for."""

    __slots__ = ("below", "free", "inner", "twin")

    inner: tuple[Expr, ...]
    """`parts`."""
    below: tuple[Expr, ...]
    """`all_parts` without the expression itself, where they are few."""
    free: dict[Axis, None]
    """`free_axes`."""
    twin: Expr
    """One that it is known to be equal to; of all that are equal, one has none."""


MOST_REMEMBERED = 256
"""Parts that are kept with an expression: of long chains each has nearly all of those before."""

Within = tuple[IndexBound, ...]
"""All of these hold; () is always true."""


@dataclass(frozen=True, slots=True)
class BufferLoad(ExprMemo):
    """One element of a value in memory, `fill` where `within` does not hold (then nothing is read).

    Its dtype is the one in memory: `Cast` widens it.
    """

    value: str
    type: TensorType
    index: tuple[Index, ...]
    within: Within = ()
    fill: float | int | bool = field(default=0, compare=False)
    exact: str = field(init=False, repr=False)
    """The fill as its type writes it: 0.0 and -0.0 are two, 0 and 0.0 are one."""
    address: Index = field(init=False, compare=False, repr=False)
    """Elements from the start of the value's memory."""
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", address(self.index, self.type))
        object.__setattr__(self, "exact", _exact(self.fill, self.type.dtype))
        _name(self, "load", self.value, self.type, self.index, self.within, self.exact)

    def __hash__(self) -> int:
        return self.code

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in memory."""
        return self.type.dtype

    @property
    def reads(self) -> tuple[str, ...]:
        """The one value that is read."""
        return (self.value,)


@dataclass(frozen=True, slots=True)
class KernelVariable(ExprMemo):
    """A value that the surrounding kernel has in a variable already, such as an accumulator: `name`
    is how it is spelled, `index` which element of the value it stands for."""

    name: str
    dtype: torch.dtype
    index: tuple[Index, ...] = ()


@dataclass(frozen=True, slots=True)
class Const(ExprMemo):
    """A number. It equals what its type writes alike: 0.0 and -0.0 are two."""

    value: float | int | bool = field(compare=False)
    dtype: torch.dtype
    exact: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "exact", _exact(self.value, self.dtype))


@dataclass(frozen=True, slots=True)
class Position(ExprMemo):
    """An index as a value."""

    index: Index
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Inside(ExprMemo):
    """Whether all bounds hold, as a value."""

    within: Within
    dtype: torch.dtype = torch.bool


@dataclass(frozen=True, slots=True)
class Cast(ExprMemo):
    """`arg` converted to `dtype` with one rounding."""

    arg: Expr
    dtype: torch.dtype
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _name(self, "cast", self.arg, self.dtype)

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)


@dataclass(frozen=True, slots=True)
class Arith(ExprMemo):
    """`op` is a key of `ARITY`; `value_name`: the value of the model that this computes, "" where
    it is only a step on the way; it is provenance."""

    op: str
    args: tuple[Expr, ...]
    dtype: torch.dtype
    value_name: str = field(default="", compare=False)
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        wanted = ARITY.get(self.op)
        assert wanted is not None, f"{self.op!r} is no operation of an expression: see ARITY"
        assert len(self.args) == wanted, f"{self.op} takes {wanted} arguments: {len(self.args)}"
        _name(self, self.op, self.args, self.dtype)

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)


@dataclass(frozen=True, slots=True)
class Reduce(ExprMemo):
    """sum, max or min of `arg` over axes that nothing outside of it sees."""

    op: str
    axes: tuple[Axis, ...]
    arg: Expr
    value_name: str = field(default="", compare=False)
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert self.op in REDUCTIONS, f"{self.op!r} is none of the reductions {REDUCTIONS}"
        assert self.axes, f"a reduction ({self.op}) is over one axis at least"
        _name(self, "reduce", self.op, self.axes, self.arg)

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the accumulator, which is that of `arg`."""
        return self.arg.dtype


@dataclass(frozen=True, slots=True)
class Scan(ExprMemo):
    """The scan of `arg` along an axis that nothing outside of it sees, up to and with the
    place `at`; `reverse`: from there to the end.

        cumsum(x) at i    =  sum[k <= i](x[k])

    `by`: of steps ("step") alone, the factor of what came before: y[k] = by[k] y[k - 1] + arg[k].
    """

    op: str
    axis: Axis
    arg: Expr
    at: Index
    reverse: bool = False
    by: Expr | None = None
    value_name: str = field(default="", compare=False)
    code: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert self.op in SCANS, f"{self.op!r} is none of the scans {SCANS}"
        assert (self.by is not None) == (self.op == "step"), f"{self.op} with the factor {self.by}"
        _name(self, "scan", self.op, self.axis, self.arg, self.at, self.reverse, self.by)

    def __hash__(self) -> int:
        return self.code

    def __eq__(self, other: object) -> bool:
        return _equal(self, other)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the accumulator, which is that of `arg`."""
        return self.arg.dtype


Expr = BufferLoad | KernelVariable | Const | Position | Inside | Cast | Arith | Reduce | Scan

REDUCTIONS = ("sum", "max", "min")
SCANS = ("sum", "prod", "max", "min", "logaddexp", "step")

ARITY: dict[str, int] = {
    **dict.fromkeys(("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "erf"), 1),
    **dict.fromkeys(("exp2", "log2", "floor", "ceil", "sigmoid", "not"), 1),
    **dict.fromkeys(("tanh", "expm1", "log1p", "round", "trunc"), 1),
    **dict.fromkeys(("normal_cdf", "tanh_gate"), 1),
    **dict.fromkeys(("add", "sub", "mul", "div", "max", "min", "rem", "floordiv"), 2),
    **dict.fromkeys(("as_f16", "as_bf16", "sqrt_rn"), 1),
    **dict.fromkeys(("div_rn", "mul_rn", "pow"), 2),
    **dict.fromkeys(
        (f"device_{name}" for name in ("exp", "exp2", "log", "log2", "sin", "cos", "tanh")), 1
    ),
    **dict.fromkeys((f"device_{name}" for name in ("erf", "expm1", "log1p")), 1),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor"), 2),
    **{"where": 3, "fma": 3, "uniform": 4},
}
"""rem and floordiv divide integers towards zero, as the machine does; max and min answer nan if
either argument is. as_f16 and as_bf16 round to what these hold, and go on in fp32. Operations that
end in _rn are rounded to nearest by themselves, by no approximation and not together with another
operation; device_ is the function of the device's mathematical library, as eager calls it.
normal_cdf is (1 + erf(x / sqrt(2))) / 2 and tanh_gate (1 + tanh(x)) / 2, with the digits of half
types. uniform is a random number of a seed, an offset, the number of a draw and a place."""


@dataclass(frozen=True, slots=True)
class BufferStore:
    """One element of a result; the value is rounded to the result's dtype here, once. `where`:
    whether it is stored at all; its index may be computed (`Gathered`) too."""

    value: str
    type: TensorType
    index: tuple[Index, ...]
    expr: Expr
    where: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All that is computed for it: the value, its place, whether it is stored."""
        where = () if self.where is None else (self.where,)
        return (self.expr, *(g for index in self.index for g in _gathers(index)), *where)

    @property
    def address(self) -> Index:
        """Elements from the start of the result's memory."""
        return address(self.index, self.type)


@dataclass(frozen=True, slots=True)
class Dfg:
    """The index space and what is stored at each point of it."""

    axes: tuple[Axis, ...]
    stores: tuple[BufferStore, ...]

    @property
    def points(self) -> int:
        """Points of the index space in all."""
        total = 1
        for axis in self.axes:
            total *= axis.extent
        return total


def address(index: tuple[Index, ...], type: TensorType) -> Index:
    """Where the element is, in elements from the start of the tensor's memory."""
    return weighted(zip(index, type.strides, strict=True))


def parts(expr: Expr) -> tuple[Expr, ...]:
    """The expressions it is made of, one level down; what its indices gather included."""
    try:
        return expr.inner
    except AttributeError:
        inner = _parts(expr)
        object.__setattr__(expr, "inner", inner)
        return inner


def _parts(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case BufferLoad() | KernelVariable() | Position() | Inside():
            return tuple(g for index in _indices(expr) for g in _gathers(index))
        case Cast(arg) | Reduce(arg=arg):
            return (arg,)
        case Scan():
            by = () if expr.by is None else (expr.by,)
            return (expr.arg, *by, *_gathers(expr.at))
        case Arith():
            return expr.args
        case _:
            return ()


def all_parts(*roots: Expr) -> list[Expr]:
    """Every expression below the roots, each once, parts before wholes."""
    if len(roots) == 1:
        return [*_below(roots[0]), roots[0]]
    return list(dict.fromkeys(part for root in roots for part in (*_below(root), root)))


def _below(root: Expr) -> tuple[Expr, ...]:
    """All parts of an expression but itself."""
    try:
        return root.below
    except AttributeError:
        pass
    seen: dict[Expr, None] = {}
    stack = [(part, False) for part in reversed(parts(root))]
    while stack:
        expr, ready = stack.pop()
        if expr in seen:
            continue
        if not ready:
            cached = getattr(expr, "below", None)
            if cached is None:
                stack.append((expr, True))
                stack.extend((part, False) for part in reversed(parts(expr)))
                continue
            for part in cached:
                seen.setdefault(part)
        seen[expr] = None
    below = tuple(seen)
    if len(below) <= MOST_REMEMBERED:
        object.__setattr__(root, "below", below)
    return below


def free_axes(expr: Expr) -> Mapping[Axis, None]:
    """The axes that the expression depends on and does not reduce, in order of appearance."""
    try:
        return expr.free
    except AttributeError:
        return all_free_axes(expr)[expr]


def all_free_axes(*roots: Expr) -> dict[Expr, Mapping[Axis, None]]:
    """Those of every expression below the roots."""
    table: dict[Expr, Mapping[Axis, None]] = {}
    for part in all_parts(*roots):
        free = getattr(part, "free", None)
        if free is None:
            free = _free(part, table)
            object.__setattr__(part, "free", free)
        table[part] = free
    return table


def _free(part: Expr, table: Mapping[Expr, Mapping[Axis, None]]) -> dict[Axis, None]:
    """`table`: those of its parts."""
    free: dict[Axis, None] = {}
    for inner in parts(part):
        free.update(table[inner])
    match part:
        case BufferLoad() | KernelVariable() | Position() | Inside():
            free.update(dict.fromkeys(a for i in _indices(part) for a in axes_of(i)))
        case Reduce():
            free = {a: None for a in free if a not in part.axes}
        case Scan():
            free.pop(part.axis, None)
            free.update(dict.fromkeys(axes_of(part.at)))
        case _:
            pass
    return free


def _indices(expr: BufferLoad | KernelVariable | Position | Inside) -> tuple[Index, ...]:
    """All indices in it, those that bounds are set to included."""
    match expr:
        case BufferLoad():
            return (*expr.index, *(bound.index for bound in expr.within))
        case KernelVariable():
            return expr.index
        case Position():
            return (expr.index,)
        case Inside():
            return tuple(bound.index for bound in expr.within)


def _gathers(index: Index) -> list[Expr]:
    gathers: list[Expr] = []
    for atom, _ in index.terms:
        if isinstance(atom, Axis):
            continue
        inner = getattr(atom, "index", None)
        gathers.extend(_gathers(inner) if isinstance(inner, Index) else [atom.value])  # type: ignore[union-attr]
    return gathers


def _exact(value: float | int | bool, dtype: torch.dtype) -> str:
    """The number as its type writes it."""
    return repr(float(value) if dtype.is_floating_point else int(value))


def _name(expr: object, *what: Hashable) -> None:
    """Keeps the hash: expressions share parts, and hashing them anew takes exponential time."""
    object.__setattr__(expr, "code", hash(what))


def _equal(expr: Expr, other: object) -> bool:
    """Whether they are alike, which is asked of two parts once: they share parts, as above. Equal
    ones have one twin from then on: the same are compared again and again."""
    stack: list[tuple[Any, Any]] = [(expr, other)]
    seen: dict[tuple[int, int], tuple[Expr, Expr]] = {}
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        if type(a) is not type(b) or hash(a) != hash(b):
            return False
        if _twin(a) is _twin(b):
            continue
        if _bare(a) != _bare(b):
            return False
        seen[id(a), id(b)] = a, b
        stack.extend(zip(parts(a), parts(b), strict=True))
    for a, b in seen.values():
        # Twins lead from higher addresses to lower ones: two threads make no ring of them.
        twin, own = sorted((_twin(a), _twin(b)), key=id)
        if twin is not own:
            object.__setattr__(own, "twin", twin)
    return True


def _twin(expr: Expr) -> Expr:
    """The expression that stands for all that are known to be equal to this one."""
    while (twin := getattr(expr, "twin", None)) is not None:
        expr = twin
    return expr


def _bare(expr: Expr) -> Hashable:
    """What it is but for its parts."""
    match expr:
        case Cast():
            return expr.dtype
        case Arith():
            return expr.op, expr.dtype
        case Reduce():
            return expr.op, expr.axes
        case Scan():
            return expr.op, expr.axis, expr.at, expr.reverse, expr.by is None
        case _:
            return expr

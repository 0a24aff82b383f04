"""Expressions as Triton: one statement for each operation that has a name in the model.

    emit(max(f32(x[n, c]) + f32(bias[c]), 0), {n: "row", c: "col"}, masks={c: "col_in"})
        x = tl.load(x_ptr + (64 * row + col), mask=col_in, other=0.0).to(tl.float32)
        bias = tl.load(bias_ptr + col, mask=col_in, other=0.0).to(tl.float32)
        add = x + bias
        relu = tl.maximum(add, 0.0, tl.PropagateNan.ALL)

`spelled` says how each axis is written: a tensor of indices, shaped so that all of them broadcast
to the tile. `masks` says, for each axis whose tensor may run over the axis's end, where it does
not; it is shaped like the axis, so that a load is masked by just the axes that it depends on.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections import Counter
from collections.abc import Callable, Mapping

import torch

from anabranch.kernels.dfg.expr import (
    Arith,
    BufferLoad,
    BufferStore,
    Cast,
    Const,
    Expr,
    IndexBound,
    Inside,
    KernelVariable,
    Position,
    Reduce,
    Scan,
    Within,
    all_parts,
    free_axes,
    parts,
)
from anabranch.kernels.dfg.index_expr import (
    LARGEST_INT32,
    Atom,
    Axis,
    Gathered,
    Index,
    Quotient,
    Remainder,
    axes_of,
)
from anabranch.kernels.triton.statements import Assign, For, PlacedExpr, Statement, Write

DTYPES: dict[torch.dtype, str] = {
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}

FORMS: dict[str, str] = {
    **{"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "div": "{} / {}", "neg": "{} * -1.0"},
    **{"eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}"},
    **{"ge": "{} >= {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "not": "~{}"},
    **{"rem": "{} % {}", "floordiv": "{} // {}", "where": "tl.where({}, {}, {})"},
    "max": "tl.maximum({}, {}, tl.PropagateNan.ALL)",
    "min": "tl.minimum({}, {}, tl.PropagateNan.ALL)",
    **{
        name: f"tl.{name}({{}})"
        for name in (*("abs", "exp", "log", "cos", "erf", "log2", "sigmoid"),)
    },
    "tanh_gate": "tl.sigmoid(({}) * 2.0)",
    **{"div_rn": "tl.div_rn({}, {})", "sqrt_rn": "tl.sqrt_rn({})", "fma": "tl.fma({}, {}, {})"},
}
"""How each operation is written that Triton has."""
CALLED: dict[str, str] = {
    **{name: name for name in ("tanh", "expm1", "log1p", "trunc", "floor", "ceil", "normal_cdf")},
    **{name: f"full_{name}" for name in ("sqrt", "rsqrt", "exp2", "sin", "pow")},
    **{"as_f16": "as_f16", "as_bf16": "as_bf16", "round": "round_even", "mul_rn": "product"},
    **{
        f"device_{name}": f"libdevice.{name}"
        for name in ("exp", "log", "log2", "cos", "tanh", "erf", "expm1", "log1p")
    },
    **{f"device_{name}": f"full_{name}" for name in ("exp2", "sin")},
}
"""What is called for each other operation: of `functions.py`, or the device's library."""

INTEGER_FORMS = {"neg": "-{}", "max": "tl.maximum({}, {})", "min": "tl.minimum({}, {})"}
NARROW = frozenset((torch.bool, torch.int8, torch.uint8, torch.int16))
TAKES_NUMBERS_WIDE = frozenset(("max", "min", "where"))
"""For these a number is an integer of 32 bits, and so is the result, which must go round as one of
`NARROW` does. Of operators it has the other operand's type."""
LONG_LINE = 70
FUNCTIONS = (
    *("tanh", "expm1", "log1p", "normal_cdf", "full_sqrt", "full_rsqrt"),
    *("full_exp2", "full_sin", "full_pow"),
    *("floor", "ceil", "trunc", "fmod", "round_even", "larger"),
    *("smaller", "nearest_tf32", "latest_largest", "latest_smallest"),
    *("fetch_ahead", "log_add_exp", "one_after_other", "as_f16", "as_bf16", "product"),
    *("product_f64", "uniform"),
)
"""What `functions.py` has."""
RESERVED = frozenset({*dir(builtins), *keyword.kwlist, *FUNCTIONS, "tl", "triton", "libdevice"})


def emit(
    expr: Expr,
    spelled: Mapping[Axis, str],
    masks: Mapping[Axis, str] | None = None,
    names: Mapping[str, str] | None = None,
    taken: set[str] | None = None,
    reduce: Callable[[Reduce, Emission], str] | None = None,
) -> tuple[list[Statement], str]:
    """The statements that compute the expression, and what it is called after them.

    `names`: the identifier for each value of the body (by default its own name made one); the
    pointer to a value is that with `_ptr`. `taken`: identifiers in use, to which new ones are
    added. `reduce`: how a reduction is written, since it alone depends on the shape of the tile.
    """
    emission = Emission(spelled, masks or {}, names or {}, set() if taken is None else taken)
    emission.reduce = reduce
    emission.expect(expr)
    name = emission.value(expr)
    return emission.statements, name


class Emission:
    """One scope of a kernel being written: its statements, and what is called how already. `calls`:
    the functions that the kernel calls, of all its scopes."""

    def __init__(
        self,
        spelled: Mapping[Axis, str],
        masks: Mapping[Axis, str],
        names: Mapping[str, str],
        taken: set[str],
    ) -> None:
        self.spelled, self.masks = dict(spelled), dict(masks)
        self.names, self.taken = names, taken
        self.calls: set[str] = set()
        self.statements: list[Statement] = []
        self.name_of: dict[Expr, str] = {}
        self.reduce: Callable[[Reduce, Emission], str] | None = None
        self.scan: Callable[[Scan, str, Emission], str] | None = None
        """Writes a scan of what is called so, and says what that is called."""
        self._uses: Counter[Expr] = Counter()
        self._widened: set[Expr] = set()
        self._shared: Counter[tuple[str, Index] | IndexBound] = Counter()
        self._texts: dict[tuple[str, Index] | IndexBound, str] = {}

    def expect(self, *exprs: Expr) -> None:
        """Counts what these expressions share: that gets a line of its own."""
        self._uses.update(exprs)
        for part in all_parts(*exprs):
            self._uses.update(parts(part))
            if isinstance(part, BufferLoad):
                address = part.address
                self._shared[part.value, address - address.constant] += 1
                self._shared.update(part.within)
            elif isinstance(part, Inside):
                self._shared.update(part.within)
        # A load that is only widened is one line with that.
        casts = (part for part in all_parts(*exprs) if isinstance(part, Cast))
        self._widened |= {
            c.arg for c in casts if isinstance(c.arg, BufferLoad) and self._uses[c.arg] == 1
        }

    def inner(self, spelled: Mapping[Axis, str], masks: Mapping[Axis, str]) -> Emission:
        """A scope inside this one, a loop's body, that knows what is known here."""
        scope = Emission(
            {**self.spelled, **spelled}, {**self.masks, **masks}, self.names, self.taken
        )
        scope.name_of, scope.reduce, scope.scan = dict(self.name_of), self.reduce, self.scan
        scope._texts, scope.calls = dict(self._texts), self.calls
        return scope

    def fresh(self, wanted: str) -> str:
        """A name like the wanted one that the kernel does not use yet."""
        return fresh(wanted, self.taken)

    def assign(self, wanted: str, text: str) -> str:
        """Gives the text a name like the wanted one."""
        name = self.fresh(wanted)
        self.let(name, text)
        return name

    def let(self, name: str, value: PlacedExpr, by: str = "=") -> None:
        """Gives the value this name, or adds it to what has the name."""
        self.statements.append(Assign((name,), value, by))

    def named(self, function: str) -> str:
        """The function of `functions.py`, or of the device's library, by its name."""
        self.calls.add(function.partition(".")[0])
        return function

    def call(self, function: str, *args: str) -> str:
        """A call of such a function."""
        return f"{self.named(function)}({', '.join(args)})"

    def loop(self, variable: str, span: str, scope: Emission) -> None:
        """What the scope has, for each number of the span."""
        self.statements.append(For(variable, span, tuple(scope.statements)))

    def value(self, expr: Expr) -> str:
        """The expression's name, or its text where it needs no line of its own."""
        below = _below_reductions(expr)
        for part in all_parts(expr):
            if part not in self.name_of and part not in below:
                self._write(part)
        return self.name_of[expr]

    def read(self, load: BufferLoad) -> None:
        """Reads it here, in a line of its own; what is computed of it stands where it is used."""
        self._widened.discard(load)
        self.value(load)

    def store(
        self, store: BufferStore, anchor: str = "", within: Within = (), only: str = ""
    ) -> None:
        """Stores, where the bounds hold; `anchor` is a tile of indices whose shape it has if its
        address depends on no axis, `only` the mask of one index among these, which stores alone."""
        value, address = self.value(store.expr), store.address
        axes = stored_axes(store)
        if not isinstance(store.expr, Const) and store.expr.dtype != store.type.dtype:
            value = f"{_operand(value)}.to({DTYPES[store.type.dtype]})"
        text = self._address(store.value, address, store.type.nbytes)
        mask = self._mask(axes, within)
        if not axes and anchor:
            pointer, plus, place = text.partition(" + ")
            place = f"({place} + 0 * {anchor})" if address.terms else f"{place}{plus}0 * {anchor}"
            text, mask = f"{pointer} + {place}", mask or only
        if store.where is not None:
            where = _operand(self.value(store.where))
            mask = f"{mask} & {where}" if mask else where
        self.statements.append(Write(text, value, mask))

    def index(self, index: Index, wide: bool | None = None) -> str:
        """The index in Triton; `wide`: in 64 bits, by default where 32 are too few."""
        wide = index.reach > LARGEST_INT32 if wide is None else wide
        pieces: list[str] = []
        for atom, factor in index.terms:
            match atom:
                case Axis():
                    text = self.spelled[atom]
                case Quotient():
                    text = f"({_operand(self.index(atom.index, wide))} // {atom.by})"
                case Remainder():
                    text = f"({_operand(self.index(atom.index, wide))} % {atom.by})"
                case Gathered():
                    text = self.value(atom.value)
            if wide and _narrow(atom):
                text = f"{_operand(text)}.to(tl.int64)"
            if factor != 1:
                text = f"{factor} * {_operand(text)}"
            pieces.append(text)
        if index.constant or not pieces:
            pieces.append(str(index.constant))
        return " + ".join(pieces).replace("+ -", "- ")

    def inside(self, within: Within) -> str:
        """The conditions, joined by `&`."""
        return " & ".join(_operand(self._bound(bound)) for bound in within)

    def _write(self, part: Expr) -> None:
        """Gives the expression a name, or keeps its text for the one place that uses it."""
        name, text = "", self._text(part)
        match part:
            case Scan():
                pass  # has its line already
            case BufferLoad():
                name = self.names.get(part.value, identifier(part.value))
            case Arith() | Reduce():
                name = (
                    self.names.get(part.value_name, identifier(part.value_name))
                    if part.value_name
                    else ""
                )
                if isinstance(part, Reduce) or self._uses[part] > 1 or len(text) > LONG_LINE:
                    name = name or "t"
            case Cast(BufferLoad(value=value)):
                name = self.names.get(value, identifier(value))
            case _:
                pass
        if name and part not in self._widened:
            text = self.assign(name, text)
        self.name_of[part] = text

    def _text(self, part: Expr) -> str:
        match part:
            case BufferLoad():
                return self._load(part)
            case KernelVariable():
                return part.name
            case Const():
                return literal(part)
            case Position():
                return f"({self.index(part.index)}).to({DTYPES[part.dtype]})"
            case Inside():
                return self.inside(part.within)
            case Cast():
                text = _operand(self.name_of[part.arg])
                if part.dtype == torch.uint8 and part.arg.dtype.is_floating_point:
                    text = f"{text}.to(tl.int64)"  # as eager does: -1.0 is 255
                return f"{text}.to({DTYPES[part.dtype]})"
            case Reduce():
                assert self.reduce is not None, "nobody says how reductions are written here"
                return narrow_again(self.reduce(part, self), part.dtype)
            case Scan():
                assert self.scan is not None, "nobody says how scans are written here"
                return self.scan(part, self.name_of[part.arg], self)
            case Arith():
                return self._arith(part)

    def _arith(self, part: Arith) -> str:
        floating = part.args[-1].dtype.is_floating_point
        operands = [self.name_of[arg] for arg in part.args]
        if part.op == "mul_rn" and part.dtype == torch.float64:
            text = self.call("product_f64", *operands)
        elif part.op == "rem" and floating:
            text = self.call("fmod", *map(_tensor, part.args, operands))
        elif part.op == "uniform":
            text = self.call("uniform", *operands[:-1], _tensor(part.args[-1], operands[-1]))
        elif part.op == "pow":
            text = self.call(CALLED["pow"], *map(_tensor, part.args, operands))
        elif part.op in CALLED:
            if all(isinstance(arg, Const) for arg in part.args):  # a number has no methods
                operands = list(map(_tensor, part.args, operands))
            text = self.call(CALLED[part.op], *operands)
        else:
            text = self._formed(part, operands, floating)
        among = part.args[1:] if part.op == "where" else part.args
        numbers = [isinstance(arg, Const) for arg in among]
        widened = part.dtype in NARROW and part.op in TAKES_NUMBERS_WIDE and any(numbers)
        if all(numbers) or widened:
            text = f"{_operand(text)}.to({DTYPES[part.dtype]})"
        return text

    def _formed(self, part: Arith, operands: list[str], floating: bool) -> str:
        form = FORMS[part.op] if floating else INTEGER_FORMS.get(part.op, FORMS[part.op])
        if part.op in ("div", "div_rn") and (inverse := _exact_inverse(part.args[1])) is not None:
            form, operands[1] = FORMS["mul"], literal(inverse)
        if not form.endswith(")"):
            if all(isinstance(arg, Const) for arg in part.args):  # Python would compute it
                operands[0] = _tensor(part.args[0], operands[0])
            operands = [_operand(text) for text in operands]
        return form.format(*operands)

    def _load(self, load: BufferLoad) -> str:
        axes = address_axes(load)
        near = tuple(b for b in load.within if axes.keys() >= set(axes_of(b.index)))
        far = tuple(b for b in load.within if b not in near)
        address = self._address(load.value, load.address, load.type.nbytes)
        still = [self.spelled[axis] for axis in repeated_axes(load) if axis in self.spelled]
        if still:  # the mask has these axes, and so has whoever multiplies tiles
            address = f"{address} + 0 * {_operand(' + '.join(still))}"
        mask, fill = self._mask(axes, near), literal(Const(load.fill, load.dtype))
        text = f"tl.load({address}{f', mask={mask}, other={fill}' if mask else ''})"
        if far:
            text = narrow_again(f"tl.where({self.inside(far)}, {text}, {fill})", load.dtype)
        return text

    def _address(self, value: str, address: Index, nbytes: int) -> str:
        pointer = f"{self.names.get(value, identifier(value))}_ptr"
        moving = address - address.constant
        # The constant, which comes last, is no larger than what it is added to can be.
        wide = max(nbytes, 2 * moving.reach) > LARGEST_INT32
        if not moving.terms:
            return pointer if not address.constant else f"{pointer} + {address.constant}"
        key = (value, moving)
        if self._shared[key] > 1 and len(moving.terms) > 1:
            if key not in self._texts:
                self._texts[key] = self.assign(f"{pointer[:-4]}_at", self.index(moving, wide))
            text = self._texts[key]
            if address.constant:
                text = f"({text} + {address.constant})".replace("+ -", "- ")
            return f"{pointer} + {text}"
        return f"{pointer} + {_operand(self.index(address, wide))}"

    def _mask(self, axes: Mapping[Axis, None], near: Within) -> str:
        ends = dict.fromkeys(self.masks[axis] for axis in axes if axis in self.masks)
        conditions = [*map(_operand, ends), *([self.inside(near)] if near else [])]
        return " & ".join(conditions)

    def _bound(self, bound: IndexBound) -> str:
        if bound in self._texts:
            return self._texts[bound]
        low, high = bound.index.range
        text = self.index(bound.index)
        sides = [f"({_operand(text)} >= {bound.low})"] if low < bound.low else []
        sides += [f"({_operand(text)} < {bound.high})"] if high >= bound.high else []
        joined = " & ".join(sides)
        if self._shared[bound] > 1:
            self._texts[bound] = joined = self.assign("inside", joined)
        return joined


def narrow_again(text: str, dtype: torch.dtype) -> str:
    """What Triton computes in 32 bits (reductions, scans, choices of a number) as it is stored."""
    return f"{_operand(text)}.to({DTYPES[dtype]})" if dtype in NARROW else text


def _narrow(atom: Atom) -> bool:
    """Whether it is written in 32 bits or less."""
    if isinstance(atom, Gathered):
        return bool(atom.value.dtype != torch.int64)
    return isinstance(atom, Axis)


def address_axes(load: BufferLoad) -> dict[Axis, None]:
    """The axes on which the address depends, by way of a gather too."""
    axes = dict.fromkeys(axis for index in load.index for axis in axes_of(index))
    for part in parts(load):
        axes.update(free_axes(part))
    return axes


def stored_axes(store: BufferStore) -> dict[Axis, None]:
    """The axes on which the address of a store depends, and whether it is one, in the order in
    which the address names them: times of kernels are recorded by their text."""
    axes = dict.fromkeys(axes_of(store.address))
    for root in store.roots[1:]:
        axes.update(free_axes(root))
    return axes


def repeated_axes(load: BufferLoad) -> list[Axis]:
    """The axes along which an expanded value is the same everywhere."""
    pairs = list(zip(load.index, load.type.strides, strict=True))
    moving = {axis for index, stride in pairs if stride for axis in axes_of(index)}
    still = dict.fromkeys(axis for index, stride in pairs if not stride for axis in axes_of(index))
    return [axis for axis in still if axis not in moving]


def _tensor(part: Expr, text: str) -> str:
    """What has a dtype in Triton too: a number there has none."""
    return f"tl.full((), {text}, {DTYPES[part.dtype]})" if isinstance(part, Const) else text


def _exact_inverse(by: Expr) -> Const | None:
    """The factor that stands in place of dividing by a power of two: the same bits, in fewer
    steps."""
    if not isinstance(by, Const) or not by.dtype.is_floating_point:
        return None
    fraction, exponent = math.frexp(by.value)
    return Const(1 / by.value, by.dtype) if fraction == 0.5 and abs(exponent) < 64 else None


def literal(const: Const) -> str:
    """The number as Triton reads it, which takes what has a point for fp32, and -0.0 for 0.0."""
    value = const.value
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if value == 0 and math.copysign(1.0, value) < 0:
        return f"(tl.full([], -1.0, {DTYPES[const.dtype]}) * 0.0)"
    if const.dtype == torch.float64 and torch.tensor(value, dtype=torch.float32).item() != value:
        return f"tl.full([], {float(value)!r}, tl.float64)"
    return repr(float(value) if const.dtype.is_floating_point else value)


def identifier(name: str) -> str:
    """The name as Python allows it."""
    text = "".join(c if c.isalnum() else "_" for c in name) or "value"
    return f"v{text}" if text[0].isdigit() else text


def fresh(wanted: str, taken: set[str], number: int = 1) -> str:
    """The name, or the name with a number, from this one on, that is not in use; it is from now
    on."""
    name = f"{wanted}_" if wanted in RESERVED else wanted
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    taken.add(name)
    return name


def _operand(text: str) -> str:
    """The text in parentheses unless it binds tighter than any operator."""
    depth = 0
    for at, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if depth == 0 and (char == " " or (char in "-~" and at == 0)):
            return f"({text})"
    return text


def _below_reductions(root: Expr) -> frozenset[Expr]:
    """What only reductions below the root need: it is written where they are."""
    below = all_parts(root)
    if not any(isinstance(part, Reduce) for part in below):
        return frozenset()
    outside: set[Expr] = set()
    stack = [root]
    while stack:
        expr = stack.pop()
        if expr in outside:
            continue
        outside.add(expr)
        if not isinstance(expr, Reduce):
            stack.extend(parts(expr))
    return frozenset(set(below) - outside)

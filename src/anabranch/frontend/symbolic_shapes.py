"""What torch says of sizes that vary: of an export, or of a graph with symbolic sizes.

torch.export is asked once whether the model keeps the dimensions that were stated: then what it
computes is the same program at every size. Where it specialises the model instead,
`DynamicShapes.specialised` has its words, and each size is captured for itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx, nn
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, OptionError
from anabranch.frontend.checks import check_model
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.frontend.from_torch import export_dynamic, module_for
from anabranch.frontend.shape_spec import (
    WRITE,
    as_spec,
    by_place,
    end_of,
    for_torch,
    has_hints,
    keywords_named,
    named_axes,
    plain_spec,
    stated_shapes,
)
from anabranch.frontend.source import origin
from anabranch.frontend.surroundings import Surroundings
from anabranch.trace import Trace

LOCAL = re.compile(r"L\['([A-Za-z]\w*)'\](.*)")
"""How Dynamo names what is reached by a name of the user's; what it keeps at a graph break begins
with underscores."""
UNNAMED = "an axis of a value without a name"
"""Behind a graph break, say."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
SMALL_SIZE = 8
"""Sizes below this are enlarged for the export, which takes 0 and 1, and what `//` makes of small
numbers, for special cases."""


def read_dynamic_shapes(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    requested: Any,
    surroundings: Surroundings,
    trace: Trace,
) -> DynamicShapes:
    """What varies in calls of the model. `requested`: `dynamic_shapes` as torch.export takes it,
    or a DynamicShapes that was found otherwise. OptionError for what means nothing here."""
    if isinstance(model, nn.Module):
        check_model(model)
    module = module_for(model)
    named: dict[tuple[int, int], str] = {}
    if isinstance(requested, DynamicShapes):
        stated, spec = requested, as_spec(requested, args, kwargs)
        named = {
            (number, extent.axis): requested.dimensions[extent.dimension].name
            for number, at in enumerate(requested.extents)
            for extent in at
        }
    else:
        spec = plain_spec(args, kwargs, by_place(model, args, kwargs, requested))
        named = dict(named_axes(args, kwargs, spec))
        stated = stated_shapes(args, kwargs, spec)
    example: tuple[Any, Any] = args, dict(kwargs)
    if not has_hints(spec):  # whose axes may have to fit each other, which nobody knows yet
        example = stated.resized(*example, _apart(stated, args, kwargs))
    try:
        with keywords_named(module, kwargs):
            shapes = for_torch(module, example, spec)
            program = export_dynamic(module, *example, shapes, surroundings)
    except CaptureError as refused:
        why = " ".join(_words(refused).split())
    else:
        return _read(program, stated, named)
    if has_hints(spec):
        raise OptionError(
            "torch.export does not keep these dimensions", why, "name them with torch.export.Dim"
        )
    trace.add("warning", "capture", type(model).__name__, f"each size is captured alone: {why}")
    return replace(stated, specialised=f"torch.export does not keep the dimension: {why}")


def _words(refused: CaptureError) -> str:
    """Which constraints are violated, where it is that."""
    lines = [line.strip(" -") for line in str(refused.__cause__).splitlines()]
    if any("specialized it to be a constant" in line for line in lines):
        return "the model's code makes a constant of the size, as len(x) does; x.shape[0] does not"
    told = [line for line in lines if line.startswith(("Not all values", "solving the guards"))]
    return "; ".join(told[:2]) or refused.why


def symbolic_shapes(values: Sequence[Any], graph: fx.Graph) -> DynamicShapes | None:
    """What varies in the inputs of a graph with symbolic sizes: `values`, its fake inputs, tensors
    and numbers. Dimensions are called by the user's input and its axis, as far as torch knows of
    one. None if no tensor's size varies, or one is no affine function of a
    symbol."""
    symbols: dict[Any, Dimension] = {}
    in_code: dict[Any, str] = {}
    extents = []
    try:
        for value in values:
            if not isinstance(value, Tensor):
                continue
            at = []
            for axis, size in enumerate(value.shape):
                if type(size) is int:
                    continue
                symbol, times, plus = _affine(size, "")
                if symbol not in symbols:
                    env = _env(size)
                    name, in_code[symbol] = _place(env, symbol) or (UNNAMED, str(symbol))
                    symbols[symbol] = _ranged(env.var_to_range.get(symbol), name)
                at.append(Extent(axis, list(symbols).index(symbol), times, plus))
            extents.append(tuple(at))
    except OptionError:
        return None
    if not symbols:
        return None
    uneven = _uneven(graph, in_code)
    return DynamicShapes(
        tuple(symbols.values()), tuple(extents), "", uneven, tuple(map(str, symbols))
    )


def _env(size: Any) -> Any:
    return size.node.shape_env


def _place(env: Any, symbol: Any) -> tuple[str, str] | None:
    """The input and axis of the user's that a symbol is the size of, as a sentence and as code have
    them ("the second axis of x", "x.shape[1]"); None where torch knows of none."""
    for source in env.var_to_sources.get(symbol, ()):
        held, axis = getattr(source, "base", None), getattr(source, "idx", None)
        name = getattr(held, "name", None)
        local = LOCAL.match(name() if callable(name) else name or "")
        if local is not None and type(axis) is int and str(source.prop).endswith("SIZE"):
            value = f"{local[1]}{local[2]}"
            order = ORDINALS[axis] if axis < len(ORDINALS) else f"{axis + 1}th"
            return f"the {order} axis of {value}", f"{value}.shape[{axis}]"
    return None


def program_shapes(program: ExportedProgram) -> DynamicShapes | None:
    """The dimensions of an exported program; None if it has none."""
    dynamic_shapes = _read(program, None, {})
    return dynamic_shapes if dynamic_shapes.dimensions else None


def _apart(shapes: DynamicShapes, args: Any, kwargs: Any) -> tuple[int, ...]:
    """Sizes for the export: none is 0 or 1, and no two are equal."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = shapes.sizes_of(leaves)
    if sizes is None:
        raise OptionError(
            "the example inputs contradict dynamic_shapes",
            "axes of one dimension have sizes that do not go together",
            WRITE,
        )
    return tuple(
        int(min(_distinct(number, size), math.inf if dimension.most is None else dimension.most))
        for number, (dimension, size) in enumerate(zip(shapes.dimensions, sizes, strict=True))
    )


def _distinct(number: int, size: int) -> int:
    return size if size >= SMALL_SIZE else SMALL_SIZE + number


def _read(
    program: ExportedProgram, stated: DynamicShapes | None, named: Mapping[tuple[int, int], str]
) -> DynamicShapes:
    """The dimensions that an exported program has kept."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols: dict[Any, Dimension] = {}
    plain = set[Any]()
    """Symbols that are met as the size of an axis, and not only in a multiple or a sum."""
    extents: list[tuple[Extent, ...]] = []
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        value = node.meta.get("val")
        if spec.kind is not InputKind.USER_INPUT or isinstance(spec.arg, ConstantArgument):
            continue
        at: list[Extent] = []
        for axis, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if type(size) is int:
                continue
            symbol, times, plus = _affine(size, node.name)
            itself = (times, plus) == (1, 0)
            if symbol not in symbols or (itself and symbol not in plain):
                plain.update([symbol] if itself else [])
                name = named.get((len(extents), axis), f"{node.name}.shape[{axis}]")
                earlier = _stated(stated, len(extents), axis) if stated is not None else None
                symbols[symbol] = _dimension(program, symbol, name)
                if earlier is not None:
                    symbols[symbol] = replace(earlier, name=name)
            at.append(Extent(axis, list(symbols).index(symbol), times, plus))
        if isinstance(value, Tensor):
            extents.append(tuple(at))
    names = {symbol: dimension.name for symbol, dimension in symbols.items()}
    return DynamicShapes(tuple(symbols.values()), tuple(extents), "", _uneven(program.graph, names))


def _stated(stated: DynamicShapes, tensor: int, axis: int) -> Dimension | None:
    """The earlier description of this axis, if it is a dimension itself."""
    for extent in stated.extents[tensor]:
        if (extent.axis, extent.times, extent.plus) == (axis, 1, 0):
            return stated.dimensions[extent.dimension]
    return None


def _affine(size: Any, name: str) -> tuple[Any, int, int]:
    expression = size.node.expr
    free = list(expression.free_symbols)
    if len(free) == 1:
        times, plus = sympy.expand(expression).coeff(free[0], 1), expression.subs(free[0], 0)
        if sympy.expand(expression - times * free[0] - plus) == 0 and times.is_integer:
            return free[0], int(times), int(plus)
    raise OptionError(
        f"a size of input {name} is {expression}",
        "a size is a multiple of one dimension, and a number beside it",
        "give each axis a torch.export.Dim of its own, or a multiple of one",
    )


def _dimension(program: ExportedProgram, symbol: Any, name: str) -> Dimension:
    return _ranged(program.range_constraints.get(symbol), name)


def _ranged(ranges: Any, name: str) -> Dimension:
    if ranges is None:
        return Dimension(name)
    most = ranges.upper
    finite = isinstance(most, sympy.Integer) or (
        isinstance(most, int) and not isinstance(most, bool)
    )
    return Dimension(name, max(1, int(ranges.lower)), end_of(int(most)) if finite else None)


def _uneven(graph: fx.Graph, in_code: Mapping[Any, str]) -> tuple[str, ...]:
    """By dimension an operator with a size that is no polynomial of it: two captures at two sizes
    would not show what it is at others. () if there is none. `in_code`: names of the symbols."""
    told = dict.fromkeys(in_code, "")
    names = {symbol: sympy.Symbol(name) for symbol, name in in_code.items()}
    for node in graph.nodes:
        for size in _sizes(node):
            for symbol in size.free_symbols & in_code.keys():
                if not told[symbol] and not size.is_polynomial(symbol):
                    called = node.target if isinstance(node.target, OpOverload) else node.name
                    told[symbol] = f"{called}: a size in it is {size.xreplace(names)}"
                    if where := origin(node):
                        told[symbol] += f" {where if where.startswith('(') else f'({where})'}"
    return tuple(told.values()) if any(told.values()) else ()


def _sizes(node: fx.Node) -> Iterator[Any]:
    value = node.meta.get("val")
    many = value if isinstance(value, (tuple, list)) else (value,)
    for item in many:
        sizes = item.shape if isinstance(item, Tensor) else (item,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                yield size.node.expr

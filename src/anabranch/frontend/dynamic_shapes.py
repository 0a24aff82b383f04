"""Which axes of a call's tensors vary: `dynamic_shapes`, as torch.export takes it -> DynamicShapes.

    f(x, mask), {"x": {0: Dim("batch", max=64), 1: seq}, "mask": {1: seq}}
      dimensions  batch 1..64, seq 1..
      extents     x: axis 0 is batch, axis 1 is seq; mask: axis 1 is seq
    2 * Dim("n"), Dim("n") + 1                an extent is an affine function of one dimension

torch.export is asked once whether the model keeps these dimensions: then what it computes is the
same program at every size. Where it specialises the model instead, `DynamicShapes.specialised` has
its words, and each size is captured for itself.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor, fx
from torch.export import Dim, ExportedProgram
from torch.export.dynamic_shapes import _DerivedDim, _DimHint, _StaticDim, _tree_map_with_path
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from anabranch.errors import CaptureError, OptionError
from anabranch.frontend.from_torch import export_dynamic, module_for
from anabranch.frontend.padding_proof import Rows
from anabranch.frontend.source import origin
from anabranch.frontend.surroundings import Surroundings
from anabranch.trace import Trace

SMALL = 8
"""Sizes below this are enlarged for the export, which takes 0 and 1, and what `//` makes of small
numbers, for special cases."""
WRITE = "write dynamic_shapes as torch.export takes it, such as {'x': {0: Dim('batch', max=64)}}"


@dataclass(frozen=True, slots=True)
class Dimension:
    """A size that varies between calls, from `least` to `most` rows; None: without an end."""

    name: str
    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.least}..{'' if self.most is None else self.most}"


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of one axis of a tensor: `times` that of a dimension, by its number, and `plus`."""

    axis: int
    dimension: int
    times: int = 1
    plus: int = 0


@dataclass(frozen=True, slots=True)
class DynamicShapes:
    """`extents`: for each tensor of a call, in the order of its leaves, the axes that vary.
    `specialised`: why torch.export does not keep the dimensions, "" if it does; `uneven`: an
    operator whose sizes are no multiples of them (`n // 2`), "" if there is none."""

    dimensions: tuple[Dimension, ...]
    extents: tuple[tuple[Extent, ...], ...]
    specialised: str = ""
    uneven: str = ""

    def sizes_of(self, tensors: Sequence[Tensor]) -> tuple[int, ...] | None:
        """The size of each dimension in a call; None if its tensors contradict each other."""
        found: dict[int, int] = {}
        for tensor, extents in zip(tensors, self.extents, strict=True):
            for one in extents:
                size, rest = divmod(tensor.shape[one.axis] - one.plus, one.times)
                if rest or size < 1 or found.setdefault(one.dimension, size) != size:
                    return None
        return tuple(found[i] for i in range(len(self.dimensions)))

    def value_of(self, size: torch.SymInt, sizes: Sequence[int]) -> int | None:
        """What a symbolic size is at these sizes; None if it is no affine function of one."""
        expression = size.node.expr
        named = {one.name: n for one, n in zip(self.dimensions, sizes, strict=True)}
        free = {symbol: named.get(str(symbol)) for symbol in expression.free_symbols}
        if any(n is None for n in free.values()):
            return None
        return int(expression.subs(free))

    def rows(self, dimension: int) -> list[list[Rows]] | None:
        """For each tensor where it has rows of a dimension; None if some of its axes have more."""
        if any(one.plus for at in self.extents for one in at if one.dimension == dimension):
            return None
        return [
            [(one.axis, 1, one.times) for one in at if one.dimension == dimension]
            for at in self.extents
        ]

    def resized(self, args: Any, kwargs: Any, sizes: Sequence[int]) -> tuple[Any, Any]:
        """The call with tensors of these sizes: cut, or with rows again and again."""
        leaves, tree = pytree.tree_flatten((args, kwargs))
        extents = iter(self.extents)
        made = [
            _resized(leaf, next(extents), sizes) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        changed: tuple[Any, Any] = pytree.tree_unflatten(made, tree)
        return changed


def _resized(tensor: Tensor, extents: Sequence[Extent], sizes: Sequence[int]) -> Tensor:
    for one in extents:
        size, want = tensor.shape[one.axis], one.times * sizes[one.dimension] + one.plus
        if size != want:
            rows = torch.arange(want, device=tensor.device) % size
            tensor = tensor.detach().index_select(one.axis, rows)
    return tensor


def leading_batch(args: Any, kwargs: Any) -> DynamicShapes | None:
    """The first axis of all tensors that have one is the batch; None if their sizes differ."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    sizes = {leaf.shape[0] for leaf in leaves if leaf.dim()}
    if len(sizes) != 1 or min(sizes) == 0:
        return None
    extents = tuple((Extent(0, 0),) if leaf.dim() else () for leaf in leaves)
    return DynamicShapes((Dimension("batch"),), extents)


def read_dynamic_shapes(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Any,
    found: Surroundings,
    trace: Trace,
) -> DynamicShapes:
    """What varies in calls of the model. `given`: `dynamic_shapes` as torch.export takes it, or a
    DynamicShapes that was found otherwise. OptionError for what means nothing here."""
    module = module_for(model)
    named: dict[tuple[int, int], str] = {}
    if isinstance(given, DynamicShapes):
        stated, spec = given, _as_spec(given, args, kwargs)
        named = {
            (number, one.axis): given.dimensions[one.dimension].name
            for number, at in enumerate(given.extents)
            for one in at
        }
    else:
        spec = _plain(args, kwargs, _by_place(model, args, kwargs, given))
        named = dict(_named(args, kwargs, spec))
        stated = _stated(args, kwargs, spec)
    example: tuple[Any, Any] = args, dict(kwargs)
    if not _hints(spec):  # whose axes may have to fit each other, which nobody knows yet
        example = stated.resized(*example, _apart(stated, args, kwargs))
    try:
        program = export_dynamic(module, *example, _for_torch(module, example, spec), found)
    except CaptureError as refused:
        why = " ".join(_words(refused).split())
    else:
        return _read(program, stated, named)
    if _hints(spec):
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
    and numbers. Dimensions are called as the symbols are. None if no tensor's size varies, or one
    is no affine function of a symbol."""
    symbols: dict[Any, Dimension] = {}
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
                    ranges = _env(size).var_to_range.get(symbol)
                    symbols[symbol] = _ranged(ranges, str(symbol))
                at.append(Extent(axis, list(symbols).index(symbol), times, plus))
            extents.append(tuple(at))
    except OptionError:
        return None
    if not symbols:
        return None
    return DynamicShapes(tuple(symbols.values()), tuple(extents), "", _uneven(graph, symbols))


def _env(size: Any) -> Any:
    return size.node.shape_env


def program_shapes(program: ExportedProgram) -> DynamicShapes | None:
    """The dimensions of an exported program; None if it has none."""
    found = _read(program, None, {})
    return found if found.dimensions else None


def _apart(shapes: DynamicShapes, args: Any, kwargs: Any) -> tuple[int, ...]:
    """Sizes for the export: none is 0 or 1, and no two are equal."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    given = shapes.sizes_of(leaves)
    if given is None:
        raise OptionError(
            "the example inputs contradict dynamic_shapes",
            "axes of one dimension have sizes that do not go together",
            WRITE,
        )
    return tuple(
        int(min(_distinct(number, size), math.inf if one.most is None else one.most))
        for number, (one, size) in enumerate(zip(shapes.dimensions, given, strict=True))
    )


def _distinct(number: int, size: int) -> int:
    return size if size >= SMALL else SMALL + number


def _as_spec(shapes: DynamicShapes, args: Any, kwargs: Any) -> Any:
    """As torch.export takes it, in the structure of (args, kwargs)."""
    dims = [Dim(_identifier(d.name), min=d.least, max=d.most) for d in shapes.dimensions]
    extents = iter(shapes.extents)

    def told(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {one.axis: _dim(dims[one.dimension], one) for one in next(extents)}

    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    return pytree.tree_unflatten([told(leaf) for leaf in leaves], tree)


def _dim(dim: Any, one: Extent) -> Any:
    scaled = dim if one.times == 1 else one.times * dim
    return scaled if not one.plus else scaled + one.plus


def _identifier(name: str) -> str:
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return plain if plain.isidentifier() else f"d_{plain}"


def _by_place(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any) -> Any:
    """The user's `dynamic_shapes` in the structure of (args, kwargs)."""
    if hasattr(given, "dynamic_shapes"):  # a ShapesCollection
        given = given.dynamic_shapes(module_for(model), args, dict(kwargs))
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*range(len(args)), **{key: key for key in kwargs})
    except (TypeError, ValueError):
        raise OptionError(
            "dynamic_shapes cannot be told apart by argument",
            "Python does not know the model's signature, or the inputs do not fit it",
            WRITE,
        ) from None
    names = list(bound.arguments)
    if isinstance(given, (tuple, list)):
        if len(given) > len(names):
            raise _misfit(f"it has {len(given)} parts, the call has {len(names)} arguments")
        given = dict(zip(names, given, strict=False))
    if not isinstance(given, Mapping):
        raise _misfit(f"it is a {type(given).__name__}")
    if unknown := [name for name in given if name not in names]:
        raise _misfit(f"there is no argument {unknown[0]!r}; there are {', '.join(names)}")
    said: dict[int | str, Any] = {}
    for name, place in bound.arguments.items():  # a place, or those of *args, or of **kwargs
        of = given.get(name)
        if isinstance(place, tuple):
            said.update(zip(place, of or (None,) * len(place), strict=False))
        elif isinstance(place, dict):
            said.update({key: (of or {}).get(key) for key in place})
        else:
            said[place] = of
    return tuple(said.get(i) for i in range(len(args))), {key: said.get(key) for key in kwargs}


def _nothing(value: Any) -> Any:
    return pytree.tree_map(lambda _: None, value)


def _misfit(why: str) -> OptionError:
    return OptionError("dynamic_shapes does not fit the inputs", why, WRITE)


def _leaves(args: Any, kwargs: Any, spec: Any) -> list[tuple[str, Any, Any]]:
    """Each leaf of the call with its place and what is said of it."""
    found: list[tuple[str, Any, Any]] = []
    whole = _padded(args, dict(kwargs), spec)
    try:
        _tree_map_with_path(
            lambda path, leaf, said: found.append((pytree.keystr(path[1:]), leaf, said)),
            (tuple(args), dict(kwargs)),
            whole,
            tree_name="inputs",
        )
    except Exception as wrong:  # torch's own words
        raise _misfit(" ".join(str(wrong).split())) from None
    return found


def _padded(args: Any, kwargs: Any, spec: Any) -> Any:
    """None stands for everything below it."""
    said_args, said_kwargs = spec

    def fill(value: Any, said: Any) -> Any:
        return _nothing(value) if said is None and not isinstance(value, Tensor) else said

    return (
        tuple(fill(a, s) for a, s in zip(args, said_args, strict=True)),
        {key: fill(value, said_kwargs[key]) for key, value in kwargs.items()},
    )


def _axes(leaf: Any, said: Any) -> Iterator[tuple[int, Any]]:
    """The axes of a tensor of which something is said."""
    if not isinstance(leaf, Tensor) or said is None:
        return
    pairs = said.items() if isinstance(said, Mapping) else enumerate(said)
    for axis, dim in pairs:
        if not isinstance(axis, int) or not -leaf.dim() <= axis < leaf.dim():
            raise _misfit(f"a tensor with {leaf.dim()} axes has no axis {axis!r}")
        static = dim is None or isinstance(dim, (int, _StaticDim))
        if static or (isinstance(dim, _DimHint) and dim.type.name == "STATIC"):
            continue
        if not isinstance(dim, (Dim, _DimHint)):
            raise _misfit(f"{dim!r} is no torch.export.Dim")
        yield axis % leaf.dim(), dim


def _plain(args: Any, kwargs: Any, spec: Any) -> Any:
    """The same by the structure of (args, kwargs) alone, each tensor's axes counted from the front,
    without those that do not vary."""
    leaves = [dict(_axes(leaf, said)) or None for _, leaf, said in _leaves(args, kwargs, spec)]
    return pytree.tree_unflatten(leaves, pytree.tree_flatten((tuple(args), dict(kwargs)))[1])


def _hints(spec: Any) -> bool:
    leaves = pytree.tree_leaves(spec, is_leaf=lambda x: isinstance(x, (Dim, _DimHint)))
    return any(isinstance(one, _DimHint) for one in leaves)


def _named(args: Any, kwargs: Any, spec: Any) -> Iterator[tuple[tuple[int, int], str]]:
    """What the user calls dimensions: by the number of the tensor and the axis."""
    number = 0
    for _, leaf, said in _leaves(args, kwargs, spec):
        for axis, dim in _axes(leaf, said):
            if not isinstance(dim, (_DimHint, _DerivedDim)):
                yield (number, axis), dim.__name__
        number += isinstance(leaf, Tensor)


def _stated(args: Any, kwargs: Any, spec: Any) -> DynamicShapes:
    """What the user says, before torch.export has looked: a hint is a dimension of its own."""
    dimensions: dict[Any, Dimension] = {}
    extents = []
    for place, leaf, said in _leaves(args, kwargs, spec):
        if not isinstance(leaf, Tensor):
            continue
        at = []
        for axis, dim in _axes(leaf, said):
            root = dim.root if isinstance(dim, _DerivedDim) else dim
            key = (place, axis) if isinstance(dim, _DimHint) else root.__name__
            if key not in dimensions:
                name = f"{place}.shape[{axis}]" if isinstance(dim, _DimHint) else root.__name__
                dimensions[key] = Dimension(name, max(1, root.min or 0), _end(root.max))
            at.append(_extent(axis, dim, list(dimensions).index(key)))
        extents.append(tuple(at))
    if not dimensions:
        raise _misfit("no axis of a tensor varies in it")
    return DynamicShapes(tuple(dimensions.values()), tuple(extents))


def _end(most: Any) -> int | None:
    return most if isinstance(most, int) and most < 1 << 40 else None


def _extent(axis: int, dim: Any, number: int) -> Extent:
    if not isinstance(dim, _DerivedDim):
        return Extent(axis, number)
    function: Callable[[int], int] = dim.fn
    times = function(2) - function(1)
    return Extent(axis, number, times, function(1) - times)


def _for_torch(module: torch.nn.Module, example: tuple[Any, Any], spec: Any) -> Any:
    """In the form in which torch.export asks for it: by the names of the module's arguments."""
    said = _padded(*example, spec)
    bound = inspect.signature(module.forward).bind(*said[0], **said[1])
    return dict(bound.arguments)


def _read(
    program: ExportedProgram, stated: DynamicShapes | None, named: Mapping[tuple[int, int], str]
) -> DynamicShapes:
    """The dimensions that an exported program has kept."""
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    symbols: dict[Any, Dimension] = {}
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
            if symbol not in symbols:
                name = named.get((len(extents), axis), f"{node.name}.shape[{axis}]")
                known = _known(stated, len(extents), axis) if stated is not None else None
                symbols[symbol] = _dimension(program, symbol, name)
                if known is not None:
                    symbols[symbol] = replace(known, name=name)
            at.append(Extent(axis, list(symbols).index(symbol), times, plus))
        if isinstance(value, Tensor):
            extents.append(tuple(at))
    return DynamicShapes(
        tuple(symbols.values()), tuple(extents), "", _uneven(program.graph, symbols)
    )


def _known(stated: DynamicShapes, tensor: int, axis: int) -> Dimension | None:
    """What was said of this axis before, if it is a dimension itself."""
    for one in stated.extents[tensor]:
        if (one.axis, one.times, one.plus) == (axis, 1, 0):
            return stated.dimensions[one.dimension]
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
    return Dimension(name, max(1, int(ranges.lower)), _end(int(most)) if finite else None)


def _uneven(graph: fx.Graph, symbols: Mapping[Any, Dimension]) -> str:
    """An operator with a size that is no polynomial of the dimensions: two captures at two sizes
    would not show what it is at others."""
    for node in graph.nodes:
        for size in _sizes(node):
            free = size.free_symbols & symbols.keys()
            if free and not size.is_polynomial(*free):
                return f"{node.target}: a size in it is {size} {origin(node)}".strip()
    return ""


def _sizes(node: fx.Node) -> Iterator[Any]:
    value = node.meta.get("val")
    many = value if isinstance(value, (tuple, list)) else (value,)
    for one in many:
        sizes = one.shape if isinstance(one, Tensor) else (one,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                yield size.node.expr

"""What a user writes of sizes that vary, as torch.export takes it.

f(x, mask), {"x": {0: Dim("batch", max=64), 1: seq}, "mask": {1: seq}}
dimensions  batch 1..64, seq 1..
extents     x: axis 0 is batch, axis 1 is seq; mask: axis 1 is seq
2 * Dim("n"), Dim("n") + 1                an extent is an affine function of one dimension
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim
from torch.export.dynamic_shapes import _DerivedDim, _DimHint, _StaticDim, _tree_map_with_path
from torch.utils import _pytree as pytree

from anabranch.errors import OptionError
from anabranch.frontend.dynamic_shapes import Dimension, DynamicShapes, Extent
from anabranch.frontend.from_torch import module_for

WRITE = "write dynamic_shapes as torch.export takes it, such as {'x': {0: Dim('batch', max=64)}}"


def as_spec(shapes: DynamicShapes, args: Any, kwargs: Any) -> Any:
    """As torch.export takes it, in the structure of (args, kwargs)."""
    dims = [Dim(_identifier(d.name), min=d.least, max=d.most) for d in shapes.dimensions]
    extents = iter(shapes.extents)

    def told(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return None
        return {extent.axis: _dim(dims[extent.dimension], extent) for extent in next(extents)}

    leaves, tree = pytree.tree_flatten((args, dict(kwargs)))
    return pytree.tree_unflatten([told(leaf) for leaf in leaves], tree)


def _dim(dim: Any, extent: Extent) -> Any:
    scaled = dim if extent.times == 1 else extent.times * dim
    return scaled if not extent.plus else scaled + extent.plus


def _identifier(name: str) -> str:
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return plain if plain.isidentifier() else f"d_{plain}"


def by_place(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], spec: Any) -> Any:
    """The user's `dynamic_shapes` in the structure of (args, kwargs)."""
    if hasattr(spec, "dynamic_shapes"):  # a ShapesCollection
        spec = spec.dynamic_shapes(module_for(model), args, dict(kwargs))
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
    spec = _by_argument(spec, bound.arguments)
    if isinstance(spec, (tuple, list)):
        if len(spec) > len(names):
            raise _misfit(f"it has {len(spec)} parts, the call has {len(names)} arguments")
        spec = dict(zip(names, spec, strict=False))
    if not isinstance(spec, Mapping):
        raise _misfit(f"it is a {type(spec).__name__}")
    if unknown := [name for name in spec if name not in names]:
        raise _misfit(f"there is no argument {unknown[0]!r}; there are {', '.join(names)}")
    said: dict[int | str, Any] = {}
    for name, place in bound.arguments.items():  # a place, or those of *args, or of **kwargs
        of = spec.get(name)
        if isinstance(place, tuple):
            if of is not None and not isinstance(of, (tuple, list)):
                raise _misfit(f"the model takes *{name}: it needs a tuple for these, not {of!r}")
            said.update(zip(place, of or (None,) * len(place), strict=False))
        elif isinstance(place, dict):
            said.update({key: (of or {}).get(key) for key in place})
        else:
            said[place] = of
    return tuple(said.get(i) for i in range(len(args))), {key: said.get(key) for key in kwargs}


def _by_argument(spec: Any, arguments: Mapping[str, Any]) -> Any:
    """The same with keywords that the model takes by `**kwargs` under the name of that."""
    if not isinstance(spec, Mapping):
        return spec
    for name, place in arguments.items():
        if isinstance(place, dict):
            inside = {key: spec[key] for key in place if key in spec and key not in arguments}
            rest = {key: said for key, said in spec.items() if key not in inside}
            spec = {**rest, name: {**(spec.get(name) or {}), **inside}} if inside else spec
    return spec


def _nothing(value: Any) -> Any:
    return pytree.tree_map(lambda _: None, value)


def _misfit(why: str) -> OptionError:
    return OptionError("dynamic_shapes does not fit the inputs", why, WRITE)


def _leaves(args: Any, kwargs: Any, spec: Any) -> list[tuple[str, Any, Any]]:
    """Each leaf of the call with its place and what is said of it."""
    leaves: list[tuple[str, Any, Any]] = []
    whole = _padded(args, dict(kwargs), spec)
    try:
        _tree_map_with_path(
            lambda path, leaf, said: leaves.append((pytree.keystr(path[1:]), leaf, said)),
            (tuple(args), dict(kwargs)),
            whole,
            tree_name="inputs",
        )
    except Exception as wrong:  # torch's own words
        raise _misfit(" ".join(str(wrong).split())) from None
    return leaves


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
        if type(dim) is int and dim != leaf.shape[axis]:
            raise _misfit(f"axis {axis} has the size {leaf.shape[axis]}, and it says {dim}")
        static = dim is None or isinstance(dim, (int, _StaticDim))
        if static or (isinstance(dim, _DimHint) and dim.type.name == "STATIC"):
            continue
        if not isinstance(dim, (Dim, _DimHint)):
            raise _misfit(f"{dim!r} is no torch.export.Dim")
        yield axis % leaf.dim(), dim


def plain_spec(args: Any, kwargs: Any, spec: Any) -> Any:
    """The same by the structure of (args, kwargs) alone, each tensor's axes counted from the front,
    without those that do not vary."""
    leaves = [dict(_axes(leaf, said)) or None for _, leaf, said in _leaves(args, kwargs, spec)]
    return pytree.tree_unflatten(leaves, pytree.tree_flatten((tuple(args), dict(kwargs)))[1])


def has_hints(spec: Any) -> bool:
    """Whether torch.export is to find out what an axis is."""
    leaves = pytree.tree_leaves(spec, is_leaf=lambda x: isinstance(x, (Dim, _DimHint)))
    return any(isinstance(leaf, _DimHint) for leaf in leaves)


def named_axes(args: Any, kwargs: Any, spec: Any) -> Iterator[tuple[tuple[int, int], str]]:
    """What the user calls dimensions: by the number of the tensor and the axis."""
    number = 0
    for _, leaf, said in _leaves(args, kwargs, spec):
        for axis, dim in _axes(leaf, said):
            if not isinstance(dim, (_DimHint, _DerivedDim)):
                yield (number, axis), dim.__name__
        number += isinstance(leaf, Tensor)


def stated_shapes(args: Any, kwargs: Any, spec: Any) -> DynamicShapes:
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
                dimensions[key] = Dimension(name, max(1, root.min or 0), end_of(root.max))
            at.append(_extent(axis, dim, list(dimensions).index(key)))
        extents.append(tuple(at))
    if not dimensions:
        raise _misfit("no axis of a tensor varies in it")
    return DynamicShapes(tuple(dimensions.values()), tuple(extents))


def end_of(most: Any) -> int | None:
    """The largest size of a dimension, None if it has no end."""
    return most if isinstance(most, int) and most < 1 << 40 else None


def _extent(axis: int, dim: Any, number: int) -> Extent:
    if not isinstance(dim, _DerivedDim):
        return Extent(axis, number)
    function: Callable[[int], int] = dim.fn
    times = function(2) - function(1)
    return Extent(axis, number, times, function(1) - times)


def for_torch(module: torch.nn.Module, example: tuple[Any, Any], spec: Any) -> Any:
    """In the form in which torch.export asks for it: by the names of the module's arguments."""
    said = _padded(*example, spec)
    bound = inspect.signature(module.forward).bind(*said[0], **said[1])
    return dict(bound.arguments)


@contextmanager
def keywords_named(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Within it `forward` has an argument of its own for each of these keywords that it takes by
    `**kwargs`: torch.export keeps no dimension where a call has others."""
    forward, own = module.forward, "forward" in module.__dict__
    signature = inspect.signature(forward)
    parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [name for name in kwargs if name not in signature.parameters]
    if not more or len(parameters) == len(signature.parameters):
        yield
        return
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in more]

    @functools.wraps(forward)
    def named(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    named.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    module.__dict__["forward"] = named
    try:
        yield
    finally:
        if own:
            module.__dict__["forward"] = forward
        else:
            del module.__dict__["forward"]

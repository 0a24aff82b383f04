"""A call of any form -> the tensors of a plan, or what differs from what it was compiled for.

    compiled for   f(x, [a, b], scale=2.0)
    called as      f(scale=2.0, pair=(c, d), x=y)      [y, c, d]: the same by the model's signature
                   f(y, [c, d])                        "scale is 1.0, compiled for 2.0"

Arguments are compared by name. Keywords may stand for positions and come in any order, what is left
out has the model's own default, and a tuple may stand for a list, unless the model returns what is
in it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.arguments import DEFAULT, by_name, default_of, same_default
from anabranch.compiled.entry import Entry, signature_of
from anabranch.compiled.history import Text
from anabranch.errors import InputError
from anabranch.frontend.structure import (
    MARK,
    PLAIN_TENSORS,
    fits,
    lies_there,
    place_of,
    same_form,
    same_literal,
    shown,
)
from anabranch.ir.ambient import differs
from anabranch.ir.input_guards import why_broken
from anabranch.ir.trees import with_shapes
from anabranch.ir.types import DTYPE_NAMES, TensorType

TRACED = ("FakeTensor", "FunctionalTensor")
"""What torch.export and torch.compile have in place of tensors."""


@dataclass(slots=True)
class BoundCall:
    """A call as one plan reads it: `tensors` in the plan's order, if nothing differs."""

    tensors: list[Tensor] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


def bind(
    entry: Entry,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    free: Sequence[Collection[int]] = (),
) -> BoundCall:
    """What a plan makes of a call. InputError for one that the model's own signature refuses.
    `free`: for each tensor the axes that may have any size."""
    bound_call = BoundCall()
    places = _places(entry, args, kwargs, bound_call.differences)
    if places is None:
        return bound_call
    types, axes = iter(entry.plan.tasks.call_inputs), iter(free)
    for number, expected in enumerate(signature_of(entry).inputs):
        type = None if expected.ref is None else next(types).type
        sizes = () if type is None else next(axes, ())
        if number not in places:
            continue  # said where it was looked for
        path, value = places[number]
        if type is None:
            if not same_literal(value, expected.literal):
                said = f"{path} is {told(value)}, compiled for {shown(expected.literal)}"
                bound_call.differences.append(said)
        elif not fits(value, type, entry.device, sizes):
            bound_call.differences.append(f"{path} is {_unlike(value, type, entry.device)}")
        elif not lies_there(value, expected.offset, type):
            here, there = value.storage_offset(), expected.offset
            bound_call.differences.append(
                f"{path} begins at {place_of(here, value.stride())}, compiled for "
                f"{place_of(there, type.strides)}: the model's as_strided counts in that memory"
            )
        else:
            bound_call.tensors.append(value)
    for asked in signature_of(entry).asked:
        path, value = places.get(asked.leaf, ("", None))
        if isinstance(value, Tensor) and value.__class__ in PLAIN_TENSORS:
            bound_call.differences += map(str, filter(None, [why_broken(asked, value, path)]))
    if signature_of(entry).exact and not bound_call.differences:
        bound_call.differences += _other_form(entry, args, kwargs)
    if signature_of(entry).distinct:
        bound_call.differences += _one_in_two_places(places)
    if other := differs(signature_of(entry).ambient):
        bound_call.differences.append(str(other))
    return bound_call


def _other_form(entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The refusal of containers of another form, for a model that looks at their form."""
    tree = with_shapes(entry.trees[0])
    like = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    named, own = by_name(entry.call, *like), by_name(entry.call, args, dict(kwargs))
    return [
        f"{name} {_form_of(named[name])} than was compiled, which the model looks at"
        for name in named
        if name in own and not same_form(((named[name],), {}), ((own[name],), {}))
    ]


def _form_of(like: Any) -> str:
    """The difference of a value that has not this one's form."""
    if type(like) is torch.Size:
        return "is another thing, and no torch.Size,"
    return "has a list where a tuple was, or keys in another order"


def _one_in_two_places(places: Mapping[int, tuple[str, Any]]) -> list[str]:
    """The refusal of inputs that are one tensor, for a model that looks whether they are."""
    first: dict[int, str] = {}
    said = []
    for path, value in places.values():
        if isinstance(value, Tensor) and first.setdefault(id(value), path) != path:
            said.append(
                f"{first[id(value)]} and {path} are one tensor, which the model looks for (`is`), "
                "compiled for two"
            )
    return said


def refusal(
    entries: Sequence[Entry],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    more: str,
    why: str = "",
) -> InputError:
    """Why a call fits no plan: what differs from the nearest, and all that there are. `why`: what
    is known beside that."""
    try:
        bound = [bind(entry, args, kwargs) for entry in entries]
        nearest = min(bound, key=lambda to: (len(to.differences), -len(to.tensors))).differences
    except InputError as refused:
        nearest, what = [refused.why], refused.what
    else:
        arguments = [f"{told(value)}" for value in args]
        arguments += [f"{name}={told(value)}" for name, value in kwargs.items()]
        what = f"this call was not compiled: ({', '.join(arguments)})"
    compiled = "; ".join(map(shapes, entries))
    return InputError(what, why or "; ".join(nearest), f"compiled: {compiled}. {more}")


def shapes(entry: Entry) -> str:
    """The call that a plan was compiled for: "(x=f32[2,3], scale=2.0)"."""
    types = iter(entry.plan.tasks.call_inputs)
    leaves = [
        Text(shown(leaf.literal) if leaf.ref is None else next(types).type.text.partition("{")[0])
        for leaf in signature_of(entry).inputs
    ]
    args, kwargs = pytree.tree_unflatten(leaves, entry.trees[0])
    named = by_name(entry.call, args, kwargs)
    return f"({', '.join(f'{name}={value!r}' for name, value in named.items())})"


def names_of(entry: Entry) -> list[str]:
    """A person's names of the tensors that a plan reads, in its order: "x", "pair[0]"."""
    leaves = signature_of(entry).inputs
    tree = entry.trees[0]
    args, kwargs = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    places = _places(entry, args, kwargs, []) or {}
    return [places.get(i, ("?", 0))[0] for i, leaf in enumerate(leaves) if leaf.ref is not None]


def told(value: Any, device: torch.device | None = None) -> str:
    """What was given, in few words: "f32[2,3]", "3", "a list [f32[2], None]"."""
    if isinstance(value, Tensor):
        return _tensor(value, device)
    if type(value) is str and value.startswith(MARK):
        return shown(value)
    if value is DEFAULT or isinstance(value, (int, float, complex, str, type(None))):
        return repr(value) if len(repr(value)) <= 80 else f"{value!r:.77}..."
    if isinstance(value, torch.Size):
        return repr(value)
    if type(value) in (list, tuple) and len(value) <= 8:
        inside = ", ".join(map(told, value))
        return f"[{inside}]" if type(value) is list else f"({inside})"
    if type(value) is dict and len(value) <= 8:
        return "{" + ", ".join(f"{key!r}: {told(part)}" for key, part in value.items()) + "}"
    return f"a {type(value).__name__}"


def _places(
    entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any], wrong: list[str]
) -> dict[int, tuple[str, Any]] | None:
    """Each leaf of the compiled call by its number: where it stands in this call, and what is
    there. None if the structures cannot be compared."""
    tree = entry.trees[0]
    try:
        example = pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    except Exception:  # a class of somebody else's refuses numbers
        return _as_given(entry, args, kwargs, wrong)
    like = by_name(entry.call, *example)
    arguments = by_name(entry.call, args, dict(kwargs))
    places: dict[int, tuple[str, Any]] = {}
    for name in [*like, *(name for name in arguments if name not in like)]:
        default = default_of(entry.call, name)
        wanted, has = like.get(name, default), arguments.get(name, default)
        if wanted is Parameter.empty:
            wrong.append(f"there was no {name} when it was compiled, now {name} is {told(has)}")
        elif has is Parameter.empty:
            wrong.append(f"{name} is missing")
        elif name in like:
            _match(entry, name, wanted, has, places, wrong)
        elif not same_default(wanted, has):
            wrong.append(f"{name} is {told(has)}, compiled for {told(wanted)}, its default")
    return places


def _as_given(
    entry: Entry, args: Sequence[Any], kwargs: Mapping[str, Any], wrong: list[str]
) -> dict[int, tuple[str, Any]] | None:
    try:
        leaves = entry.trees[0].flatten_up_to((tuple(args), dict(kwargs)))
    except ValueError:
        wrong.append("its arguments are nested in another way than was compiled")
        return None
    return {number: (f"input {number}", leaf) for number, leaf in enumerate(leaves)}


def _match(
    entry: Entry,
    path: str,
    like: Any,
    actual: Any,
    places: dict[int, tuple[str, Any]],
    wrong: list[str],
) -> None:
    """Finds the leaves of a value that has this structure; says where it has another."""
    if type(like) is int:
        places[like] = path, actual
    elif isinstance(like, dict) and isinstance(actual, dict):
        for key in [*like, *(key for key in actual if key not in like)]:
            if key not in like:
                wrong.append(f"{path}[{key!r}] is more than was compiled")
            elif key not in actual:
                wrong.append(f"{path}[{key!r}] is missing")
            else:
                _match(entry, f"{path}[{key!r}]", like[key], actual[key], places, wrong)
    elif _row(like) and _row(actual) and (type(like) is type(actual) or not _returned(entry, like)):
        if len(like) != len(actual):
            wrong.append(f"{path} has {len(actual)} items, compiled for {len(like)}")
            return
        for place, (item, other) in enumerate(zip(like, actual, strict=True)):
            _match(entry, f"{path}[{place}]", item, other, places, wrong)
    else:
        _match_class(path, like, actual, places, wrong)


def _match_class(
    path: str, like: Any, actual: Any, places: dict[int, tuple[str, Any]], wrong: list[str]
) -> None:
    """As `_match`, of classes that only pytree knows."""
    leaves, tree = pytree.tree_flatten_with_path(like)
    try:
        values = tree.flatten_up_to(actual)
    except ValueError:
        kind = "a plain value" if not leaves else f"a {type(like).__name__}"
        wrong.append(f"{path} is {told(actual)}, compiled for {kind}")
        return
    for (inside, number), value in zip(leaves, values, strict=True):
        places[number] = path + pytree.keystr(inside), value


def _row(value: Any) -> bool:
    return type(value) in (list, tuple, torch.Size)


def _returned(entry: Entry, like: Any) -> bool:
    """Whether the model returns a part of this argument: then a list that it was given is one that
    it may return."""
    signature = signature_of(entry)
    returned = {leaf.ref.name for leaf in signature.outputs if leaf.ref is not None}
    inside = [signature.inputs[number].ref for number in pytree.tree_leaves(like)]
    return any(ref is not None and ref.name in returned for ref in inside)


def _unlike(value: Any, type: TensorType, device: torch.device | None) -> str:
    """The difference between this value and the tensor type that was compiled for."""
    wanted = type.text.partition("{")[0]
    if not isinstance(value, Tensor):
        return f"{told(value)}, compiled for a tensor {wanted}"
    name = value.__class__.__name__
    if name in TRACED:
        return f"a {name}, which has no numbers: a plan cannot be traced, export the model itself"
    if value.__class__ not in PLAIN_TENSORS:
        return f"a {name}, compiled for a plain tensor {wanted}: give x.as_subclass(torch.Tensor)"
    elsewhere = device is not None and value.device != device
    where = f" on {device}" if elsewhere else ""
    return f"{_tensor(value, device)}, compiled for {wanted}{where}"


def _tensor(tensor: Tensor, device: torch.device | None) -> str:
    dtype = DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    try:
        shape = ",".join(map(str, tensor.shape))
    except RuntimeError:
        return f"{dtype}, a nested tensor of {tensor.size(0)}"
    said = f"{dtype}[{shape}]"
    if tensor.is_meta:
        return f"{said} without values, on the meta device"
    if tensor.layout != torch.strided:
        said += f" ({str(tensor.layout).removeprefix('torch.')})"
    return said if device is None or tensor.device == device else f"{said} on {tensor.device}"

"""Calls and results of tuples, lists and dicts, without torch's pytree: walking that takes longer
than all else the host does in a call.

    f(x, {"mask": m}, scale=2)     read -> [x, m]; None for what is not as compiled
    returns (y, [x, None])         assemble([x, m], [y]) -> (y, [x, None])

A call that no reader takes is for `structure.flatten_call`, which takes it after all (classes that
are registered with pytree) or says what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from anabranch.frontend.structure import fits, lies_there, same_form, same_literal
from anabranch.frontend.value_checks import checker
from anabranch.ir.ambient import holds
from anabranch.ir.graph import Input
from anabranch.ir.input_guards import guards_hold
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import with_shapes

Reader = Callable[[tuple[Any, ...], Mapping[str, Any]], Sequence[Tensor] | None]
Assembler = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]
ReadPart = Callable[[Sequence[Tensor]], Any]


def reader(
    signature: Signature,
    inputs: Sequence[Input],
    tree: TreeSpec,
    device: torch.device | None = None,
    free: Sequence[Collection[int]] = (),
) -> Reader:
    """A function that makes the tensors of a call, in the order of the graph's `inputs`, out of its
    arguments; None for a call under other switches of torch than the plan was captured under, or
    with tensors that answer otherwise what the model asks them. Tensors on the CPU are read more
    quickly where that is the `device`. `free`: for each tensor the axes that may have any size."""
    like = _numbered(tree)
    if not _plain(like):
        return lambda args, kwargs: None
    types = iter([value.type for value in inputs])
    wanted = [None if leaf.ref is None else next(types) for leaf in signature.inputs]
    literals = [leaf.literal for leaf in signature.inputs]
    counted = any(leaf.offset is not None for leaf in signature.inputs)
    offsets = [leaf.offset for leaf in signature.inputs if leaf.ref is not None]
    types_read = [value.type for value in inputs]
    axes = iter(free)
    parts = [
        (type and type.dtype, type and type.shape, type, literal, next(axes, ()) if type else ())
        for type, literal in zip(wanted, literals, strict=True)
    ]
    count = len(wanted)
    flat = like == (tuple(range(count)), {})
    host = device is not None and device.type == "cpu" and not free
    strided = torch.strided
    ambient = holds(signature.ambient)
    numbers = list(accumulate((leaf.ref is not None for leaf in signature.inputs), initial=0))
    answers = guards_hold(signature.asked, numbers) if signature.asked else None
    distinct, exact = signature.distinct, signature.exact
    form = _numbered(with_shapes(tree))

    def read(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Tensor] | None:
        leaves: Any = args
        if not ambient():
            return None
        if not flat:
            leaves = []
            call = (args, kwargs)
            if not _gather(like, call, leaves) or (exact and not same_form(form, call)):
                return None
        elif kwargs or len(args) != count:
            return None
        tensors = []
        try:
            for leaf, (dtype, shape, type, literal, any_size) in zip(leaves, parts):  # noqa: B905
                if host and leaf.__class__ is Tensor and type is not None:
                    # As `fits`, without a call of it, which takes as long as two questions.
                    fit = leaf.is_cpu and leaf.dtype == dtype and leaf.layout == strided
                    if not fit or leaf.shape != shape:
                        return None
                elif type is None:
                    if not same_literal(leaf, literal):
                        return None
                    continue
                elif not fits(leaf, type, device, any_size):
                    return None
                tensors.append(leaf)
        except RuntimeError:  # a nested tensor, which has no shape
            return None
        if counted and not all(map(lies_there, tensors, offsets, types_read)):
            return None
        if answers is not None and not answers(tensors):
            return None
        if distinct and len(set(map(id, tensors))) < len(tensors):
            return None
        return tensors

    return read


def assembler(
    signature: Signature,
    inputs: Sequence[str],
    outputs: Sequence[str],
    tree: TreeSpec,
    stateful: bool = False,
    objects: Mapping[Any, Any] = MappingProxyType({}),
) -> Assembler:
    """A function that makes the model's result out of the tensors of a call and those that a plan
    made of them; by their names `inputs` and `outputs`. What the model returns of its inputs is the
    caller's own tensor; what it writes to its inputs is written to them, unless a check that the
    model makes of values fails, which raises as the model does. `stateful`: the plan has written to
    its states by then; `objects`: what a plain value among the results stands for."""
    slots: dict[str, list[int]] = {}
    for place, name in enumerate(outputs):
        slots.setdefault(name, []).append(place)
    input_slots = {name: place for place, name in enumerate(inputs, len(outputs))}
    written = [(input_slots[name], slots[ref.name][-1]) for name, ref in signature.mutations]
    own: dict[str, list[int]] = {}
    for name, ref in signature.mutations:
        own.setdefault(ref.name, []).append(input_slots[name])
    count, copies = len(outputs) + len(inputs), dict[tuple[str, int], tuple[int, int, int]]()

    def place_of(name: str, number: int) -> int:
        if name in input_slots or number < len(own.get(name, ())):
            return input_slots[name] if name in input_slots else own[name][number]
        first, again = slots[name][0], slots[name][min(number, len(slots[name]) - 1)]
        if not number:
            return first
        return copies.setdefault((name, number), (count + len(copies), first, again))[0]

    leaves = [_leaf(leaf, place_of, objects) for leaf in signature.outputs]
    apart = [(first, again) for _, first, again in copies.values()]
    tree = with_shapes(tree)
    like = _numbered(tree)
    whole = _part(like, leaves) if _plain(like) else None
    first_of = {name: places[0] for name, places in slots.items()} | input_slots
    check = checker(signature.checks, first_of, stateful)

    def assemble(tensors: Sequence[Tensor], results: Sequence[Tensor]) -> Any:
        values = [*results, *tensors]
        if check is not None:
            check(values)
        for own, of in written:
            values[own].copy_(values[of])
        for first, again in apart:
            original, other = values[first], values[again]
            values.append(other.clone() if original.data_ptr() == other.data_ptr() else other)
        if whole is None:
            return pytree.tree_unflatten([leaf(values) for leaf in leaves], tree)
        return whole(values)

    return assemble


def _numbered(tree: TreeSpec) -> Any:
    """The structure with the numbers of its leaves in their places; None if a class of somebody
    else's refuses numbers."""
    try:
        return pytree.tree_unflatten(list(range(tree.num_leaves)), tree)
    except Exception:
        return None


def _plain(like: Any) -> bool:
    if type(like) is dict:
        return all(map(_plain, like.values()))
    return type(like) is int or (type(like) in (tuple, list) and all(map(_plain, like)))


def _gather(like: Any, value: Any, leaves: list[Any]) -> bool:
    """Append the leaves of a value that has this structure; False if it has another. A torch.Size
    is a tuple."""
    kind = type(like)
    if kind is int:
        leaves.append(value)
        return True
    if type(value) is not kind and (kind is not tuple or type(value) is not torch.Size):
        return False
    if len(value) != len(like):
        return False
    if kind is dict and like.keys() != value.keys():
        return False
    for key in like if kind is dict else range(len(like)):  # `all` takes twice as long
        if not _gather(like[key], value[key], leaves):
            return False
    return True


def _leaf(leaf: Leaf, place_of: Callable[[str, int], int], objects: Mapping[Any, Any]) -> ReadPart:
    literal, ref = objects.get(leaf.literal, leaf.literal), leaf.ref
    return (lambda values: literal) if ref is None else itemgetter(place_of(ref.name, leaf.number))


def _part(like: Any, leaves: Sequence[ReadPart]) -> ReadPart:
    """What makes a value of this structure."""
    if type(like) is int:
        return leaves[like]
    if type(like) is dict:
        named = [(key, _part(part, leaves)) for key, part in like.items()]
        return lambda values: {key: part(values) for key, part in named}
    parts = [_part(part, leaves) for part in like]
    if type(like) is tuple:
        return lambda values: tuple([part(values) for part in parts])
    return lambda values: [part(values) for part in parts]

"""Calls -> lists of tensors -> results, as a Signature says.

    f(x, {"mask": m}, scale=2)     flatten_call -> [x, m]; refuses another scale than 2
    returns (y, [x, None])         unflatten_result({"add": t, "x": x}) -> (t, [x, None])

Trees are torch's pytrees, so every class registered there works.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._pytree import TreeSpec

from anabranch.errors import InputError
from anabranch.frontend.checks import name_of_leaf
from anabranch.ir.graph import Input
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import read_tree
from anabranch.ir.types import TensorType

MARK = "anabranch.held:"
"""What stands for an object that a model holds begins with this; its name follows."""
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
"""Classes of tensors that kernels can read: others have rules of their own for what is done to
them, or no memory at all."""


def flatten_call(
    signature: Signature,
    inputs: Sequence[Input],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    tree: TreeSpec | None = None,
) -> list[torch.Tensor]:
    """The tensors of a call, in the order of the graph's `inputs`.

    `tree`: the live structure, for a signature without text. Keyword arguments and dicts may come
    in any order; strides may differ. Raises InputError that says what differs from what was
    compiled.
    """
    spec = tree or read_tree(signature.input_tree)
    leaves, structure = pytree.tree_flatten((args, kwargs))
    if structure != spec:
        leaves = _in_order(spec, args, kwargs)
    tensors: list[torch.Tensor] = []
    declared = iter(inputs)
    for position, (leaf, expected) in enumerate(zip(leaves, signature.inputs, strict=True)):
        if expected.ref is None:
            if not same_literal(leaf, expected.literal):
                raise _differs(spec, position, shown(expected.literal), leaf)
            continue
        type = next(declared).type
        if not fits(leaf, type):
            raise _differs(spec, position, f"{type.text.partition('{')[0]}", leaf)
        if not lies_there(leaf, expected.offset, type):
            raise _lies_elsewhere(spec, position, expected.offset, type, leaf)
        tensors.append(leaf)
    return tensors


def fits(
    value: Any,
    type: TensorType,
    device: torch.device | None = None,
    free: Collection[int] = (),
) -> bool:
    """Whether a plan that was compiled for a tensor of this type may be given this: a plain dense
    tensor, on the plan's `device` unless that is None or it is a single number on the CPU. `free`:
    axes that may have any size."""
    try:
        return (
            value.__class__ in PLAIN_TENSORS
            and value.dtype == type.dtype
            and (value.shape == type.shape or _same_but(value.shape, type.shape, free))
            and value.layout == torch.strided
            and not value.is_meta
            and (device is None or value.device == device or (value.is_cpu and not type.shape))
        )
    except RuntimeError:  # a nested tensor, which has no shape
        return False


def _same_but(shape: Sequence[int], wanted: Sequence[int], free: Collection[int]) -> bool:
    if not free or len(shape) != len(wanted):
        return False
    # In a comprehension it takes twice as long.
    for axis, size in enumerate(wanted):  # noqa: SIM110
        if shape[axis] != size and axis not in free:
            return False
    return True


def lies_there(tensor: torch.Tensor, offset: int | None, type: TensorType) -> bool:
    """Whether the tensor lies in its memory as the model counts on it: begins there, and has the
    same strides."""
    if offset is None:
        return True
    sides = zip(type.shape, type.strides, tensor.stride(), strict=True)
    return tensor.storage_offset() == offset and all(n == 1 or a == b for n, a, b in sides)


def shown(literal: Any) -> str:
    """A plain value for people, or that it stands for an object."""
    marked = type(literal) is str and literal.startswith(MARK)
    return "the object of the example" if marked else repr(literal)


def same_literal(value: Any, compiled: Any) -> bool:
    """Whether a Python value is the one that was compiled in; NaN is itself, 0.0 is not -0.0."""
    if type(value) is not type(compiled):
        return False
    if isinstance(value, float):
        if math.isnan(value):
            return math.isnan(compiled)
        return value == compiled and math.copysign(1.0, value) == math.copysign(1.0, compiled)
    if isinstance(value, complex):
        return same_literal(value.real, compiled.real) and same_literal(value.imag, compiled.imag)
    return bool(value == compiled)


def same_form(like: Any, call: tuple[Sequence[Any], Mapping[str, Any]]) -> bool:
    """Whether the containers among a call's arguments are those of the call that is `like` it:
    lists are lists, and dicts have their keys in one order."""
    return _same_form(list(like[0]), list(call[0])) and _same_form(like[1], dict(call[1]))


def _same_form(like: Any, value: Any) -> bool:
    if type(like) not in (dict, list, tuple, torch.Size):
        return True
    if type(like) is not type(value) or len(like) != len(value):
        return False
    if type(like) is dict:
        return list(like) == list(value) and all(_same_form(like[k], value[k]) for k in like)
    return all(map(_same_form, like, value))


def unflatten_result(
    signature: Signature, tensors: Mapping[str, torch.Tensor], tree: TreeSpec | None = None
) -> Any:
    """The model's result, given the tensor of each value that `signature.outputs` names."""
    spec = tree or read_tree(signature.output_tree)

    def value(leaf: Leaf) -> Any:
        return leaf.literal if leaf.ref is None else tensors[leaf.ref.name]

    return pytree.tree_unflatten([value(leaf) for leaf in signature.outputs], spec)


def _in_order(spec: TreeSpec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves where only the order of keys differs."""
    try:
        return spec.flatten_up_to((args, dict(kwargs)))
    except ValueError as mismatch:
        example = pytree.tree_unflatten(["*"] * spec.num_leaves, spec)
        raise InputError(
            f"the model is called with {_shape_of_call(args, kwargs)}",
            f"it was compiled for {_shape_of_call(*example)}: {mismatch}",
            "call it as it was compiled, or compile it for this call too",
        ) from None


def _shape_of_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The nesting without the leaves: f(*, [*, *], mask=*)."""

    def star(value: Any) -> str:
        return repr(pytree.tree_map(lambda _: _Star(), value))

    inside = [star(arg) for arg in args] + [f"{key}={star(arg)}" for key, arg in kwargs.items()]
    return f"f({', '.join(inside)})"


class _Star:
    """A leaf, whatever it is."""

    def __repr__(self) -> str:
        return "*"


def place_of(offset: Any, strides: Sequence[int]) -> str:
    """Where a tensor lies in its memory, in words."""
    return f"element {offset} of its memory with strides {tuple(strides)}"


def _lies_elsewhere(
    spec: TreeSpec, position: int, offset: int | None, type: TensorType, tensor: torch.Tensor
) -> InputError:
    here = place_of(tensor.storage_offset(), tensor.stride())
    return InputError(
        f"{_path(spec, position)} begins at {here}",
        "the model calls as_strided, which counts in that memory, and was compiled for a tensor "
        f"that begins at {place_of(offset, type.strides)}",
        "give a tensor that lies there, or compile the model for this one too",
    )


def _path(spec: TreeSpec, position: int) -> str:
    example = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    return name_of_leaf(pytree.tree_flatten_with_path(example)[0][position][0])


def _differs(spec: TreeSpec, position: int, compiled: str, value: Any) -> InputError:
    path = _path(spec, position)
    if isinstance(value, torch.Tensor):
        shape = ",".join(map(str, value.shape))
        said = f"a tensor {str(value.dtype).removeprefix('torch.')}[{shape}]"
        said += " without values" if value.is_meta else ""
        said += "" if value.layout == torch.strided else f" ({value.layout})"
    else:
        said = f"{value!r}" if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
    return InputError(
        f"{path} is {said}",
        f"the model was compiled for {compiled} there",
        "call it as it was compiled, or compile it for this call too",
    )

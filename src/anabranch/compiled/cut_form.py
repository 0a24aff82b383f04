"""Calls of one structure of a model that is cut: how they are read, and the ways they go.

fast(x, scale=2.0)     read -> [x]      None for another shape, dtype or scale
paths                  the ways that examples of such calls went
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.arguments import model_signature
from anabranch.compiled.cut_path import CutPath
from anabranch.errors import InputError
from anabranch.frontend.call_readers import Reader, reader
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.structure import flatten_call
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.translate import tensor_type
from anabranch.ir.ambient import holds
from anabranch.ir.graph import Input, Ref
from anabranch.ir.plan import Leaf, Signature

PLACE = object()
"""Stands for a tensor among the leaves of a call."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class CallForm:
    """`leaves`: of the example's call, with PLACE for tensors; `call`: the names that calls may
    use, None where nobody knows of any."""

    read: Reader
    signature: Signature
    inputs: tuple[Input, ...]
    in_tree: pytree.TreeSpec
    leaves: tuple[Any, ...]
    call: inspect.Signature | None
    paths: list[CutPath] = field(default_factory=list)

    def alike(self, other: CallForm) -> bool:
        """Whether both are of the same calls."""
        mine, theirs = ((x.signature, x.inputs, x.in_tree) for x in (self, other))
        return mine == theirs

    def rebuilt(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """Positional and keyword arguments of a call with these tensors."""
        remaining = iter(tensors)
        leaves = [next(remaining) if leaf is PLACE else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.in_tree)
        return args, kwargs

    def bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """The tensors of a call, whichever of the model's arguments are given by name. InputError
        for a call of another form."""
        call = _as_example(self, args, kwargs)
        tensors = flatten_call(self.signature, self.inputs, *call, self.in_tree)
        if not holds(self.signature.ambient)():
            raise InputError(
                "this call is made under other switches of torch than the example was",
                "autocast or the default dtype is another one, and results would be, too",
                "call it as it was compiled, or compile again",
            )
        return tensors


def form_of(
    model: Any,
    trace: CutTrace,
    surroundings: Surroundings,
    device: torch.device,
    here: torch.device | None,
) -> CallForm:
    """The form of the call of the model that was traced, without paths. `device`: where the model
    is; `here`: where inputs must be, None where nothing runs."""
    names = iter(trace.inputs)
    leaves = tuple(
        Leaf(Ref(next(names))) if isinstance(leaf, Tensor) else Leaf(None, leaf)
        for leaf in trace.leaves
    )
    tensors = [leaf for leaf in trace.leaves if isinstance(leaf, Tensor)]
    inputs = tuple(
        Input(name, tensor_type(tensor, f"the input {name}"))
        for name, tensor in zip(trace.inputs, tensors, strict=True)
    )
    signature = Signature("", leaves, "", (), (), surroundings.ambient(device, True))
    read = reader(signature, inputs, trace.in_tree, here)
    marked = tuple(PLACE if isinstance(leaf, Tensor) else leaf for leaf in trace.leaves)
    return CallForm(read, signature, inputs, trace.in_tree, marked, model_signature(model))


def _as_example(
    form: CallForm, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call as the example was written, by position or by name."""
    signature = form.call
    if signature is None:
        return args, dict(kwargs)
    like_args, like_kwargs = pytree.tree_unflatten(list(form.leaves), form.in_tree)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as wrong:
        raise InputError(
            "this call does not fit the model", str(wrong), "call it as the model is called"
        ) from None
    positional = [p.name for p in signature.parameters.values() if p.kind in POSITIONAL]
    if len(like_args) > len(positional) or len(bound.args) > len(positional):
        return args, dict(kwargs)
    arguments = bound.arguments
    first = positional[: len(like_args)]
    if not {*first, *like_kwargs} >= arguments.keys() or not all(
        name in arguments for name in first
    ):
        return args, dict(kwargs)
    return tuple(arguments[name] for name in first), {
        name: arguments[name] for name in like_kwargs if name in arguments
    }

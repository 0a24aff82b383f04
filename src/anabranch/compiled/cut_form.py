"""Calls of one structure of a model that is cut: how they are read, and the ways they go.

fast(x, scale=2.0)     read -> [x]      None for another shape, dtype or scale
paths                  the ways that examples of such calls went
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.compiled.arguments import model_signature
from anabranch.compiled.cut_path import CutPath
from anabranch.errors import InputError
from anabranch.frontend.call_readers import Reader, reader
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.mode_queries import relied_on
from anabranch.frontend.observe import Observed
from anabranch.frontend.structure import flatten_call, same_form
from anabranch.frontend.surroundings import Surroundings
from anabranch.frontend.translate import tensor_type
from anabranch.ir.ambient import Ambient, differs, holds
from anabranch.ir.graph import Input, Ref
from anabranch.ir.input_guards import InputGuard, why_broken
from anabranch.ir.plan import Leaf, Signature
from anabranch.ir.trees import with_shapes

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

    def united(self, other: CallForm, here: torch.device | None) -> CallForm | None:
        """The form of the calls that are of both, on whose ways the model may ask for all that it
        asks for on theirs, with the ways of this one; None where no call is. `here`: where inputs
        must be."""
        if (self.inputs, self.in_tree) != (other.inputs, other.in_tree):
            return None
        signature = _united(self.signature, other.signature)
        if signature is None or signature == self.signature:
            return self if signature is not None else None
        read = reader(signature, self.inputs, self.in_tree, here)
        return replace(self, signature=signature, read=read)

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
                str(differs(self.signature.ambient)),
                "call it as it was compiled, or compile again",
            )
        if why := self._otherwise(tensors, args, kwargs):
            raise InputError(
                "this call was not compiled",
                why,
                "give such inputs to add(...), or call it as it was compiled",
            )
        return tensors

    def _otherwise(
        self, tensors: Sequence[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> str:
        """What the model asked of the example's inputs, and is otherwise now; "" if nothing is."""
        places = [place for place, leaf in enumerate(self.leaves) if leaf is PLACE]
        numbers = {place: number for number, place in enumerate(places)}
        for guard in self.signature.asked:
            number = numbers[guard.leaf]
            if wrong := why_broken(guard, tensors[number], self.inputs[number].name):
                return str(wrong)
        if self.signature.distinct and len(set(map(id, tensors))) < len(tensors):
            return "two of the inputs are one tensor, and the model looks for that"
        like = pytree.tree_unflatten(list(range(len(self.leaves))), with_shapes(self.in_tree))
        if self.signature.exact and not same_form(like, (args, kwargs)):
            return "containers have another form than was compiled, which the model looks at"
        return ""


def _united(first: Signature, other: Signature) -> Signature | None:
    """What both ask of a call; None where no call answers both."""
    guards = {(guard.leaf, guard.what): guard for guard in first.asked}
    for guard in other.asked:
        if guards.setdefault((guard.leaf, guard.what), guard) != guard:
            return None
    ambient = _united_ambient(first.ambient, other.ambient)
    if ambient is None or first.inputs != other.inputs:
        return None
    return replace(
        first,
        ambient=ambient,
        asked=tuple(guards.values()),
        distinct=first.distinct or other.distinct,
        exact=first.exact or other.exact,
    )


def _united_ambient(first: Ambient, other: Ambient) -> Ambient | None:
    heard = dict(first.asked)
    if any(heard.setdefault(question, was) != was for question, was in other.asked):
        return None
    ambient = replace(
        first,
        default_dtype=first.default_dtype or other.default_dtype,
        asks_deterministic=first.asks_deterministic or other.asks_deterministic,
        asked=tuple(heard.items()),
    )
    theirs = replace(
        other,
        default_dtype=other.default_dtype or first.default_dtype,
        asks_deterministic=other.asks_deterministic or first.asks_deterministic,
        asked=ambient.asked,
    )
    return ambient if ambient == theirs else None


def form_of(
    model: Any,
    trace: CutTrace,
    surroundings: Surroundings,
    device: torch.device,
    here: torch.device | None,
    asked: tuple[InputGuard, ...] = (),
    seen: Observed | None = None,
) -> CallForm:
    """The form of the call of the model that was traced, without paths. `device`: where the model
    is; `here`: where inputs must be, None where nothing runs; `asked`: what must be of them as of
    the example's; `seen`: a call of the model."""
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
    ambient = surroundings.ambient(device, True)
    if seen is not None:
        ambient = relied_on(ambient, seen.asks, surroundings)
    distinct, exact = (seen.distinct, seen.exact) if seen is not None else (False, False)
    signature = Signature("", leaves, "", (), (), ambient, asked, distinct, exact)
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

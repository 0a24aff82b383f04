"""Gradients: a plan has none, and says so where they are asked for.

    weights that require them    results require gradients, as the model's do; asking for them is
                                 refused: backward(), torch.autograd.grad, autograd.functional
    inputs that require them     the same, and one warning
    no gradients asked for       plain results, and no cost
    weights that require them    the same as if they had from the start: in grad mode each call
    later (unfrozen)             looks at those that did not, once its results are on their way

A result that silently required no gradients would leave weights untrained without a word. One whose
history did not lead to the inputs and weights would have a gradient of None, or zeros, with regard
to them: so the node that refuses hangs on these.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.frontend.captured import Captured
from anabranch.ir import ops
from anabranch.ir.graph import Graph

HOW = (
    "call it under torch.no_grad(), freeze the model with requires_grad_(False) before compiling, "
    "detach() the result, or take gradients of the original model (to train it, and load its "
    "weights afterwards)"
)
REFUSED = (
    "gradients were asked for of a result of a model compiled by Anabranch (backward(), grad)\n"
    "  why:  a plan computes results alone: gradients of its weights and inputs are not known\n"
    f"  next: {HOW}"
)
WARNING = (
    "an input of a compiled model requires gradients, and none will come: a plan computes results "
    f"alone, and asking for gradients of them is refused; {HOW}"
)
DelayedError = torch._C._functions.DelayedError
any_requires_grad = torch._C._any_requires_grad
"""Whether any of these tensors requires gradients: 0.03 us for each."""


class Seal:
    """Makes these of `count` results require gradients that are refused when they are asked for: a
    node of autograd's own, which takes a microsecond or two."""

    def __init__(self, places: Sequence[int], count: int, roots: Sequence[Tensor] = ()) -> None:
        """`roots`: tensors that gradients could be asked of, beside those of each call."""
        self._places = places
        self._whole = len(places) == count
        self._roots = tuple(roots)

    def __call__(self, results: Sequence[Tensor], inputs: Sequence[Tensor] = ()) -> list[Tensor]:
        """The results; `inputs`: those of the call that require gradients."""
        begin = len(self._roots) + len(inputs)
        sealed = DelayedError(REFUSED, begin + len(self._places))
        if self._whole:
            return list(sealed(*self._roots, *inputs, *results)[begin:])
        changed = list(results)
        tensors = sealed(*self._roots, *inputs, *[results[i] for i in self._places])[begin:]
        for place, tensor in zip(self._places, tensors, strict=True):
            changed[place] = tensor
        return changed


@dataclass(frozen=True, slots=True)
class Trained:
    """Places of results for which the model itself would find gradients of its weights. `roots`: a
    tensor whose history leads to all of these weights; empty where there are none. `frozen`: the
    parameters that require no gradients yet."""

    places: frozenset[int] = frozenset()
    roots: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)
    frozen: tuple[Tensor, ...] = field(default=(), repr=False, compare=False)


def warn_of_inputs() -> None:
    """Once for a compiled model."""
    warnings.warn(WARNING, stacklevel=5)


def asked_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Those that gradients are asked of."""
    return [tensor for tensor in tensors if tensor.requires_grad]


def sealed_results(
    tensors: Sequence[Tensor], results: Sequence[Any], roots: Sequence[Tensor]
) -> list[Any]:
    """Results that the model would have gradients of, of inputs or of its weights (`roots`), refuse
    to give them."""
    inputs = asked_of(tensors)
    places = [
        place
        for place, result in enumerate(results)
        if isinstance(result, Tensor)
        and _continuous(result.dtype)
        and not any(result is tensor for tensor in tensors)
    ]
    if not places or not (inputs or roots):
        return list(results)
    return Seal(places, len(results), roots)(results, inputs)


def roots_of(model: Any) -> tuple[Tensor, ...]:
    """One tensor whose history leads to every parameter of the model that requires gradients, so
    that a call costs the same for many; nothing where none does."""
    parameters = {id(p): p for p in _parameters(model).values() if p.requires_grad}
    if not parameters:
        return ()
    with torch.inference_mode(False), torch.enable_grad():
        token = torch.zeros((), requires_grad=True)
        # Subclasses may be anything beneath; nodes of inference tensors cannot be had.
        plain = [p for p in parameters.values() if type(p) is nn.Parameter and not p.is_inference()]
        root: Any = DelayedError(REFUSED, len(plain) + 1)(token, *plain)
        return (root if isinstance(root, Tensor) else root[0],)  # of one alone there is no tuple


def frozen_of(model: Any) -> tuple[Tensor, ...]:
    """The parameters of the model that require no gradients, and may do so later."""
    parameters = {id(p): p for p in _parameters(model).values() if not p.requires_grad}
    return tuple(p for p in parameters.values() if _continuous(p.dtype) and not p.is_inference())


def trained(model: Any, captured: Captured) -> Trained:
    """The results for which the model itself would find gradients of its weights."""
    if _without_gradients(model):
        return Trained()
    weights = set()
    sources = dict(captured.sources)
    held = _parameters(model)
    unknown = any(parameter.requires_grad for parameter in held.values())
    for constant in captured.graph.constants:
        weight = held.get(sources.get(constant.name, ""))
        if weight.requires_grad if weight is not None else unknown and constant.name not in sources:
            weights.add(constant.name)
    places = reached(captured.graph, frozenset(weights)) - frozenset(captured.detached or ())
    return Trained(places, roots_of(model) if places else (), frozen_of(model))


def reached(graph: Graph, names: frozenset[str]) -> frozenset[int]:
    """Places of results that are differentiable functions of these values: through numbers that are
    no integers all along."""
    reachable = set(names)
    for node in graph.nodes:
        if reachable.intersection(node.uses) and ops.packet_name(node.op) not in ops.OF_TYPES:
            pairs = zip(node.results, node.types, strict=True)
            reachable.update(name for name, type in pairs if _continuous(type.dtype))
    return frozenset(i for i, ref in enumerate(graph.outputs) if ref.name in reachable)


def _continuous(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _parameters(model: Any) -> dict[str, nn.Parameter]:
    """The parameters of a model, or of whatever a function has at hand."""
    if isinstance(model, nn.Module):
        return dict(getattr(model, "_orig_mod", model).named_parameters(remove_duplicate=False))
    owner = getattr(model, "__self__", None)
    closed = inspect.getclosurevars(model) if inspect.isfunction(model) else None
    values = [owner] if closed is None else [*closed.nonlocals.values(), *closed.globals.values()]
    parameters = {}
    for i, value in enumerate(values):
        for name, parameter in _parameters(value).items() if isinstance(value, nn.Module) else ():
            parameters[f"{i}.{name}"] = parameter
        if isinstance(value, nn.Parameter):
            parameters[str(i)] = value
    return parameters


def _without_gradients(model: Any) -> bool:
    """Whether `@torch.no_grad()` or its kin stands above the model's code."""
    function = type(model).forward if isinstance(model, nn.Module) else model
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # not filled yet
            owner = getattr(cell.cell_contents, "__self__", None)
            if isinstance(owner, (torch.no_grad, torch.inference_mode)):
                return True
    return False

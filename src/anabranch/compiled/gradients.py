"""Gradients: a plan has none, and says so where they are asked for.

    weights that require them    results require gradients, as the model's do; backward() is refused
    inputs that require them     the same, and one warning
    no gradients asked for       plain results, and no cost

A result that silently required no gradients would leave weights untrained without a word.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from anabranch.frontend.captured import Captured
from anabranch.ir.graph import Graph

HOW = (
    "call it under torch.no_grad(), freeze the model with requires_grad_(False) before compiling, "
    "detach() the result, or train the original model and load its weights"
)
REFUSED = (
    "backward() came to the result of a model compiled by Anabranch\n"
    "  why:  a plan computes results alone: gradients of its weights and inputs are not known\n"
    f"  next: {HOW}"
)
WARNING = (
    "an input of a compiled model requires gradients, and none will come: a plan computes results "
    f"alone, and backward() of them is refused; {HOW}"
)
DelayedError = torch._C._functions.DelayedError
Seal = Callable[[Sequence[Tensor]], list[Tensor]]


def warn_of_inputs() -> None:
    """Once for a compiled model."""
    warnings.warn(WARNING, stacklevel=5)


def sealer(places: Sequence[int], count: int) -> Seal:
    """What makes these of `count` results require gradients that are refused when they are asked
    for: a node of autograd's own, which takes a microsecond."""
    token = torch.zeros((), requires_grad=True)
    whole = len(places) == count

    def seal(results: Sequence[Tensor]) -> list[Tensor]:
        if whole:
            sealed = DelayedError(REFUSED, count + 1)(token, *results)
            return list(sealed[1:])
        changed = list(results)
        sealed = DelayedError(REFUSED, len(places) + 1)(token, *[results[i] for i in places])
        for place, tensor in zip(places, sealed[1:], strict=True):
            changed[place] = tensor
        return changed

    return seal


def sealed_results(tensors: Sequence[Tensor], results: Sequence[Any], always: bool) -> list[Any]:
    """Results that the model would have gradients of, of inputs or `always` of its weights, refuse
    to give them."""
    if not always and not any(tensor.requires_grad for tensor in tensors):
        return list(results)
    places = [
        place
        for place, result in enumerate(results)
        if isinstance(result, Tensor)
        and _continuous(result.dtype)
        and not any(result is tensor for tensor in tensors)
    ]
    seal = sealer(range(len(places)), len(places)) if places else list
    sealed, changed = seal([results[place] for place in places]), list(results)
    for place, result in zip(places, sealed, strict=True):
        changed[place] = result
    return changed


def trained(model: Any, captured: Captured) -> frozenset[int]:
    """Places of results for which the model itself would find gradients of its weights."""
    if _without_gradients(model):
        return frozenset()
    weights = set()
    sources = dict(captured.sources)
    held = _parameters(model)
    unknown = any(parameter.requires_grad for parameter in held.values())
    for constant in captured.graph.constants:
        known = held.get(sources.get(constant.name, ""))
        if known.requires_grad if known is not None else unknown and constant.name not in sources:
            weights.add(constant.name)
    return reached(captured.graph, frozenset(weights))


def reached(graph: Graph, names: frozenset[str]) -> frozenset[int]:
    """Places of results that are differentiable functions of these values: through numbers that are
    no integers all along."""
    known = set(names)
    for node in graph.nodes:
        if known.intersection(node.uses):
            pairs = zip(node.results, node.types, strict=True)
            known.update(name for name, type in pairs if _continuous(type.dtype))
    return frozenset(i for i, ref in enumerate(graph.outputs) if ref.name in known)


def _continuous(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _parameters(model: Any) -> dict[str, nn.Parameter]:
    """The parameters of a model, or of whatever a function has at hand."""
    if isinstance(model, nn.Module):
        return dict(getattr(model, "_orig_mod", model).named_parameters(remove_duplicate=False))
    owner = getattr(model, "__self__", None)
    closed = inspect.getclosurevars(model) if inspect.isfunction(model) else None
    values = [owner] if closed is None else [*closed.nonlocals.values(), *closed.globals.values()]
    found = {}
    for i, value in enumerate(values):
        for name, parameter in _parameters(value).items() if isinstance(value, nn.Module) else ():
            found[f"{i}.{name}"] = parameter
        if isinstance(value, nn.Parameter):
            found[str(i)] = value
    return found


def _without_gradients(model: Any) -> bool:
    """Whether `@torch.no_grad()` or its kin stands above the model's code."""
    function = type(model).forward if isinstance(model, nn.Module) else model
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # not filled yet
            owner = getattr(cell.cell_contents, "__self__", None)
            if isinstance(owner, (torch.no_grad, torch.inference_mode)):
                return True
    return False

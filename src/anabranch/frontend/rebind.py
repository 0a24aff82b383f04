"""A graph without weights + the model that has them -> the graph with its weights.

A cached graph is stored without the content of its constants. Their digests are computed anew, so
the result equals the cached graph exactly if the weights are those it was compiled with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from anabranch.errors import CaptureError
from anabranch.frontend.state import attribute
from anabranch.frontend.translate import plain_value
from anabranch.ir.graph import Constant, Graph, State
from anabranch.ir.key import digest_source, digest_tensors
from anabranch.ir.types import type_of


def rebind(
    graph: Graph,
    sources: tuple[tuple[str, str], ...],
    model: nn.Module,
    contents: Mapping[str, torch.Tensor] | None = None,
) -> Graph:
    """The graph with a value for each state, and for each constant that has a source or is among
    `contents` (constants that no attribute of the model holds, by constant name); others stay
    without.

    Raises CaptureError where the model lacks one, or has another type under its name.
    """
    find, device = of_model(model)
    return rebound(graph, sources, find, device, contents)


def of_model(model: nn.Module) -> tuple[Callable[[str], torch.Tensor | None], torch.device | None]:
    """By a name the tensor that the model has, and the device on which its tensors are."""
    held = dict(
        itertools.chain(
            model.named_parameters(remove_duplicate=False),
            model.named_buffers(remove_duplicate=False),
        )
    )
    device = next((tensor.device for tensor in held.values() if tensor.ndim), None)
    return lambda path: held[path] if path in held else attribute(model, path), device


def rebound(
    graph: Graph,
    sources: tuple[tuple[str, str], ...],
    find: Callable[[str], torch.Tensor | None],
    device: torch.device | None,
    contents: Mapping[str, torch.Tensor] | None = None,
) -> Graph:
    """As `rebind`, with the tensors that `find` gives by name, of a model on `device`."""
    paths = dict(sources)
    contents = contents or {}

    def value_of(constant: Constant) -> torch.Tensor | None:
        path = paths.get(constant.name)
        if path is None:
            value = contents.get(constant.name)
            if value is None:
                return None
        else:
            value = find(path)
        if value is None or type_of(value) != constant.type:
            there = "nothing" if value is None else type_of(value).text
            raise CaptureError(
                f"there is {there} for the constant {path or constant.name}, the saved graph has "
                f"{constant.type.text}",
                "the model changed since it was captured",
                "capture it again",
            )
        return plain_value(value, device)

    values = [value_of(constant) for constant in graph.constants]
    digests = iter(digest_tensors(value for value in values if value is not None))
    constants = tuple(
        constant if value is None else _bound(constant, value, next(digests), paths)
        for constant, value in zip(graph.constants, values, strict=True)
    )
    states = tuple(_state(graph, state, find) for state in graph.states)
    return replace(graph, constants=constants, states=states)


def _state(graph: Graph, state: State, find: Callable[[str], torch.Tensor | None]) -> State:
    """The state with the model's tensor as its place."""
    tensor = find(state.path)
    (wanted,) = (value.type for value in graph.inputs if value.name == state.name)
    if tensor is None or type_of(tensor) != wanted:
        there = "nothing" if tensor is None else type_of(tensor).text
        raise CaptureError(
            f"there is {there} for the state {state.path}, the saved graph has {wanted.text}",
            "the model changed since it was captured",
            "capture it again",
        )
    return replace(state, value=tensor.detach())


def _bound(
    constant: Constant, value: torch.Tensor, digest: str, paths: Mapping[str, str]
) -> Constant:
    path = paths.get(constant.name)
    if path is None:
        return replace(constant, value=value, digest=digest)
    named = digest_source(digest, path)
    return replace(constant, value=value, digest=named, source=(path,))

"""Where the states of a plan lie: in the model's own tensors, or in memory of their own.

model.cache   on the plan's device, aligned    its own memory: the model shows what calls did
model.cache   on another device, or a view     a copy, which belongs to the plan
a loaded plan, a further session               a copy
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from anabranch.ir.graph import State
from anabranch.ir.task import TaskGraph
from anabranch.ir.types import TensorType, copy_into, type_of

ALIGNED = 16
"""Bytes that kernels take addresses of inputs for multiples of."""


def model_place(state: State, type: TensorType, device: torch.device) -> Tensor | None:
    """The model's own tensor, if the state may lie there."""
    held = state.value
    if held is None or held.is_inference() or held.is_meta or type_of(held) != type:
        return None
    there = held.device == device and held.data_ptr() % ALIGNED == 0
    return held.detach() if there else None


def own_place(state: State, type: TensorType, device: torch.device) -> Tensor:
    """Memory of its own, with the value that the state has now; zeros where nobody knows it."""
    memory = torch.empty_strided(type.shape, type.strides, dtype=type.dtype, device=device)
    return memory.zero_() if state.value is None else copy_into(memory, state.value)


def places_of(
    tasks: TaskGraph, device: torch.device, by_path: Mapping[str, Tensor], models: bool
) -> dict[str, Tensor]:
    """By the names of their inputs where states lie: in the memory that `by_path` has by the
    model's names for them, in the model's own if it may be (`models`), or in their own."""
    types = {value.name: value.type for value in tasks.inputs}
    places = {}
    for state in tasks.states:
        place = by_path.get(state.path)
        if place is None and models:
            place = model_place(state, types[state.name], device)
        places[state.name] = (
            place if place is not None else own_place(state, types[state.name], device)
        )
    return places


@contextmanager
def kept(places: Iterable[Tensor]) -> Iterator[None]:
    """These are as they were after what runs within it. Autograd, which counts writes, is told of
    none: a backward pass that waits may need them."""
    before = [(place, place.clone()) for place in places]
    counted = tuple(place for place, _ in before if not place.is_inference())
    with _unsafe_preserve_version_counter(counted):
        try:
            yield
        finally:
            with torch.no_grad():
                for place, value in before:
                    place.copy_(value)


def repeatable(tasks: TaskGraph) -> bool:
    """Whether calls in a row may go on for long: a counter may run out of a cache."""
    types = {value.name: value.type.dtype for value in tasks.inputs}
    return all(types[state.name].is_floating_point for state in tasks.states)

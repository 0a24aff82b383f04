"""What rounding makes of a trace: it is run again with inputs, weights and states moved by one
rounding each.

    the mean of what a norm has just made zero on average: 1e-9 here, -3e-9 in the model

Of such a number an error that is a part of itself says nothing; that it goes as far under one
rounding does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from anabranch.compiled.cut_path import OPERATOR_ERRORS
from anabranch.frontend.cut_checks import Unseen
from anabranch.frontend.cut_sections import CutStep
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.observe import own_inputs
from anabranch.tuning.verify.resampling import moved

RUNS = 4


def moved_runs(
    trace: CutTrace, steps: Sequence[CutStep], state: Mapping[str, Tensor]
) -> list[dict[str, Any]]:
    """By run the values of the trace by name, and what it leaves in states and inputs, by the names
    that these have in it. `state`: weights and states by the model's names, which stay as they are.
    Fewer runs where one goes another way, or does not fit into memory."""
    runs = []
    for seed in range(RUNS):
        with suppress(Unseen, torch.OutOfMemoryError, *OPERATOR_ERRORS):
            runs.append(_run(trace, steps, state, seed))
    return runs


def _run(
    trace: CutTrace, steps: Sequence[CutStep], state: Mapping[str, Tensor], seed: int
) -> dict[str, Any]:
    generators: dict[torch.device, torch.Generator] = {}

    def near(tensor: Tensor) -> Tensor:
        if tensor.is_complex():
            return torch.view_as_complex(near(torch.view_as_real(tensor.resolve_conj())))
        place = tensor.device
        if place not in generators:
            generators[place] = torch.Generator(place).manual_seed(seed)
        return moved(tensor, generators[place])

    own = own_inputs(trace.leaves, {})[0]
    tensors = [leaf.resolve_conj().resolve_neg() for leaf in own if isinstance(leaf, Tensor)]
    first = {name: near(x) for name, x in zip(trace.inputs, tensors, strict=True)}
    first |= {name: near(state[path].detach().clone()) for name, path in trace.states.items()}
    places = {path: first[name] for name, path in trace.states.items()}
    values: dict[str, Any] = dict(first)
    with torch.no_grad():
        for step in steps:
            weights = [near(state[trace.weights[name]].detach()) for name in step.weights]
            held = [places[path] for path in step.states.values()]
            results = step.module.forward(*weights, *(values[name] for name in step.reads), *held)
            values.update(zip(step.gives, stored(step, results, places), strict=True))
    return values | first


def stored(step: CutStep, results: Sequence[Any], places: Mapping[str, Tensor]) -> Sequence[Any]:
    """The values that a step gives. Its other results are in the places of the states that it
    writes by then; views of what these were are copies."""
    values = results[: len(step.gives)]
    if not step.news:
        return values
    written = {places[step.states[name]].untyped_storage().data_ptr() for name in step.news}
    values = [x.clone() if x.untyped_storage().data_ptr() in written else x for x in values]
    for name, new in zip(step.news, results[len(values) :], strict=True):
        places[step.states[name]].copy_(new)
    return values

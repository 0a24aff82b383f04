"""States of a model that is cut: what a way through it writes to, in the model's own tensors.

    forward     self.seen.add_(1); return y[y.sum(-1) > 0] + self.seen
    way         reads seen where it lies, and writes the new value there when nothing is checked any
                more: the section that computes it does, or a copy after all else

A call that goes another way has written nothing when that shows, so the model itself may run then.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from anabranch.compiled.request import PlanRequest
from anabranch.compiled.states import StateMemory
from anabranch.errors import CaptureError
from anabranch.frontend.capture_cache import Calling, watched_call
from anabranch.frontend.capture_warnings import warn_of_changes
from anabranch.frontend.cut_trace import CutTrace
from anabranch.frontend.effects import assigned, rebuilt
from anabranch.frontend.observe import Observed
from anabranch.frontend.program import name_of
from anabranch.frontend.state import same_memory, tensors_of, unwrapped
from anabranch.trace import Trace


def seen_call(model: Any, asked: PlanRequest, trace: Trace) -> Observed | None:
    """What a call of the model changes. CaptureError where it gives a buffer another tensor."""
    seen = watched_call(model, asked.args, asked.kwargs, trace, Calling(asked.around))
    before = _held(model)
    for name in seen.replaced if seen is not None else ():
        raise assigned(name) if name in before else rebuilt(name)
    for question in seen.another_way if seen is not None else ():
        if question.startswith("torch.is_grad_enabled()"):
            raise CaptureError(
                "the model asks whether gradients are on, and goes another way then",
                f"it asks {question}, and is cut for calls without gradients",
                "go by an attribute or an argument of the model instead",
            )
    return seen


def warn_of_lost(seen: Observed | None, model: Any, traced: CutTrace, trace: Trace) -> None:
    """Tell the user what a call of the model changes and one of its plans does not."""
    held = _held(model)
    written = [held[name] for name in traced.states.values()]
    lost = [
        name
        for name in (seen.changed if seen is not None else ())
        if name not in held or not any(same_memory(held[name], tensor) for tensor in written)
    ]
    warn_of_changes(trace, name_of(model), lost)


def learn(memory: StateMemory, model: Any, traced: CutTrace) -> None:
    """Note the states of one more way, as they are now."""
    held = _held(model)
    for name in traced.states.values():
        tensor = held[name].detach()
        if name not in memory.places:
            memory.places[name] = tensor.clone() if tensor.is_inference() else tensor
            memory.first[name] = tensor.clone()
            memory.names[name] = tuple(n for n, other in held.items() if other is held[name])


def check_not_read(memory: StateMemory, traced: CutTrace, read: set[str]) -> None:
    """CaptureError for a way that writes to what the ways before have `read` as a constant."""
    late = [n for n in traced.states.values() if n not in memory.places and n in read]
    if late:
        raise CaptureError(
            f"the model writes to {late[0]} on this way, and on none that was compiled before",
            "the plans of those have it as a constant, and would not see what is written",
            "compile the model again, with this example first",
        )


def elsewhere(memory: StateMemory, model: Any) -> str:
    """The name of a state that is not the model's own tensor any more; "" if there is none."""
    held = _held(model) if memory.places else {}
    there = memory.places.items()
    return next((n for n, x in there if n not in held or not same_memory(held[n], x)), "")


def apart(memory: StateMemory, results: Any) -> Any:
    """What the model itself returned, with copies of its states, as its plans return them."""
    held = {place.untyped_storage().data_ptr() for place in memory.places.values()}

    def own(tensor: Tensor) -> Tensor:
        strided = tensor.layout is torch.strided
        return tensor.clone() if strided and tensor.untyped_storage().data_ptr() in held else tensor

    return pytree.tree_map_only(Tensor, own, results) if held else results


def anew(memory: StateMemory) -> StateMemory:
    """The same states in memory of their own."""
    with torch.no_grad():
        places, first = (
            {name: value.clone() for name, value in values.items()}
            for values in (memory.places, memory.first)
        )
    return StateMemory(places, first, dict(memory.names))


def _held(model: Any) -> dict[str, Tensor]:
    return dict(tensors_of(unwrapped(model))) if isinstance(model, nn.Module) else {}

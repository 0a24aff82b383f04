"""What a training step asks of a call, beside the numbers of its batch.

    x = x * 2 if x.is_contiguous() else x * 3      a step of one answer takes calls of that alone
    y.t().reshape(-1).add_(1)                      reaches y in one layout of the batch alone
    if torch.backends.cudnn.benchmark:             a switch of torch, which a call has as it was
    x + torch.ones(6)                              lies, and has a dtype, as torch's defaults say

The questions are found by further calls of the step, and only where its code may ask some. Autocast
is none of them: that of compile time is a part of the graph.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from anabranch.frontend.capture_cache import asked_of_inputs, tells_apart, tells_containers
from anabranch.frontend.capture_warnings import warn_of_reads
from anabranch.frontend.captured import Captured
from anabranch.frontend.from_torch import apart
from anabranch.frontend.input_queries import answered, has_containers
from anabranch.frontend.layout_dependence import depends_on_layouts, guards_as
from anabranch.frontend.mode_queries import DEFAULT_DEVICE, MAKES, relied_on
from anabranch.frontend.observe import Notes, observe
from anabranch.frontend.surroundings import Surroundings, neutral
from anabranch.frontend.training import EagerGradients, EagerStep
from anabranch.frontend.training_cache import StepRequest, listed
from anabranch.ir.ambient import name_of
from anabranch.trace import Trace

ELSEWHERE = torch.device("meta")
"""Where no tensor of a step lies."""


def with_questions(
    captured: Captured,
    step: EagerStep,
    request: StepRequest,
    rates: list[Tensor],
    trace: Trace,
    simulated: bool = False,
) -> Captured:
    """The captured step with what it asks of a call, and goes another way for. `rates`: the
    learning rates, as a call has them; `simulated`: it is not called with values. CaptureError
    where the example answers otherwise than was captured."""
    args, under = (*request.batch, rates), request.under
    with neutral():
        captured = _with_switches(captured, step, request)
        captured = _with_layouts(captured, step, args, under, simulated)
        return captured if simulated else _with_inputs(captured, step, args, under, trace)


def _with_inputs(
    captured: Captured, step: EagerStep, args: tuple[Any, ...], under: Surroundings, trace: Trace
) -> Captured:
    """With what it asks of the tensors and containers of its batch."""
    containers = has_containers(step, args[:-1], {})
    if not step.mentions and not containers:
        return captured
    call = partial(observe, step, args, {}, under)
    try:
        seen = call(notes=Notes(watch=True))
    except Exception:  # who compiles the step says what is wrong with it
        return captured
    questions, reads = asked_of_inputs(seen, call) if seen.mentions else ((), ())
    warn_of_reads(trace, type(step.training.model).__name__, reads)
    inputs = args, dict[str, Any]()
    asked = answered(captured.trees[0], inputs, apart(inputs), questions)
    told = {(guard.leaf, guard.what) for guard in asked}
    before = (g for g in captured.signature.asked if (g.leaf, g.what) not in told)
    signature = replace(
        captured.signature,
        asked=(*asked, *before),
        distinct=tells_apart(seen, call),
        exact=containers and tells_containers(seen, call),
    )
    return replace(captured, signature=signature)


def _with_layouts(
    captured: Captured,
    step: EagerStep,
    args: tuple[Any, ...],
    under: Surroundings,
    simulated: bool,
) -> Captured:
    """With how its batch must lie, where a write reaches more in one layout than in another."""
    line = step.by_strides
    if line is None:
        return captured
    buffers = [tensor for tensor in step.tensors.values() if not tensor.requires_grad]
    if not simulated and not depends_on_layouts(EagerGradients(step), args, {}, under, buffers):
        return captured
    lie = tuple(guards_as(pytree.tree_leaves(args[:-1]), "layout", line))
    return replace(captured, signature=replace(captured.signature, asked=lie))


def _with_switches(captured: Captured, step: EagerStep, request: StepRequest) -> Captured:
    """With the switches of torch that it asks for, and torch's defaults, where tensors that it
    makes are as these say."""
    ambient, asks, under = captured.signature.ambient, step.asks, request.under
    other = torch.float32 if under.dtype == torch.float64 else torch.float64
    makes = any(question.startswith(MAKES) for question in asks)
    if makes or ambient.default_dtype:
        plain = listed(request)

        def differs(around: Surroundings) -> bool:
            now = listed(replace(request, under=around))
            return plain is None or now is None or now.digest != plain.digest

        ambient = replace(ambient, default_dtype="")
        if differs(replace(under, dtype=other, device=ELSEWHERE)):
            if differs(replace(under, dtype=other)):
                ambient = replace(ambient, default_dtype=name_of(under.dtype))
            if differs(replace(under, device=ELSEWHERE)):
                asks = (*asks, DEFAULT_DEVICE)
    ambient = relied_on(ambient, asks, under)
    return replace(captured, signature=replace(captured.signature, ambient=ambient))

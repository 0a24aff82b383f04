"""The other ways to run a whole training step, one function each: -> a call to time.

| name | is |
|---|---|
| eager | the loop as users write it, operator by operator |
| eager-graph | the same step in one CUDA graph, with the optimizer's fused kernels |
| inductor | torch.compile() of forward, backward and the optimizer's step; all in one CUDA graph |
| max-autotune | the same with mode="max-autotune-no-cudagraphs" |

Each trains its own copy of the model, on the same batch again and again. Networks with
4-dimensional inputs run channels_last; cuDNN chooses its algorithms by timing. A graph is captured
as torch's documentation has it: the first steps run on the side stream, Adam is capturable,
gradients are None before each step, autocast keeps no casts. The learning rate is a number in the
graphs of rivals, which a schedule could not change; ours reads it in each call. Of nn.LSTM and
nn.GRU torch.compile runs cuDNN's kernels, as eager does.

To add one: a function, and a line in RIVALS.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anabranch.bench.machine import Machine, TimedCall
from anabranch.bench.rivals import capture_of, in_turns, own_copy, quiet, timed_algorithms, warm
from anabranch.models.training_recipes import OPTIMIZERS, LossFunction, Trainable

FIRST_STEPS = 3
"""Before a compiled step is captured: it compiles, compiles once more for an optimizer that has its
state, and runs."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A step on tensors of its own; `step` returns the loss, detached."""

    model: nn.Module
    optimizer: Optimizer
    step: TimedCall
    peak_bytes: int | None = None
    note: str = ""
    replayed: bool = False


Rival = Callable[[Trainable, str, Machine], Loop]
"""Of a network, a dtype and a machine."""


def eager(case: Trainable, dtype: str, machine: Machine) -> Loop:
    """The loop as users write it."""
    loop = _loop(case, dtype, kept_casts=True)
    warm(loop.step)
    return loop


def eager_graph(case: Trainable, dtype: str, machine: Machine) -> Loop:
    """Eager's step, captured once as one CUDA graph."""
    loop = _loop(case, dtype, **_capturable(machine, fused=True))
    return _captured(loop, machine)


def inductor(case: Trainable, dtype: str, machine: Machine) -> Loop:
    """torch.compile as it comes, the whole step captured as one CUDA graph."""
    return _compiled(case, dtype, machine, "default")


def max_autotune(case: Trainable, dtype: str, machine: Machine) -> Loop:
    """torch.compile in mode "max-autotune-no-cudagraphs", captured as one CUDA graph."""
    return _compiled(case, dtype, machine, "max-autotune-no-cudagraphs")


RIVALS: dict[str, Rival] = {
    "eager": eager,
    "eager-graph": eager_graph,
    "inductor": inductor,
    "max-autotune": max_autotune,
}

USUAL = {"cuda": tuple(RIVALS), "cpu": ("eager",)}
"""Compared with unless told otherwise, by target; nobody on a simulated one."""

AUTOCAST = {"bf16": torch.bfloat16}
"""By the name of a dtype what the forward pass is cast to; with all others nothing is."""


def loss_in(
    dtype: str, loss: LossFunction, device: torch.device, kept_casts: bool = False
) -> LossFunction:
    """The loss with its forward pass in this dtype. `kept_casts`: a weight that is read twice is
    cast once, which a graph of the step must not do."""
    if dtype not in AUTOCAST:
        return loss
    kind, cast = device.type, AUTOCAST[dtype]

    def mixed(model: nn.Module, *batch: Any) -> Tensor:
        with torch.autocast(kind, cast, cache_enabled=kept_casts):
            return loss(model, *batch)

    return mixed


def rewind(case: Trainable, model: nn.Module, optimizer: Optimizer) -> None:
    """Model and optimizer as they were at first, in place: the case's own model is never trained.
    All that an optimizer of OPTIMIZERS holds begins as zero."""
    with torch.no_grad():
        for now, first in zip(_tensors(model), _tensors(case.model), strict=True):
            now.copy_(first)
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _capturable(machine: Machine, **settings: Any) -> dict[str, Any]:
    """Settings of an optimizer whose step is captured; none where that is refused anyway."""
    return {} if machine.capture is None else {"capturable": True, **settings}


def _loop(case: Trainable, dtype: str, kept_casts: bool = False, **settings: Any) -> Loop:
    model, batch, note = _own(case)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters(), **settings)
    device = next(model.parameters()).device
    loss_fn = loss_in(dtype, case.loss, device, kept_casts)
    forward = lambda: loss_fn(model, *batch)  # noqa: E731
    return Loop(model, optimizer, _step(forward, optimizer, optimizer.step), note=note)


def _own(case: Trainable) -> tuple[nn.Module, tuple[Any, ...], str]:
    """A copy as rivals train it: cuDNN wants the weights of a recurrent layer in one piece of
    memory, which a copy takes apart."""
    model, batch, note = own_copy(case.model, case.batch)
    for part in model.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()
    return model, batch, note


def _step(forward: TimedCall, optimizer: Optimizer, update: TimedCall) -> TimedCall:
    def step() -> Tensor:
        with timed_algorithms():
            loss: Tensor = forward()
            loss.backward()  # type: ignore[no-untyped-call]
            update()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def _compiled(case: Trainable, dtype: str, machine: Machine, mode: str) -> Loop:
    import torch._inductor.config

    capture_of(machine)
    model, batch, note = _own(case)
    optimizer = OPTIMIZERS[case.optimizer](model.parameters(), **_capturable(machine))
    loss_fn = loss_in(dtype, case.loss, next(model.parameters()).device)
    forward = torch.compile(lambda: loss_fn(model, *batch), mode=mode)
    update = torch.compile(lambda: optimizer.step())
    step, begun = _step(forward, optimizer, update), False

    def first_steps() -> Tensor:
        """The first call, on the stream that the graph is captured on, makes several steps."""
        nonlocal begun
        if not begun:
            begun = True
            for _ in range(FIRST_STEPS):
                step()
        loss: Tensor = step()
        return loss

    tuning = torch._inductor.config.patch(autotune_num_choices_displayed=0)
    with tuning, quiet(), in_turns(machine):
        return _captured(Loop(model, optimizer, first_steps, note=note), machine)


def _captured(loop: Loop, machine: Machine) -> Loop:
    replay, pool = capture_of(machine)(loop.step, ())
    return Loop(loop.model, loop.optimizer, replay, pool, loop.note, replayed=True)

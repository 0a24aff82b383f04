"""Optimizers: their first state, and their own step on other tensors than theirs."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from anabranch.errors import CaptureError
from anabranch.frontend.training import LR, Held, plain_step
from anabranch.frontend.varying import with_stand_ins

AS_GRAPH = {"foreach": False, "fused": False, "capturable": True}
"""Settings under which an optimizer is written as a graph: operators that fuse, and counts of steps
that stay on the device."""


def initialise(optimizer: Optimizer) -> list[Tensor]:
    """Give the optimizer the state that its first step would begin with, where it has none yet, and
    keep its counts of steps beside the parameters. Returns the parameters that had no state.
    CaptureError where its first step is unlike all others; one of the user's own that makes its
    state in `step` is left as it is."""
    begun = list[Tensor]()
    for group in optimizer.param_groups:
        trained = [p for p in group["params"] if p.requires_grad]
        if new := [p for p in trained if p not in optimizer.state]:
            _begin(optimizer, group, trained)
            begun += new
        for parameter in trained:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, Tensor) and value.device != parameter.device:
                    state[key] = value.to(parameter.device)
        if "capturable" in group and any(p.is_cuda for p in trained):
            group["capturable"] = True
    return begun


def forget_idle(optimizer: Optimizer, begun: Iterable[Tensor], written: Set[int]) -> None:
    """Take the state of those of the parameters that were `begun` of which no step writes any, as
    the loss does not depend on them: eager makes none. `written`: ids of what steps write."""
    for parameter in begun:
        values = optimizer.state.get(parameter, {}).values()
        if written.isdisjoint(map(id, values)):
            optimizer.state.pop(parameter, None)


def _begin(optimizer: Optimizer, group: dict[str, Any], trained: Sequence[Tensor]) -> None:
    """The state of these parameters, as the optimizer's own code makes it."""
    name = type(optimizer).__name__
    init: Any = getattr(optimizer, "_init_group", None)
    if init is None:  # `step_on` sees whether its first step begins with any
        return
    if group.get("momentum") and group.get("dampening"):
        raise CaptureError(
            f"the first step of {name} with dampening is unlike all others",
            "it takes the gradient itself as the first momentum",
            "run one step of it before compile_step, and its zero_grad()",
        )
    before = [p.grad for p in trained]
    lists = list(inspect.signature(init).parameters)[1:]
    try:
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)
        init(group, *([] for _ in lists))
    finally:
        for parameter, gradient in zip(trained, before, strict=True):
            parameter.grad = gradient
    if group.get("momentum") and isinstance(optimizer, torch.optim.SGD):
        for parameter in trained:
            if optimizer.state[parameter].get("momentum_buffer") is None:
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def step_on(
    optimizer: Optimizer,
    held: Held,
    tensors: Sequence[Tensor],
    rates: Sequence[Tensor],
    varying: Sequence[str] = (),
) -> None:
    """The optimizer's own step, on these in the place of the tensors that are held. `rates`: of
    each group, and more; for the settings that vary there are stand-ins (`frontend.varying`)."""
    groups = with_stand_ins(optimizer.param_groups, varying)
    twin = object.__new__(type(optimizer))  # copy.copy leaves out what a class of the user's has
    twin.__dict__.update(optimizer.__dict__)
    twin.param_groups = [
        {
            **group,
            "params": [tensors[held.place[id(p)]] for p in group["params"]],
            LR: rate,
            **{key: value for key, value in AS_GRAPH.items() if key in group},
        }
        for group, rate in zip(groups, rates[: len(groups)], strict=True)
    ]
    twin.state = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        twin.state[tensors[held.place[id(parameter)]]] = {
            key: tensors[held.place[id(value)]] if isinstance(value, Tensor) else value
            for key, value in values.items()
        }
    before, places = _python_numbers(twin), _state_places(twin)
    with _compiling():
        plain_step(twin)
    if _state_places(twin) != places:
        raise CaptureError(
            f"{type(optimizer).__name__} has no state yet",
            "a plan has a fixed place for each tensor of it, and this class does not say what its "
            "first step begins with",
            "run one step of it before compile_step, and its zero_grad()",
        )
    for key, value in _python_numbers(twin).items():
        if before.get(key, value) != value:
            raise CaptureError(
                f"a step of {type(optimizer).__name__} changes {key[-1]!r}, a number of Python's",
                "a plan has such a number as it was when it was captured, in each of its steps",
                "have the optimizer keep it as a tensor in its state, as torch's own do",
            )


def _state_places(optimizer: Optimizer) -> set[tuple[int, Any]]:
    """Where an optimizer keeps something, by parameter and name."""
    return {(id(p), name) for p, values in optimizer.state.items() for name in values}


def _python_numbers(optimizer: Optimizer) -> dict[tuple[Any, ...], Any]:
    """The numbers in an optimizer's groups and state that are no tensors, by group or parameter and
    name."""
    numbered = enumerate(optimizer.param_groups)
    held: dict[tuple[Any, ...], Any] = {
        ("group", number, key): value for number, group in numbered for key, value in group.items()
    }
    for parameter, values in optimizer.state.items():
        held |= {("state", id(parameter), key): value for key, value in values.items()}
    return {key: value for key, value in held.items() if isinstance(value, bool | int | float)}


@contextmanager
def _compiling() -> Iterator[None]:
    """Within it torch's optimizers read no numbers of tensors."""
    compiler: Any = torch.compiler
    was = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = was

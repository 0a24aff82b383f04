"""What every call of a loaded plan needs, whatever the device.

    alone(run, name, call)       refuses a call that an operator of the same plan makes
    without_gradients(call)      gradients are off in it, and as they were after it, also on Ctrl-C

A plan runs one call at a time. An operator that calls its own plan would wait for itself, so the
plans that run are remembered along the chain of calls, in a context variable: threads that run
parts of a plan run them in a copy of the caller's context.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import TypeVar

import torch

from anabranch.errors import TargetError

_T = TypeVar("_T")

_running: ContextVar[tuple[int, ...]] = ContextVar("anabranch_running", default=())
"""Identities of the executables whose calls led here."""


def alone(run: object, name: str, call: Callable[[], _T]) -> _T:
    """What the call returns. TargetError where it is made by an operator of this executable."""
    outer = _running.get()
    if id(run) in outer:
        raise TargetError(
            f"an operator of plan {name} calls that plan itself",
            "a plan runs one call at a time, so the inner call would wait for the outer one for "
            "ever",
            "call the model as it is, or another compiled plan of it, inside the operator",
        )
    # In a context of its own, which is simply dropped: an interrupt cannot leave anything behind.
    return copy_context().run(_marked, (*outer, id(run)), call)


def _marked(running: tuple[int, ...], call: Callable[[], _T]) -> _T:
    _running.set(running)
    return call()


def without_gradients(call: Callable[[], _T]) -> _T:
    """What the call returns. Unlike in `torch.no_grad`, no interrupt falls between turning
    gradients off and the block that turns them on again."""
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(False)
        return call()
    finally:
        torch._C._set_grad_enabled(before)

"""The kernels in Python by which traces take operators apart, as our own traces have them.

    traces of others       softshrink(x)  ->  where(abs(x) > 0.5, x - sign(x) * 0.5, x * 0)
    within own_kernels()   softshrink(x)

Torch keeps such kernels in its operators, for the whole process. A few of them are others while a
trace of ours runs, and torch's own again after it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey

from anabranch.frontend.byte_images import byte_image_kernels
from anabranch.frontend.margin_losses import MARGIN_LOSSES
from anabranch.frontend.value_checks import one_hot

aten = torch.ops.aten
TraceKernels = Mapping[Any, Mapping[DispatchKey, Callable[..., Any] | None]]
"""By operator and dispatch key the function that takes it apart; None where nothing does."""

LEFT_WHOLE: TraceKernels = {
    aten.softshrink.default: {DispatchKey.Autograd: None},
    aten.hardshrink.default: {DispatchKey.Autograd: None},
}
"""Operators that stay. What torch takes softshrink apart into has zeros of another sign."""

_LOCK: Any = threading.Lock()
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # whoever held it is not in the child
_running: list[None] = []
"""One for each trace that runs."""
_torchs: dict[Any, dict[DispatchKey, Any]] = {}
"""The kernels that torch has, of the operators that have others now."""


@contextmanager
def own_kernels() -> Iterator[None]:
    """Within it traces take operators apart as a plan needs them. May be entered again, by several
    threads, too: the last one that leaves it puts back what torch has."""
    with _LOCK:
        if not _running:
            _install(_own())
        _running.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _running.pop()
            if not _running:
                _put_back()


@functools.cache
def _own() -> TraceKernels:
    composite = DispatchKey.CompositeImplicitAutograd
    checks = {aten.one_hot.default: {composite: one_hot}}
    absent = {op: by for op, by in checks.items() if composite not in op.py_kernels}
    return {**LEFT_WHOLE, **MARGIN_LOSSES, **byte_image_kernels(), **absent}


def _install(kernels: TraceKernels) -> None:
    for operator, functions in kernels.items():
        held = operator.py_kernels
        _torchs[operator] = {key: held[key] for key in functions if key in held}
        for key, function in functions.items():
            if function is None:
                held.pop(key, None)
            else:
                held[key] = function
        operator._dispatch_cache.clear()


def _put_back() -> None:
    for operator, functions in _torchs.items():
        for key in _own()[operator]:
            operator.py_kernels.pop(key, None)
        operator.py_kernels.update(functions)
        operator._dispatch_cache.clear()
    _torchs.clear()

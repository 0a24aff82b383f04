"""The kernels in Python by which traces take operators apart, as our own traces have them.

    traces of others       softshrink(x)  ->  where(abs(x) > 0.5, x - sign(x) * 0.5, x * 0)
    within own_kernels()   softshrink(x)

Torch keeps such kernels in its operators, for the whole process. A few of them are others while a
trace of ours runs, and torch's own again after it. Operators that draw random numbers in place have
kernels for functionalisation, too, which comes in two kinds: by a dispatch key, and by a mode.

What operators gave for fake tensors torch remembers for the whole process, too. What they give in a
trace of ours is remembered apart, and forgotten after it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import _prims_common as prims
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode

from anabranch.frontend.byte_images import byte_image_kernels
from anabranch.frontend.covariance import cov
from anabranch.frontend.ctc_loss import CTC_LOSSES
from anabranch.frontend.diagonals import fill_diagonal_
from anabranch.frontend.margin_losses import MARGIN_LOSSES
from anabranch.frontend.ordered_draws import DRAWN_IN_ROWS, DRAWS, applies, in_rows
from anabranch.frontend.real_layouts import laying
from anabranch.frontend.value_checks import one_hot

aten = torch.ops.aten
TraceKernels = Mapping[Any, Mapping[DispatchKey, Callable[..., Any] | None]]
"""By operator and dispatch key the function that takes it apart; None where nothing does."""


def _elementwise(*args: Any) -> Tensor:
    """What an operator gives that computes element by element, without values."""
    operands = [arg for arg in args if isinstance(arg, Tensor)]
    strides: Any = prims.compute_elementwise_output_strides(*operands)
    first = operands[0]
    return torch.empty_strided(first.shape, strides, dtype=first.dtype, device="meta")


LEFT_WHOLE: TraceKernels = {
    aten.softshrink.default: {DispatchKey.Autograd: None, DispatchKey.Meta: _elementwise},
    aten.hardshrink.default: {DispatchKey.Autograd: None, DispatchKey.Meta: _elementwise},
    aten.softshrink_backward.default: {DispatchKey.Meta: _elementwise},
    aten.hardshrink_backward.default: {DispatchKey.Meta: _elementwise},
}
"""Operators that stay. What torch takes softshrink apart into has zeros of another sign; its own
results without values are of fixed sizes alone."""

_INFER: Any = FakeTensorMode._dispatch_impl
"""What says, for torch, what an operator gives for fake tensors."""
_FUNCTIONS: Any = torch.nn.functional
_HANDLE: Any = _FUNCTIONS.handle_torch_function
"""Functions of torch.nn.functional call it, and do nothing else, where a mode sees their calls."""
_LOCK: Any = threading.Lock()
os.register_at_fork(after_in_child=_LOCK._at_fork_reinit)  # whoever held it is not in the child
_running: list[None] = []
"""One for each trace that runs."""
_torchs: dict[Any, dict[DispatchKey, Any]] = {}
"""The kernels that torch has, of the operators that have others now."""


class _Results(dict[Any, Any]):
    """What operators gave for fake tensors in traces of ours. `torchs`: in all others. Torch drops
    results of what is no more (a subgraph, by its address), and must find them here."""

    def __init__(self, torchs: dict[Any, Any]) -> None:
        super().__init__()
        self.torchs = torchs

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.torchs

    def pop(self, key: Any, default: Any = None) -> Any:
        self.torchs.pop(key, None)
        return super().pop(key, default)


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


@contextmanager
def symbols_apart(shapes: Any) -> Iterator[None]:
    """Within `own_kernels`, what operators gave for fake tensors with these symbols (a ShapeEnv) is
    remembered apart, too."""
    if shapes is None:
        yield
        return
    torchs = shapes.fake_tensor_cache
    shapes.fake_tensor_cache = {}
    try:
        yield
    finally:
        shapes.fake_tensor_cache = torchs


@functools.cache
def _own() -> TraceKernels:
    composite = DispatchKey.CompositeImplicitAutograd
    composites: dict[Any, dict[DispatchKey, Callable[..., Any]]] = {
        aten.cov.default: {composite: cov},
        aten.fill_diagonal_.default: {composite: fill_diagonal_},
    }
    absent = {op: by for op, by in composites.items() if composite not in op.py_kernels}
    draws = {op: {key: functools.partial(_drawn, op, key)} for op in DRAWS for key in [_key(op)]}
    rows = {op: {DispatchKey.Meta: in_rows} for op in DRAWN_IN_ROWS}
    return {
        **LEFT_WHOLE,
        **MARGIN_LOSSES,
        **CTC_LOSSES,
        **byte_image_kernels(),
        **absent,
        aten.one_hot.default: {composite: one_hot},
        **draws,
        **rows,
    }


def _key(op: Any) -> DispatchKey:
    """Where an operator that draws is looked at: torch takes a composite apart before."""
    composite = DispatchKey.CompositeImplicitAutograd
    return composite if op.has_kernel_for_dispatch_key(composite) else DispatchKey.Functionalize


def _drawn(op: Any, key: DispatchKey, *args: Any, **kwargs: Any) -> Any:
    """In the place of torch's kernel for this key."""
    if applies(op, args, kwargs):
        return DRAWS[op](*args, **kwargs)
    return op._op_dk(key, *args, **kwargs)


def _drawn_in_mode(op: Any, mode: Any, *args: Any, **kwargs: Any) -> Any:
    """Where the mode functionalises, which is not active here."""
    if not applies(op, args, kwargs):
        return mode.__torch_dispatch__(op, (), args, kwargs)
    with mode:
        return DRAWS[op](*args, **kwargs)


def _handle(function: Any, relevant: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's, with the weight of an l1_loss, which torch 2.13 leaves out there."""
    if function is _FUNCTIONS.l1_loss and "weight" not in kwargs and len(relevant) == 3:
        kwargs["weight"] = relevant[2]
    return _HANDLE(function, relevant, *args, **kwargs)


def _install(kernels: TraceKernels) -> None:
    for operator, functions in kernels.items():
        held = operator.py_kernels
        _torchs[operator] = {key: held[key] for key in functions if key in held}
        for key, function in functions.items():
            if function is None:
                held.pop(key, None)
            else:
                held[key] = function
        if operator in DRAWS:
            table = operator.python_key_table
            table.setdefault(FunctionalTensorMode, functools.partial(_drawn_in_mode, operator))
        operator._dispatch_cache.clear()
    FakeTensorMode.cache = _Results(FakeTensorMode.cache)
    FakeTensorMode._dispatch_impl = laying(_INFER)  # type: ignore[method-assign]
    _FUNCTIONS.handle_torch_function = _handle


def _put_back() -> None:
    assert isinstance(FakeTensorMode.cache, _Results)
    FakeTensorMode.cache = FakeTensorMode.cache.torchs
    FakeTensorMode._dispatch_impl = _INFER  # type: ignore[method-assign]
    _FUNCTIONS.handle_torch_function = _HANDLE
    for operator, functions in _torchs.items():
        for key in _own()[operator]:
            operator.py_kernels.pop(key, None)
        operator.py_kernels.update(functions)
        if operator in DRAWS:
            held = operator.python_key_table.get(FunctionalTensorMode)
            if getattr(held, "func", None) is _drawn_in_mode:
                del operator.python_key_table[FunctionalTensorMode]
        operator._dispatch_cache.clear()
    _torchs.clear()

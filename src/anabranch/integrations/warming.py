"""Warming: all sizes are compiled before calls come, and no call compiles anything afterwards.

    model = torch.compile(net, backend="anabranch", dynamic=True)
    anabranch.warm(model, [(x1,), (x8,), (x64,)])     every graph of these calls has its plans
    model(x5)                                         the plan for 8, padded, or the graph as it is

The graphs that a model has are known once it is called, so warming calls it. A graph that Dynamo
makes later of the same code has the plans of a graph that was warmed, if the two are the same (it
was made under `torch.inference_mode`, say). Any other is run as it is: another dtype, a size of 1,
gradients.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._guards import CompileContext

from anabranch.compiled.asked_sizes import check_listed
from anabranch.compiled.calls import Compiled
from anabranch.errors import OptionError


class Warmed(Protocol):
    """A graph that compiles nothing more once it is closed. `frame`: Dynamo's number of the code
    that it is of; `form`: equal for graphs that compute the same; None where nobody knows."""

    closed: bool
    frame: int | None
    form: Hashable


_warming: ContextVar[list[Warmed] | None] = ContextVar("anabranch_warming", default=None)
_frames: dict[int, list[weakref.ref[Any]]] = {}
"""By Dynamo's number for it code of which all graphs are closed, and the warmed ones of it."""


def called(graph: Warmed) -> bool:
    """A graph runs; returns whether its model is being warmed."""
    graphs = _warming.get()
    if graphs is not None and graph not in graphs:
        graphs.append(graph)
    return graphs is not None


def is_closed(frame: int | None) -> bool:
    """Whether this code was warmed before, and is not just being warmed."""
    return _warming.get() is None and frame in _frames


def warmed_alike(frame: int | None, form: Hashable) -> Any:
    """The graph of this code that was warmed and is of this form; None if there is none."""
    if not is_closed(frame) or form is None:
        return None
    assert frame is not None, "what is closed has a number"
    graphs = (reference() for reference in _frames[frame])
    return next((graph for graph in graphs if graph is not None and graph.form == form), None)


def frame_of() -> int | None:
    """The code that is compiled now."""
    number = CompileContext.current_compile_id()
    if number is None or number.frame_id is None:
        return None
    if not number.frame_compile_id:
        # Its first graph: what had this number was forgotten by `torch.compiler.reset`.
        _frames.pop(number.frame_id, None)
    return number.frame_id


@contextmanager
def _collected() -> Iterator[list[Warmed]]:
    graphs: list[Warmed] = []
    token = _warming.set(graphs)
    try:
        yield graphs
    finally:
        _warming.reset(token)


def warm(model: Any, sizes: Sequence[Any]) -> Any:
    """Compile for all of these sizes now, so that no call compiles anything.

    Args:
        model: What `torch.compile(..., backend="anabranch")` returned, or a compiled model.
        sizes: The inputs of a call of each size: a tensor, a tuple of positional arguments, or a
            dict of keyword arguments. For a model that was compiled with `dynamic_shapes` also
            numbers, or tuples of them: more sizes of its dimensions.

    Returns:
        The model, whose buffers are as they were. Afterwards a call of another size runs the next
        larger plan, if that is proved harmless, and else the model as it is, under torch.compile
        with one warning; with `unseen="refuse"` it is an InputError. The same holds for calls that
        need gradients, for warming is about calls without. A warning says now where padding is not
        proved harmless, and why.

    Raises:
        OptionError: There are no sizes, they are not in a list, or the model runs no graph of
            this backend.
    """
    check_listed(sizes)
    if isinstance(model, Compiled):
        model.warm(sizes)
        return model
    if not callable(model):
        raise OptionError(
            f"the model is a {type(model).__name__}",
            "it is called with inputs of each size",
            "give what torch.compile(model, backend='anabranch') or anabranch.compile returned",
        )
    with _collected() as graphs, _buffers_kept(model), torch.no_grad():
        for inputs in sizes:
            args, kwargs = _call(inputs)
            model(*args, **kwargs)
    if not graphs:
        what = type(model).__name__ if isinstance(model, nn.Module) else "the function"
        raise OptionError(
            f"{what} ran no graph that Anabranch compiles",
            'warm takes what torch.compile(model, backend="anabranch") returns',
            "give it that, or a model that anabranch.compile made",
        )
    for graph in graphs:
        graph.closed = True
        if graph.frame is not None:
            _frames.setdefault(graph.frame, []).append(weakref.ref(graph))
    return model


@contextmanager
def _buffers_kept(model: Any) -> Iterator[None]:
    """After it buffers have the values that they had: calls that warm a model are nobody's."""
    buffers = list(model.buffers()) if isinstance(model, nn.Module) else []
    were = [(each, each._version, each.detach().clone()) for each in buffers if _counts(each)]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, version, was in were:
                if buffer._version != version:
                    buffer.copy_(was)


def _counts(tensor: Tensor) -> bool:
    """Whether it knows how often it was written to."""
    return not tensor.is_inference()


def _call(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    raise OptionError(
        f"{inputs!r:.80} is no call",
        "a model of torch.compile is warmed by calls, for nobody else knows what its inputs are",
        "give a tensor, a tuple of arguments, or a dict of keyword arguments",
    )

"""What of torch is another while a model is exported: notes stay off the screen, shapes that torch
gets wrong are mended, the model takes the branches that it takes in eager, and nothing is prepared
that nobody asks for."""

from __future__ import annotations

import io
import keyword
import logging
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import proxy
from torch.fx._lazy_graph_module import _use_lazy_graph_module

LAYERS = ("one_layer_lstm", "mkldnn_one_layer_lstm")
"""How torch takes an LSTM apart, a layer at a time."""
_TORCH = str(Path(torch.__file__).parent)


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch's notes on exporting off the screen."""
    logger = logging.getLogger("torch")
    before = logger.level
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        logger.setLevel(logging.CRITICAL)
        try:
            # Of a failed export, torch prints the unfinished graph.
            with redirect_stderr(io.StringIO()):
                yield
        finally:
            logger.setLevel(before)


@contextmanager
def last_states_shaped() -> Iterator[None]:
    """Torch 2.11 squeezes the wrong axis of a recurrence's last states where there are no data: of
    three sequences f32[1,1,3,8] for f32[1,3,8]. Code that goes on with them would be captured for
    that shape. Here they have the shapes of the first ones."""
    import torch._decomp.decompositions as decompositions

    table: Any = decompositions
    own = {name: getattr(table, name) for name in LAYERS}

    def shaped(layer: Any) -> Any:
        def run(inp: Any, hidden: Any, *args: Any, **kwargs: Any) -> Any:
            out, states = layer(inp, hidden, *args, **kwargs)
            pairs = zip(states, hidden, strict=True)
            return out, tuple(state.reshape(first.shape) for state, first in pairs)

        return run

    for name, layer in own.items():
        setattr(table, name, shaped(layer))
    try:
        with dropout_between_layers():
            yield
    finally:
        for name, layer in own.items():
            setattr(table, name, layer)


@contextmanager
def dropout_between_layers() -> Iterator[None]:
    """Torch takes LSTM, GRU and RNN apart without the dropout between their layers, whatever it is
    (`num_layers < i - 1` is never true). Here it is between them, as in eager."""
    import torch._decomp.decompositions as decompositions

    table: Any = decompositions
    whole = table._rnn_helper

    def layer_by_layer(
        x: torch.Tensor,
        hidden: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        layer: Any,
    ) -> tuple[torch.Tensor, list[Any]]:
        x = x.transpose(0, 1) if batch_first else x
        states: list[Any] = []
        ways = 2 if bidirectional else 1
        for i in range(0, num_layers * ways, ways):
            mine = hidden[i : i + ways], params[i : i + ways]
            x, last = whole(x, *mine, has_biases, 1, 0.0, train, bidirectional, False, layer)
            states.extend(last)
            if train and dropout and i + ways < num_layers * ways:
                x = torch.dropout(x, dropout, train=True)
        return x.transpose(0, 1) if batch_first else x, states

    table._rnn_helper = layer_by_layer
    try:
        yield
    finally:
        table._rnn_helper = whole


@contextmanager
def recurrences_of_any_length() -> Iterator[None]:
    """Torch takes LSTM, GRU and RNN apart step by step, and so makes a constant of how many there
    are. Here a sequence whose length is a symbol is as long behind each layer, without its
    steps."""
    import torch._decomp.decompositions as decompositions

    table: Any = decompositions
    whole = table._rnn_helper

    def of_one_step(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, Any]:
        if type(x.shape[0]) is int:
            return whole(x, *args, **kwargs)  # type: ignore[no-any-return]
        y, states = whole(x.new_empty((1, *x.shape[1:])), *args, **kwargs)
        return y.new_empty((x.shape[0], *y.shape[1:])), states

    table._rnn_helper = of_one_step
    try:
        yield
    finally:
        table._rnn_helper = whole


@contextmanager
def layouts_not_asked() -> Iterator[None]:
    """Torch asks of each value whether its elements lie in rows, for the values that are computed
    of it lie alike. Of a part `table[:, :n]` that is so for one n alone, and an export would be of
    all others. Here what it answers for the example is noted nowhere: numbers are the same."""
    room: Any = torch._prims_common
    lies = room.is_contiguous_for_memory_format

    def unnoted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        symbols = (n for n in (*tensor.shape, *tensor.stride()) if isinstance(n, torch.SymInt))
        env = next((symbol.node.shape_env for symbol in symbols), None)
        with env.suppress_guards() if env is not None else nullcontext():
            return lies(tensor, *args, **kwargs)

    room.is_contiguous_for_memory_format = unnoted
    try:
        yield
    finally:
        room.is_contiguous_for_memory_format = lies


_mkldnn: Any = torch._C._get_mkldnn_enabled


@contextmanager
def as_in_eager() -> Iterator[None]:
    """The model goes the way that it goes in eager where torch.export would have it see something
    else: torch.export turns mkldnn off, whose switch the model may read. And transformers look
    whether a mask they are given is the causal one, to go a faster way; a graph cannot look. As a
    mask like any other it gives the same."""
    layers: Any = torch.nn.modules.transformer
    switches: Any = type(torch.backends.mkldnn)
    looks, switch, on = layers._detect_is_causal_mask, vars(switches)["enabled"], _mkldnn()
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    switches.enabled = property(lambda _: on)
    try:
        yield
    finally:
        layers._detect_is_causal_mask, switches.enabled = looks, switch


class _Stacks:
    """Where nodes are made, in the place of torch's `CapturedTraceback`: without frames of torch,
    and from the first `forward` on, for torch keeps no other. Of whoever exports, in frame `outer`,
    and all around it nothing is looked at."""

    def __init__(self, outer: int) -> None:
        self.outer = outer

    def extract(self) -> _Stack:
        frames: list[tuple[str, int, str]] = []
        first = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self.outer:
            code = frame.f_code
            forward = code.co_name == "forward"
            if forward or not code.co_filename.startswith(_TORCH):
                frames.append((code.co_filename, frame.f_lineno, code.co_name))
                first = len(frames) if forward else first
            frame = frame.f_back
        return _Stack(frames[:first][::-1])


class _Stack:
    def __init__(self, frames: list[tuple[str, int, str]]) -> None:
        self.frames = frames

    def summary(self) -> traceback.StackSummary:
        stack = traceback.StackSummary()
        for file, line, name in self.frames:
            stack.append(traceback.FrameSummary(file, line, name, lookup_line=False))
        return stack


@contextmanager
def brief() -> Iterator[None]:
    """Torch does less of what nobody asks for, a seventh of the time of an export. It keeps two or
    three frames of the hundred in which a node is made, after it has read a line of each of them;
    and it writes and compiles the code of a graph after each pass, whether or not it is called."""
    holder: Any = proxy
    own = getattr(holder, "CapturedTraceback", None)
    if own is not None:
        # Behind this generator's frame and that of the manager around it.
        holder.CapturedTraceback = _Stacks(id(sys._getframe(2)))
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        if own is not None:
            holder.CapturedTraceback = own


@contextmanager
def keywords_as_names() -> Iterator[None]:
    """Parts of a model may be called as keywords of Python are (`nn.ModuleDict({"in": ..})`). Of
    such torch.fx writes `self.layers.in.weight`, which is no code; here it is a `getattr`."""
    writer: Any = torch.fx.graph
    own = writer._format_target

    def target(base: str, path: str) -> str:
        for part in path.split("."):
            plain = part.isidentifier() and not keyword.iskeyword(part)
            base = f"{base}.{part}" if plain else f"getattr({base}, {part!r})"
        return base

    writer._format_target = target
    try:
        yield
    finally:
        writer._format_target = own


@contextmanager
def numbers_kept(module: nn.Module) -> Iterator[None]:
    """Buffers of one element have the values afterwards that they had: those that a plain object of
    the model holds, too, as the counter of a cache, torch takes for constants and computes with."""
    numbers = [buffer for buffer in module.buffers() if buffer.numel() == 1]
    before = [number.detach().clone() for number in numbers]
    try:
        yield
    finally:
        for number, value in zip(numbers, before, strict=True):
            if not torch.equal(number, value):
                number.data.copy_(value)  # which is no change that the user has made


@contextmanager
def attention_by_operators() -> Iterator[None]:
    """Within it `flex_attention` is what eager makes of it, operator by operator: it has
    torch.compile find that out, into which neither a list of operators nor torch.export looks. On
    a CPU it refuses what has gradients, as all has in grad mode that is computed of weights; what
    eager makes of it bears them. A function that the user has had compiled runs as what it was made
    of."""
    module: Any = sys.modules.get("torch.nn.attention.flex_attention")
    dynamo: Any = sys.modules.get("torch._dynamo.config")
    patched: dict[str, Any] = {}
    if module is not None:
        dense: Any = sys.modules["torch._higher_order_ops.flex_attention"]
        patched["flex_attention_hop"] = _dense_attention(dense)
        patched["_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"] = True
        patched["_validate_device"] = _any_device
    before = {name: getattr(module, name) for name in patched if hasattr(module, name)}
    for name in before:
        setattr(module, name, patched[name])
    try:
        with dynamo.patch(error_on_nested_fx_trace=False) if dynamo else nullcontext():
            yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def _any_device(*tensors: torch.Tensor) -> None:
    """In the place of torch's check: operators run on all devices."""


def _dense_attention(module: Any) -> Any:
    """Torch's own reference of the operator."""

    def run(query: Any, key: Any, value: Any, score: Any, mask: Any, scale: float, _: Any) -> Any:
        return module.sdpa_dense(query, key, value, score, mask, scale, {}, (), ())

    return run

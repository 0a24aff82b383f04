"""RNN, GRU and LSTM: torch's own layers where they say the same, else step by step.

ONNX orders gates otherwise: an LSTM has input, output, forget, cell where torch has input, forget,
cell, output; a GRU has update, reset, new where torch has reset, update, new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from anabranch.frontend.onnx.call import OnnxCall
from anabranch.frontend.onnx.operators.operator import OnnxOperator, OperatorTable

Maybe = Tensor | None
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Elu": F.elu,
    "Relu": torch.relu,
    "Sigmoid": torch.sigmoid,
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Tanh": torch.tanh,
}
OF_LSTM, OF_GRU = (0, 2, 3, 1), (1, 0, 2)
"""Which gate of ONNX stands where torch has its first, second and so on."""


def _directions(call: OnnxCall) -> int:
    return 2 if call.get("direction", "forward") == "bidirectional" else 1


def _functions(call: OnnxCall, usual: tuple[str, ...]) -> list[list[Callable[[Tensor], Tensor]]]:
    """For each direction, its functions of gates."""
    named = call.get("activations", usual * _directions(call))
    unknown = [name for name in named if name not in FUNCTIONS]
    constants = [call.maybe(f"activation_{key}", tuple) for key in ("alpha", "beta")]
    if unknown or any(constants):
        raise call.refused(f"gates by {', '.join(unknown) or 'functions with constants'}")
    functions = [FUNCTIONS[name] for name in named]
    return [functions[at : at + len(usual)] for at in range(0, len(functions), len(usual))]


def _usual(call: OnnxCall, usual: tuple[str, ...]) -> bool:
    named = call.get("activations", usual * _directions(call))
    return named == usual * _directions(call) and call.maybe("clip", float) is None


def _torch_weights(
    w: Tensor, r: Tensor, b: Maybe, order: tuple[int, ...], hidden: int
) -> list[Tensor]:
    """Weights in the order in which torch has gates: of each direction input, hidden, biases."""
    weights: list[Tensor] = []

    def ordered(x: Tensor) -> Tensor:
        if order == tuple(range(len(order))):
            return x
        parts = torch.split(x, hidden)
        return torch.cat([parts[at] for at in order])

    for way in range(w.shape[0]):
        weights += [ordered(w[way]), ordered(r[way])]
        if b is not None:
            weights += [ordered(bias) for bias in b[way].chunk(2)]
    return weights


def _as_torch(
    call: OnnxCall,
    function: Callable[..., Any],
    x: Tensor,
    weights: list[Tensor],
    states: Any,
    biased: bool,
) -> tuple[Tensor, ...]:
    """A layer of torch for a sequence whose steps are the first axis."""
    two = _directions(call) == 2
    if call.get("direction", "forward") == "reverse":
        out, *last = function(x.flip(0), states, weights, biased, 1, 0.0, False, two, False)
        return (out.flip(0), *last)
    return tuple(function(x, states, weights, biased, 1, 0.0, False, two, False))


def _laid_out(call: OnnxCall, out: Tensor, *last: Tensor) -> tuple[Tensor, ...]:
    """(steps, batch, ways * hidden) as ONNX has it, with the batch first where it is asked."""
    steps, batch, _ = out.shape
    by_way = out.reshape(steps, batch, _directions(call), -1)
    if call.get("layout", 0):
        return by_way.transpose(0, 1), *(state.transpose(0, 1) for state in last)
    return by_way.transpose(1, 2), *last


def _begin(call: OnnxCall, x: Tensor, state: Maybe, hidden: int) -> tuple[Tensor, Tensor]:
    """The sequence with its steps first, and the state before them."""
    if call.get("layout", 0):
        x = x.transpose(0, 1)
        state = None if state is None else state.transpose(0, 1)
    if state is None:
        state = x.new_zeros(_directions(call), x.shape[1], hidden)
    return x, state


Step = Callable[[int, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _by_steps(
    call: OnnxCall, x: Tensor, states: tuple[Tensor, ...], lengths: Maybe, step: Step
) -> tuple[Tensor, ...]:
    """Any cell, one step at a time; an example that has ended keeps its state and gives zeros."""
    outs, lasts = [], []
    ways = {"forward": (False,), "reverse": (True,)}
    for way, backward in enumerate(ways.get(call.get("direction", "forward"), (False, True))):
        now = tuple(state[way] for state in states)
        order = range(x.shape[0])
        by_step: dict[int, Tensor] = {}
        for at in reversed(order) if backward else order:
            new = step(way, x[at], now)
            out = new[0]
            if lengths is not None:
                alive = (lengths > at)[:, None]
                new = tuple(torch.where(alive, a, b) for a, b in zip(new, now, strict=True))
                out = torch.where(alive, out, torch.zeros_like(out))
            by_step[at], now = out, new
        outs.append(torch.stack([by_step[at] for at in order]))
        lasts.append(now)
    last = (torch.stack(final) for final in zip(*lasts, strict=True))
    return _laid_out(call, torch.cat(outs, -1), *last)


def _clipped(call: OnnxCall) -> Callable[[Tensor], Tensor]:
    clip = call.maybe("clip", float)
    return (lambda x: x) if clip is None else (lambda x: x.clamp(-clip, clip))


def _biases(b: Maybe, like: Tensor) -> Tensor:
    return like.new_zeros(like.shape[0], 2 * like.shape[1]) if b is None else b


def rnn(
    call: OnnxCall,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Maybe = None,
    lengths: Maybe = None,
    state: Maybe = None,
) -> tuple[Tensor, ...]:
    """RNN."""
    x, state = _begin(call, x, state, r.shape[-1])
    if _usual(call, ("Tanh",)) and lengths is None:
        weights = _torch_weights(w, r, b, (0,), r.shape[-1])
        return _laid_out(call, *_as_torch(call, torch.rnn_tanh, x, weights, state, b is not None))
    functions, clip, bias = _functions(call, ("Tanh",)), _clipped(call), _biases(b, r)

    def step(way: int, x: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        wb, rb = bias[way].chunk(2)
        return (functions[way][0](clip(F.linear(x, w[way], wb) + F.linear(now[0], r[way], rb))),)

    return _by_steps(call, x, (state,), lengths, step)


def gru(
    call: OnnxCall,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Maybe = None,
    lengths: Maybe = None,
    state: Maybe = None,
) -> tuple[Tensor, ...]:
    """GRU, with the reset before or after the product as the node says."""
    x, state = _begin(call, x, state, r.shape[-1])
    after, hidden = call.get("linear_before_reset", 0), r.shape[-1]
    if _usual(call, ("Sigmoid", "Tanh")) and lengths is None and after:
        weights = _torch_weights(w, r, b, OF_GRU, hidden)
        return _laid_out(call, *_as_torch(call, torch.gru, x, weights, state, b is not None))
    functions, clip, bias = _functions(call, ("Sigmoid", "Tanh")), _clipped(call), _biases(b, r)

    def step(way: int, x: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f, g = functions[way]
        h, (wb, rb) = now[0], bias[way].chunk(2)
        wz, wr, wh = F.linear(x, w[way], wb).chunk(3, -1)
        rz, rr = F.linear(h, r[way][: 2 * hidden], rb[: 2 * hidden]).chunk(2, -1)
        z, reset = f(clip(wz + rz)), f(clip(wr + rr))
        last_w, last_b = r[way][2 * hidden :], rb[2 * hidden :]
        inner = (
            reset * F.linear(h, last_w, last_b) if after else F.linear(reset * h, last_w, last_b)
        )
        new = g(clip(wh + inner))
        return ((1 - z) * new + z * h,)

    return _by_steps(call, x, (state,), lengths, step)


def lstm(
    call: OnnxCall,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Maybe = None,
    lengths: Maybe = None,
    state: Maybe = None,
    cell: Maybe = None,
    peepholes: Maybe = None,
) -> tuple[Tensor, ...]:
    """LSTM, with peepholes too."""
    hidden = r.shape[-1]
    cell = _begin(call, x, cell, hidden)[1]
    x, state = _begin(call, x, state, hidden)
    plain = _usual(call, ("Sigmoid", "Tanh", "Tanh")) and peepholes is None
    if plain and lengths is None and not call.get("input_forget", 0):
        weights = _torch_weights(w, r, b, OF_LSTM, hidden)
        outputs = _as_torch(call, torch.lstm, x, weights, (state, cell), b is not None)
        return _laid_out(call, *outputs)
    functions, clip = _functions(call, ("Sigmoid", "Tanh", "Tanh")), _clipped(call)
    bias, coupled = _biases(b, r), call.get("input_forget", 0)

    def step(way: int, x: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        f, g, out = functions[way]
        (h, c), (wb, rb) = now, bias[way].chunk(2)
        i, o, forget, new = (F.linear(x, w[way], wb) + F.linear(h, r[way], rb)).chunk(4, -1)
        pi, po, pf = (0, 0, 0) if peepholes is None else peepholes[way].chunk(3)
        i = f(clip(i + pi * c))
        forget = 1 - i if coupled else f(clip(forget + pf * c))
        c = forget * c + i * g(clip(new))
        return f(clip(o + po * c)) * out(c), c

    return _by_steps(call, x, (state, cell), lengths, step)


def stack(function: Callable[..., Any], order: tuple[int, ...], states: int) -> OnnxOperator:
    """Several layers in one call of torch, whose weights, biases and states come layer by layer."""

    def run(call: OnnxCall, x: Tensor, *operands: Maybe) -> tuple[Tensor, ...]:
        count, ways = call.need("layers", int), _directions(call)
        sizes: tuple[int, ...] = call.get("sizes", ())
        if any(size not in (0, -1, x.shape[at % 2]) for at, size in enumerate(sizes)):
            raise call.refused("a sequence has another shape between two of its layers")
        each = [operands[at : at + 3 + states] for at in range(0, len(operands), 3 + states)]
        weights: list[Tensor] = []
        before: list[list[Tensor]] = [[] for _ in range(states)]
        for w, r, b, *first in each:
            assert w is not None and r is not None, "layers have weights"
            hidden = r.shape[-1]
            weights += _torch_weights(w, r, b, order, hidden)
            for layers, state in zip(before, first, strict=True):
                layers.append(x.new_zeros(ways, x.shape[1], hidden) if state is None else state)
        held = [torch.cat(layers) for layers in before]
        start, biased = held[0] if states == 1 else tuple(held), each[0][2] is not None
        out, *last = function(x, start, weights, biased, count, 0.0, False, ways == 2, False)
        parts = [torch.split(final, ways) for final in last]
        return _laid_out(call, out)[0], *(part[at] for at in range(count) for part in parts)

    return OnnxOperator(run)


RECURRENT: OperatorTable = {
    "GRU": OnnxOperator(gru),
    "LSTM": OnnxOperator(lstm),
    "RNN": OnnxOperator(rnn),
    "anabranch.GRU": stack(torch.gru, OF_GRU, 1),
    "anabranch.LSTM": stack(torch.lstm, OF_LSTM, 2),
}

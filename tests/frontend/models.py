"""Small models, one per thing that a capture must get right, and the comparison all tests share."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Point = namedtuple("Point", ["x", "y"])


def f(*shape: int) -> Tensor:
    return torch.randn(*shape)


class Net(nn.Module):
    """A module of a function and parts: `Net(lambda net, x: net.a(x), a=nn.Linear(2, 2))`."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


@dataclass
class Case:
    """A model, a call of it, and fresh inputs for the same call."""

    model: nn.Module
    make: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]


def case(function: Callable[..., Any], *make: Callable[[], Any], **parts: Any) -> Case:
    """`make` gives one positional argument each, `kw` (if among parts) the keyword arguments."""
    keywords = parts.pop("kw", dict)
    return Case(Net(function, **parts), lambda: (tuple(m() for m in make), keywords()))


def _store_column(net: Any, x: Tensor) -> Tensor:
    y = x * 1
    y[:, 0] = 3.0
    y[1:].mul_(2)
    return y.add_(1)


def _masked_softmax(net: Any, q: Tensor) -> Tensor:
    mask = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    scores = q @ q.transpose(1, 2) / q.shape[-1] ** 0.5
    weights: Tensor = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights @ q


def _heads(net: Any, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in net.qkv(x).chunk(3, -1))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return net.out(out.transpose(1, 2).reshape(x.shape))  # type: ignore[no-any-return]


def _tied(net: Any, ids: Tensor) -> Tensor:
    return net.head(net.table(ids))  # type: ignore[no-any-return]


def _tied_parts() -> dict[str, nn.Module]:
    table, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = table.weight
    return {"table": table, "head": head}


def _grad_modes(net: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        y = y + x
    return y.detach() + 1


def _filled(net: Any, x: Tensor) -> Tensor:
    """Memory that nobody has written to, written to."""
    a, b = torch.empty_like(x), x.new_empty(3, 4)
    c = torch.empty_like(x, memory_format=torch.channels_last)
    a.copy_(x)
    b[:, :2], b[:, 2:] = 1.5, 2.5
    c.copy_(x)
    d = torch.empty(3, device=x.device).fill_(2)
    return a.sum() + b.sum() + (c * x).sum() + d.sum()


def image() -> Tensor:
    return f(2, 3, 12, 12)


CASES: dict[str, Callable[[], Case]] = {
    "positional and keyword": lambda: case(
        lambda net, x, y, *, z: x * 2 + y - z, lambda: f(3), lambda: f(3), kw=lambda: {"z": f(3)}
    ),
    "nested inputs": lambda: case(
        lambda net, x, d: x[0] + x[1][0] * d["a"] - d["b"]["c"],
        lambda: (f(3), [f(3)]),
        lambda: {"b": {"c": f(3)}, "a": f(3)},
    ),
    "nested outputs": lambda: case(
        lambda net, x: {"sum": x.sum(0), "rest": [x + 1, (x * 2, None)], "n": 3}, lambda: f(2, 3)
    ),
    "namedtuple output": lambda: case(lambda net, x: Point(x + 1, x * 2), lambda: f(3)),
    "ordered dict output": lambda: case(
        lambda net, x: OrderedDict(logits=x + 1, loss=None), lambda: f(3)
    ),
    "tied weights": lambda: case(_tied, lambda: torch.randint(0, 7, (2, 3)), **_tied_parts()),
    "transposed view of a weight": lambda: case(
        lambda net, x: x @ net.w + x @ net.v,
        lambda: f(2, 4),
        w=(shared := nn.Parameter(f(4, 4))),
        v=shared.detach().t(),
    ),
    "buffers": lambda: case(
        lambda net, x: (x - net.mean) / net.std, lambda: f(2, 3), mean=f(3), std=f(3).abs() + 1
    ),
    "lifted tensor": lambda: case(
        lambda net, x: x + torch.tensor([1.0, 2.0, 3.0]) + torch.arange(3), lambda: f(3)
    ),
    "several outputs": lambda: case(
        lambda net, x: (*x.split(2, 1), *torch.var_mean(x, 0), *x.unbind(0)), lambda: f(2, 5)
    ),
    "all of it is one piece": lambda: case(
        lambda net, x: [piece + 1 for piece in x.split(5, 1)], lambda: f(2, 5)
    ),
    "output is the input": lambda: case(
        lambda net, x, y: (x, x.view(-1), y, x.clone()), lambda: f(2, 3), lambda: f(2)
    ),
    "output is a weight": lambda: case(lambda net, x: (net.w, x + net.w), lambda: f(3), w=f(3)),
    "same output twice": lambda: case(lambda net, x: [y := x + 1, y], lambda: f(3)),
    "scalars": lambda: case(
        lambda net, x, n, s, flag, mode: (x * n + s if flag else x) + len(mode),
        lambda: f(3),
        lambda: 3,
        lambda: 0.5,
        lambda: True,
        lambda: "sum",
    ),
    "unused input": lambda: case(lambda net, x, y: x + 1, lambda: f(3), lambda: f(2)),
    "None input": lambda: case(
        lambda net, x, mask: x if mask is None else x * mask, lambda: f(3), lambda: None
    ),
    "integers": lambda: case(
        lambda net, i, x: (x[i], i * 2 + 1, i.float().mean(), (i > 2).any()),
        lambda: torch.randint(0, 5, (4,)),
        lambda: f(5, 2),
    ),
    "views": lambda: case(
        lambda net, x: (
            x.permute(0, 2, 1)[:, 1:, ::2].reshape(2, -1).t().unsqueeze(1).expand(-1, 3, 2)
        ),
        lambda: f(2, 4, 6),
    ),
    "in place": lambda: case(_store_column, lambda: f(3, 4)),
    "in-place relu": lambda: case(
        lambda net, x: F.relu_(net.conv(x)), image, conv=nn.Conv2d(3, 4, 3, padding="same")
    ),
    "dropout in eval": lambda: case(
        lambda net, x: net.drop(x) + F.dropout(x, 0.3, training=net.training),
        lambda: f(4),
        drop=nn.Dropout(0.5),
    ),
    "masked softmax": lambda: case(_masked_softmax, lambda: f(2, 4, 8)),
    "attention": lambda: case(
        _heads, lambda: f(2, 5, 8), qkv=nn.Linear(8, 24), out=nn.Linear(8, 8)
    ),
    "multi-head attention": lambda: case(
        lambda net, x: net.m(x, x, x),
        lambda: f(2, 5, 8),
        m=nn.MultiheadAttention(8, 2, batch_first=True),
    ),
    "a transformer with a mask": lambda: case(
        lambda net, x, y, mask: net.both(x, y, tgt_mask=mask),
        lambda: f(2, 5, 8),
        lambda: f(2, 3, 8),
        lambda: nn.Transformer.generate_square_subsequent_mask(3),
        both=nn.Transformer(8, 2, 1, 1, 16, batch_first=True),
    ),
    "transformer layer": lambda: case(
        lambda net, x: net.layer(x),
        lambda: f(2, 5, 8),
        layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ),
    "norms": lambda: case(
        lambda net, x: net.i(net.g(x)) + net.l(x) + F.rms_norm(x, (6,)),
        lambda: f(2, 4, 6, 6),
        l=nn.LayerNorm(6),
        g=nn.GroupNorm(2, 4),
        i=nn.InstanceNorm2d(4),
    ),
    "activations": lambda: case(
        lambda net, x: (
            F.gelu(x)
            + F.silu(x)
            + F.hardswish(x)
            + F.mish(x)
            + F.selu(x)
            + F.relu6(x)
            + F.log_softmax(x, 0)
            + F.gelu(x, approximate="tanh")
        ),
        lambda: f(8),
    ),
    "lstm": lambda: case(
        lambda net, x: net.rnn(x),
        lambda: f(2, 5, 3),
        rnn=nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True),
    ),
    "gru": lambda: case(lambda net, x: net.rnn(x)[0], lambda: f(5, 2, 3), rnn=nn.GRU(3, 4)),
    "einsum": lambda: case(
        lambda net, a, b: torch.einsum("bhid,bhjd->bhij", a, b),
        lambda: f(2, 3, 4, 5),
        lambda: f(2, 3, 6, 5),
    ),
    "matmul by broadcasting": lambda: case(
        lambda net, a, b: torch.matmul(a, b), lambda: f(2, 3, 4, 5), lambda: f(3, 5, 2)
    ),
    "embedding": lambda: case(
        lambda net, i: net.e(i).mean(1), lambda: torch.randint(0, 9, (2, 3)), e=nn.Embedding(9, 4)
    ),
    "batch norm of the batch": lambda: case(
        lambda net, x: net.bn(x),
        lambda: f(4, 3, 5),
        bn=nn.BatchNorm1d(3, track_running_stats=False),
    ),
    "conv and batch norm": lambda: case(
        lambda net, x: net.bn(net.conv(x)).relu(),
        image,
        conv=nn.Conv2d(3, 6, 3, stride=2, groups=3, bias=False),
        bn=nn.BatchNorm2d(6),
    ),
    "channels last": lambda: case(
        lambda net, x: net.conv(x).flatten(1),
        lambda: image().contiguous(memory_format=torch.channels_last),
        conv=nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
    ),
    "transposed convolution": lambda: case(
        lambda net, x: net.up(x), image, up=nn.ConvTranspose2d(3, 2, 3, stride=2)
    ),
    "upsample": lambda: case(
        lambda net, x: (
            F.interpolate(x, scale_factor=2) + F.interpolate(x, size=(24, 24), mode="bilinear")
        ),
        image,
    ),
    "pools": lambda: case(
        lambda net, x: (
            F.max_pool2d(x, 3, 2, 1)
            + F.avg_pool2d(x, 2)
            + F.adaptive_avg_pool2d(x, 6)
            + F.pixel_unshuffle(x, 2)[:, ::4]
            + F.pad(x, (0, -6, -3, -3), mode="constant")
        ),
        image,
    ),
    "grad modes": lambda: case(_grad_modes, lambda: f(3)),
    "input that requires grad": lambda: case(lambda net, x: x * 2, lambda: f(3).requires_grad_()),
    "half precision inside": lambda: case(
        lambda net, x: (x.to(torch.bfloat16) + 1).to(torch.float32), lambda: f(3)
    ),
    "complex": lambda: case(lambda net, x: torch.fft.rfft(x).abs(), lambda: f(2, 8)),
    "inverse": lambda: case(
        lambda net, x: torch.linalg.inv(x @ x.mT + torch.eye(3, device=x.device)), lambda: f(3, 3)
    ),
    "fills": lambda: case(
        lambda net, x: torch.zeros_like(x) + x.new_full((3,), 2.5) + torch.ones_like(x).cumsum(0),
        lambda: f(3),
    ),
    "circular padding": lambda: case(
        lambda net, x: F.conv2d(F.pad(x, (1, 2, 2, 1), mode="circular"), net.weight),
        image,
        weight=f(4, 3, 3, 3),
    ),
    "empty memory": lambda: case(_filled, lambda: f(2, 3, 4, 4)),
    "nothing": lambda: case(lambda net, x: None, lambda: f(3)),
}

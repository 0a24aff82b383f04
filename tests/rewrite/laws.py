"""Functions in which laws of algebra and moves are found as torch captures them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor, nn
from torch.nn.functional import (
    adaptive_avg_pool2d,
    avg_pool2d,
    gelu,
    hardswish,
    hardtanh,
    leaky_relu,
    silu,
)

Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    **{"relu": torch.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": gelu},
    **{"silu": silu, "hardswish": hardswish, "hardtanh": hardtanh, "leaky_relu": leaky_relu},
}
MOVES: Sequence[Function] = (
    *(lambda x: x.transpose(0, 2), lambda x: x.permute(1, 2, 0), lambda x: x.reshape(6, -1)),
    *(lambda x: x[:, 1:3], lambda x: x[:, 2], lambda x: x[:1].expand(2, -1, -1)),
    lambda x: x.expand(3, 2, 4, 6),
)


class Law(nn.Module):
    """A function of tensors, with layers that it may call."""

    def __init__(self, function: Callable[..., list[Tensor]]) -> None:
        super().__init__()
        self.function = function
        self.conv, self.side, self.wide = (nn.Conv2d(4, 4, k, padding=k // 2) for k in (3, 3, 5))
        self.point = nn.Conv2d(4, 4, 1, bias=False)
        self.halves = nn.ModuleList(nn.Conv2d(4, 4, k, padding=k // 2, groups=2) for k in (3, 3, 5))
        self.linear, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, *args: Tensor) -> list[Tensor]:
        return self.function(self, *args)


def moved(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """What is computed before or behind a move."""
    found = [m(f(x)) for m in MOVES for f in FUNCTIONS.values()]
    found += [f(m(x)) for m in MOVES for f in FUNCTIONS.values()]
    for op in (torch.add, torch.sub, torch.mul):
        found += [side for m in MOVES for side in (op(m(x), m(y)), m(op(x, y)))]
    return found + [side for m in MOVES for side in (m(x) * 3, m(x * 3))]


def joined(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """What is computed of the parts of a concatenation, or of all."""
    each = [x * i for i in (1, 3, 5, 7, 9, 11)]
    found = [torch.cat([f(p) for p in each[:n]]) for f in FUNCTIONS.values() for n in range(2, 7)]
    found += [f(torch.cat([x, y])) for f in FUNCTIONS.values()]
    for op in (torch.add, torch.sub, torch.mul):
        found.append(op(torch.cat([x, y]), torch.cat([y, x])))
        found += [torch.cat([op(p, y) for p in each[1 : n + 1]]) for n in (2, 3)]
    whole = torch.cat([x, y.exp()], 1)
    return [*found, whole[:, :3], whole[:, :, 1:3].exp(), x[:, 1:4][:, 1:2]]


def neighbours(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Slices side by side among the parts of a concatenation."""
    rest = [y * i for i in (3, 5, 7, 9)]
    return [
        torch.cat([*rest[:at], x[:, :1], x[:, 1:3], *rest[at : n - 2]], 1)
        for n in range(2, 7)
        for at in range(n - 1)
    ]


def terms(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Sums and differences in every order, of products too."""
    a, b, c, d, e, f, g, h = (
        x.sin(),
        y.sin(),
        x.cos(),
        y.cos(),
        x.exp(),
        y.exp(),
        x.tan(),
        y.tan(),
    )
    sums, total = [], a
    for term in (b, c, d, e, f, g, h):
        total = total + term
        sums.append(total)
    sums += [(a - b) - c, a - (b + c), (a - b) + c, (a + c) - b, (a + b) + (c + d)]
    sums += [a * b + a * c, a * b - a * c, a * (b + c), a * (b - c)]
    sums += [a * 3 + b * 3, (a + b) * 3, a * 3 - b * 3, (a - b) * 3, a / 3 + b / 3, (a + b) / 3]
    sums += [(a * b) * 3, (a * 3) * b, a * 3 + a, a - a * b, a * b + c * (1 - b), b + c * (a - b)]
    return [*sums, torch.stack([a, b, c]).sum(0)]


def products(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Products of sums, and sums of products, of matrices and batches."""
    found = []
    for a, b, c, d in ((x, y, x.sin(), y.sin()), (x[0], y[0], x[0].sin(), y[0].sin())):
        mul = torch.bmm if a.dim() == 3 else torch.mm
        found += [mul(a, b) + mul(a, c), mul(a, b + c), mul(a, b) - mul(a, c), mul(a, b - c)]
        found += [mul(a, d) + mul(c, d), mul(a + c, d), mul(a * 3, b), mul(a, b) * 3]
        found += [mul(a, b * 3), mul(mul(a, b), c), mul(a, mul(b, c)), mul(a, b) + mul(c, d)]
        joined = torch.cat([b, d], -2)
        found.append(mul(torch.cat([a, c], -1), joined))
    return found


def pooled(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Linear operators of sums, and sums of what they make."""
    found = []
    for f in (
        *(lambda x: avg_pool2d(x, 2), lambda x: adaptive_avg_pool2d(x, 2)),
        *(lambda x: x.sum(1), lambda x: x.mean(1)),
    ):
        found += [f(x) + f(y), f(x + y), f(x) - f(y), f(x - y)]
    return [*found, (x * 3).relu(), x.relu() * 3, x.relu().relu()]


def convolved(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Layers of sums, and sums of layers."""
    return [
        *(net.conv(x) + net.conv(y), net.conv(x + y), net.conv(x) - net.conv(y)),
        *(net.conv(x) + net.wide(x), net.conv(net.point(x)), net.conv(x)[:, :2]),
        torch.cat([net.conv(x), net.side(x)], 1),
    ]


def rows(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """As `convolved`, and rows that are cut, joined and counted in another way."""
    return [
        *(net.linear(x) + net.linear(y), net.linear(x + y), net.linear(x) - net.linear(y)),
        *(net.linear(x) + net.other(x), net.other(net.linear(x)), net.linear(x).flatten(0, 1)),
        *(net.other(x.reshape(-1, 6)), net.linear(x)[:, 1], net.linear(x)[:, 1:3]),
        *(net.linear(x)[..., :2], net.linear(torch.cat([x, y], 1))),
    ]


def activated(net: Law, x: Tensor, y: Tensor) -> list[Tensor]:
    """Activated convolutions of one input, joined or not."""
    found = []
    for f in FUNCTIONS.values():
        dense = combinations((net.conv, net.side, net.wide), 2)
        for one, two in (*dense, *combinations(net.halves, 2)):
            found += [torch.cat([f(one(x)), f(two(x))], 1), f(one(y)).exp() * f(two(y))]
    return found


def _pair(*shape: int) -> tuple[Tensor, Tensor]:
    return torch.rand(shape), torch.rand(shape)


LAWS: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "moved": (Law(moved), _pair(2, 4, 6)),
    "joined": (Law(joined), _pair(2, 4, 6)),
    "neighbours": (Law(neighbours), _pair(2, 4, 6)),
    "terms": (Law(terms), _pair(2, 4)),
    "sums of products": (Law(products), _pair(2, 4, 4)),
    "pooled": (Law(pooled), _pair(2, 4, 6, 6)),
    "convolved": (Law(convolved), _pair(2, 4, 6, 6)),
    "rows": (Law(rows), _pair(2, 4, 6)),
    "activated": (Law(activated), _pair(2, 4, 6, 6)),
}

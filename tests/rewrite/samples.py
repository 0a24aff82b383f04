"""Small modules for the rules that no network of the zoo has a use for: how people write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu6


class Twins(nn.Module):
    """Two inputs, one set of weights: metric learning."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = (self.conv(side).relu().mean((2, 3)) for side in (x, y))
        return torch.sub(self.linear(a), self.linear(b)).abs()


class Towers(nn.Module):
    """Two inputs, each with weights of its own, that meet as a sum and as a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(8, 2)
        self.plus, self.minus = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = self.left(x).relu(), self.right(y).relu()
        return self.head(torch.cat([a, b], 1)), self.plus(a) + self.minus(b)


class Norms(nn.Module):
    """A norm before a convolution, and one of a convolution that is read elsewhere, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv = nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)
        self.second, self.wide = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv(self.first(x))
        return torch.add(self.wide(self.second(inner).relu()), inner.sigmoid())


class Scales(nn.Module):
    """Factors and terms of channels, learnt or given, around convolutions and linears."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.d = nn.Conv2d(3, 3, 1)
        self.p, self.q, self.r = (nn.Linear(3, 3) for _ in range(3))
        self.factor, self.term = nn.Parameter(torch.rand(3, 1, 1)), nn.Parameter(torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.a(x / 255 * 2) * self.factor).relu()
        x = (self.b(x * self.factor) + self.factor).relu()
        x = self.d(self.c(x).relu() - 0.5 + self.factor).flatten(2).transpose(1, 2)
        x = (self.p(x) * self.term).relu()
        return torch.tanh(self.r((self.q(x * self.term) + self.term).relu()))


class Divided(nn.Module):
    """What is divided, subtracted and turned round beside layers: whitening, and its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(2))
        self.up = nn.ConvTranspose2d(3, 3, 2, stride=2)
        self.p, self.q = nn.Linear(3, 3), nn.Linear(3, 3)
        self.factor, self.term = nn.Parameter(torch.rand(3, 1, 1) + 1), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        x = (self.a(x / self.factor) - self.factor).relu()
        x = (1 - self.up((-self.b(x)).relu()) * self.factor).relu()
        x = (self.b(x) / self.factor).relu().flatten(2).transpose(1, 2)
        return torch.tanh(self.q((self.p(x) / self.term).relu() / self.term))


class Squashed(nn.Module):
    """Convolutions with bounded functions around their pooling: LeNet, and networks for phones."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(7))

    def forward(self, x: Tensor) -> Tensor:
        pool = nn.MaxPool2d(2, 2)
        functions: tuple[Callable[[Tensor], Tensor], ...] = (torch.tanh, torch.sigmoid, relu6)
        for conv, function in zip(self.convs[:3], functions, strict=True):
            x = pool(function(conv(x)))
        for conv, function in zip(self.convs[3:], (torch.relu, *functions), strict=True):
            x = function(max_pool2d(conv(x), 3, 1, 1))
        return x


class Products(nn.Module):
    """Products of matrices by all their names."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = (nn.Parameter(torch.rand(4, 5)) for _ in range(2))
        self.b, self.c = (nn.Parameter(torch.rand(1, 5)) for _ in range(2))
        self.head = nn.Parameter(torch.rand(5))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        pair = torch.stack([x, y])
        other = torch.stack([self.w, self.v])
        w, v = self.w * y.mean(), self.v * y.mean()
        return (
            *(torch.mm(x, w), torch.mm(x, v), torch.mm(y, w)),
            *(torch.bmm(pair, other), torch.bmm(pair, other + 1), torch.bmm(pair * 2, other)),
            *(torch.bmm(pair + 2, other[:, :, :1] * x.sum()), torch.bmm(pair[:, :1] * 3, other)),
            *(torch.addmm(self.b, x, w), torch.addmm(self.c, x, v)),
            *(pair @ self.w + self.head, pair @ self.v, (pair * 3) @ self.w),
        )


class Halves(nn.Module):
    """A depthwise convolution of a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(6, 6, 3, groups=6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(torch.cat([x.relu(), x.neg()], 1)))


class Dense(nn.Module):
    """Layers that read all layers before them, with and without norms and functions of their own:
    DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(3 + 2 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(4))
        self.head, self.norm = nn.Conv2d(11, 4, 1), nn.BatchNorm2d(11)
        self.wide = nn.Conv2d(27, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        made = [x]
        for norm, conv in zip(self.norms, self.convs[:3], strict=True):
            made.append(conv(norm(torch.cat(made, 1)).relu()))
        made.append(self.convs[3](torch.cat(made, 1).relu()))
        whole = torch.cat(made, 1)
        wide = self.wide(torch.cat([x * i for i in range(1, 10)], 1))
        return torch.sub(wide.sigmoid(), self.head(self.norm(whole)).tanh())


class Mixer(nn.Module):
    """Layers along the tokens, with their transpositions said in two ways: MLP-Mixer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.a(x.transpose(1, 2)).relu()).transpose(1, 2)
        z = self.d(self.c(x.permute(0, 2, 1)).relu()).permute(0, 2, 1)
        turned = torch.bmm(x, y).transpose(1, 2) + torch.bmm(y.mT, z.mT)
        return torch.mul(turned.sigmoid(), z)


class Transposed(nn.Module):
    """Products of turned matrices and batches, turned back, as people spell that."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = x[0], y[0]
        return (
            *((a.T @ b.T).T, torch.mm(a, b).T, (a.t() @ b.transpose(0, 1)).permute(1, 0)),
            (x.permute(0, 2, 1) @ y.permute(0, 2, 1)).permute(0, 2, 1),
            *((x.mT @ y.mT).mT, torch.bmm(x, y).transpose(-1, -2)),
        )


class Cut(nn.Module):
    """What layers and sums make, cut into pieces by all names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 8, 3), nn.Linear(6, 12)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = self.conv(x).chunk(2, 1)
        q, k, v = self.linear(y).chunk(3, -1)
        c, d = (y + y.tanh()).split_with_sizes([2, 4], 1)
        rows = torch.stack([row.relu() for row in y.relu().unbind(0)])
        return a * b.sigmoid(), q * k.sigmoid() + v, c.exp(), d, rows


class Written(nn.Module):
    """A norm by squares that is written out, in fp32: LLaMA's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(64))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-3)
        return torch.mul(self.weight, wide.to(x.dtype))


class Normed(nn.Module):
    """Rows that are normalised before a linear."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(2))
        self.linears = nn.ModuleList(nn.Linear(64, 64, bias=bias) for bias in (True, False))

    def forward(self, x: Tensor) -> Tensor:
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = torch.sub(linear(norm(x)).tanh(), x)
        return x


class Large(nn.Module):
    """Norms of a large image: of groups of its channels, of each channel, and of all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.groups, self.alone = nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)
        self.whole = nn.LayerNorm([6, 64, 72])

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(self.alone(self.groups(x).sigmoid()).tanh() - x)  # type: ignore[no-any-return]


class Lookups(nn.Module):
    """Categories, each in a table of its own, or of several values each, which are added up, put
    together in every way beside something or not."""

    def __init__(self, bags: bool = False) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(3 + i, 4) for i in range(3))
        self.bags = bags

    def forward(self, ids: Tensor, x: Tensor) -> list[Tensor]:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        if self.bags:
            found = [rows.sum(1) for rows in found]
        several = (found, [x, *found], [*found, x])
        return [
            side.tanh()
            for parts in several
            for side in (torch.stack(parts, 1), torch.cat(parts, 0), torch.cat(parts, 1))
        ]


class Multiplied(nn.Module):
    """Linears of lookups, alone and side by side in every way, beside something or not; of one
    lookup in a stack of tables, too."""

    which: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(3 + i, 4) for i in range(3))
        self.stack, self.vectors = nn.Parameter(torch.rand(3, 5, 4)), nn.Parameter(torch.rand(2, 4))
        self.register_buffer("which", torch.arange(3))
        self.one = nn.Linear(4, 6)
        self.alone = nn.ModuleList(nn.Linear(12, 6, bias=i > 0) for i in range(3))
        self.beside = nn.ModuleList(nn.Linear(14, 6) for _ in range(2))
        self.scaled = nn.ModuleList(nn.Linear(20, 6) for _ in range(4))

    def forward(self, ids: Tensor, x: Tensor) -> list[Tensor]:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        fields = torch.stack(found, 1), self.stack[self.which, ids]
        rows = x[:, :, None] * self.vectors
        alone = fields[0].flatten(1), fields[1].flatten(1), torch.cat(found, 1)
        beside = torch.cat([x, *found], 1), torch.cat([*found, x], 1)
        scaled = [torch.cat(two, 1) for one in fields for two in ((one, rows), (rows, one))]
        read = [found[0], *alone, *beside, *(each.flatten(1) for each in scaled)]
        linears = self.one, *self.alone, *self.beside, *self.scaled
        return [linear(each).tanh() for linear, each in zip(linears, read, strict=True)]


class Leaky(nn.Module):
    """A state that each step multiplies and adds to, batch first, its steps one after the other."""

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        state, found = torch.zeros_like(x[:, 0]), list[Tensor]()
        for t in range(x.shape[1]):
            state = f[:, t] * state + x[:, t]
            found.append(state.unsqueeze(1))
        return torch.cat(found, 1).tanh()


def _image() -> Tensor:
    return torch.rand(2, 3, 16, 16)


SAMPLES: dict[str, tuple[nn.Module, tuple[Tensor, ...]]] = {
    "twins": (Twins(), (_image(), _image())),
    "towers": (Towers(), (torch.rand(2, 6), torch.rand(2, 6))),
    "norms": (Norms(), (_image(),)),
    "scales": (Scales(), (_image(),)),
    "divided": (Divided(), (_image(),)),
    "squashed": (Squashed(), (_image(),)),
    "products": (Products(), (torch.rand(3, 4), torch.rand(3, 4))),
    "halves": (Halves(), (_image(),)),
    "dense": (Dense(), (_image(),)),
    "lookups": (Lookups(), (torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.rand(2, 4))),
    "bags": (
        Lookups(bags=True),
        (torch.tensor([[[0, 1], [2, 0], [1, 1]], [[2, 2], [0, 1], [1, 0]]]), torch.rand(2, 4)),
    ),
    "multiplied": (Multiplied(), (torch.tensor([[0, 1, 2], [2, 0, 1]]), torch.rand(2, 2))),
    "leaky": (Leaky(), (torch.rand(2, 5, 3), torch.rand(2, 5, 3))),
    "transposed": (Transposed(), (torch.rand(2, 6, 6), torch.rand(2, 6, 6))),
    "cut": (Cut(), (_image(), torch.rand(2, 6))),
    "mixer": (Mixer(), (torch.rand(2, 6, 6),)),
    "layered": (Normed(lambda: nn.LayerNorm(64)).half(), (torch.rand(2, 5, 64).half(),)),
    "normed": (Normed(lambda: nn.RMSNorm(64, 1e-3)), (torch.rand(2, 5, 64),)),
    "written": (Normed(Written), (torch.rand(2, 5, 64),)),
    "large": (Large(), (torch.rand(1, 6, 64, 72),)),
    "halved": (Normed(Written).half(), (torch.rand(2, 5, 64).half(),)),
}

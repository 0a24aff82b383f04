"""NASNet-A Large (6 @ 4032): images of 331 pixels -> 1000 logits. Zoph et al., arXiv 1707.07012.

Parameter names and shapes are timm's `nasnetalarge`, so its weights load. Two cell designs, found
by search, are stacked; a cell reads the outputs of the two cells before it:

    conv -> stem 0 -> stem 1 -> N N N N N N -> R -> N N N N N N -> R -> N N N N N N -> head

A cell first brings both inputs to its own channel count: `right` is the newest, `left` the one
before. It then adds up five pairs of branches and concatenates:

    normal (N)                                   reduction (R), halves the image
    0  sep 5x5(right) + sep 3x3(left)            0  sep 5x5/2(right) + sep 7x7/2(left)
    1  sep 5x5(left)  + sep 3x3(left)            1  max /2(right)    + sep 7x7/2(left)
    2  mean(right)    + left                     2  mean /2(right)   + sep 5x5/2(left)
    3  mean(left)     + mean(left)               3  mean(pair 0)     + pair 1
    4  sep 3x3(right) + right                    4  sep 3x3(pair 0)  + max /2(right)
    -> left, pairs 0 to 4                        -> pairs 1 to 4

The stems are reduction cells. The first normal cell after a reduction finds a `left` of twice its
image size and halves it by two shifted subsamplings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anabranch.models.zoo.weights import images, seeded

# size: stem channels, channels of the first cell, cells per stage, classes, image side
SIZES = {"paper": (96, 168, 6, 1000, 331), "tiny": (8, 8, 2, 10, 75)}

# Each pair of branches is added up: keep the sum's variance where one branch's was.
GAIN = 0.8

LEFT, RIGHT, PAIR = 0, 1, 2  # what a branch reads: an input, or the sum of pair i as PAIR + i

# Each branch is (what it does, kernel, stride, what it reads).
Branch = tuple[str, int, int, int]
Pairs = tuple[tuple[Branch, Branch], ...]

NORMAL: Pairs = (
    (("sep", 5, 1, RIGHT), ("sep", 3, 1, LEFT)),
    (("sep", 5, 1, LEFT), ("sep", 3, 1, LEFT)),
    (("mean", 3, 1, RIGHT), ("same", 1, 1, LEFT)),
    (("mean", 3, 1, LEFT), ("mean", 3, 1, LEFT)),
    (("sep", 3, 1, RIGHT), ("same", 1, 1, RIGHT)),
)
NORMAL_OUT = (LEFT, PAIR, PAIR + 1, PAIR + 2, PAIR + 3, PAIR + 4)

REDUCTION: Pairs = (
    (("sep", 5, 2, RIGHT), ("sep", 7, 2, LEFT)),
    (("max", 3, 2, RIGHT), ("sep", 7, 2, LEFT)),
    (("mean", 3, 2, RIGHT), ("sep", 5, 2, LEFT)),
    (("same", 1, 1, PAIR + 1), ("mean", 3, 1, PAIR)),
    (("sep", 3, 1, PAIR), ("max", 3, 2, RIGHT)),
)
REDUCTION_OUT = (PAIR + 1, PAIR + 2, PAIR + 3, PAIR + 4)


def build(size: str) -> nn.Module:
    """NASNet-A (6 @ 4032) of Zoph et al. with seeded weights."""
    stem, channels, cells, classes, _ = SIZES[size]
    return seeded(lambda: NASNet(stem, channels, cells, classes), gain=GAIN)


def inputs(size: str, batch: int) -> tuple[Tensor, ...]:
    """One batch of images, (batch, 3, side, side)."""
    return images(batch, SIZES[size][4])


class NASNet(nn.Module):
    """Stage i names its cells from `cell_{6 i}` on, however few: published weights do so. `first`:
    the pairs of the first cell of each stage, where they are others."""

    def __init__(
        self, stem: int, channels: int, cells: int, classes: int, first: Pairs = NORMAL
    ) -> None:
        super().__init__()
        c = channels
        self.cells = cells
        self.conv0 = ConvNorm(3, stem, 3, stride=2, relu=False)
        self.cell_stem_0 = Cell(stem, stem, c // 4, REDUCTION, REDUCTION_OUT, "raw")
        self.cell_stem_1 = Cell(stem, c, c // 2, REDUCTION, REDUCTION_OUT, "halve")
        before, now = c, 2 * c
        for stage in range(3):
            if stage > 0:
                cell = Cell(before, now, 2 * c, REDUCTION, REDUCTION_OUT, "project")
                self.add_module(f"reduction_cell_{stage - 1}", cell)
                now, c = 8 * c, 2 * c
            for i in range(cells):
                fit = "halve" if i == 0 else "project"
                pairs = first if i == 0 else NORMAL
                cell = Cell(before, now, c, pairs, NORMAL_OUT, fit)
                self.add_module(f"cell_{6 * stage + i}", cell)
                before, now = now, 6 * c
        self.last_linear = nn.Linear(now, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits, (batch, classes), of the mean over space."""
        conv0 = self.conv0(x)
        before = self.cell_stem_0(conv0, conv0)
        x = self.cell_stem_1(before, conv0)
        for stage in range(3):
            if stage > 0:  # the next cell reads what the reduction cell read as its left input
                x = self.get_submodule(f"reduction_cell_{stage - 1}")(x, before)
            for i in range(self.cells):
                x, before = self.get_submodule(f"cell_{6 * stage + i}")(x, before), x
        x = torch.flatten(F.adaptive_avg_pool2d(F.relu(x), 1), 1)
        x = self.last_linear(x)
        return x


class Cell(nn.Module):
    """One cell. `fit` says how `left` gets its channels: "project" (1x1 convolution), "halve" (also
    halves the image) or "raw" (not at all; the first stem cell, whose branches then do it)."""

    def __init__(
        self,
        before: int,
        now: int,
        channels: int,
        pairs: Pairs,
        out: tuple[int, ...],
        fit: str,
    ) -> None:
        super().__init__()
        self.pairs, self.out, self.fit = pairs, out, fit
        if fit == "project":
            self.conv_prev_1x1 = ConvNorm(before, channels, 1)
        elif fit == "halve":
            self.path_1 = nn.Sequential()
            self.path_1.add_module("conv", nn.Conv2d(before, channels // 2, 1, bias=False))
            self.path_2 = nn.Sequential()
            self.path_2.add_module("conv", nn.Conv2d(before, channels // 2, 1, bias=False))
            self.final_path_bn = nn.BatchNorm2d(channels, eps=0.001)
        self.conv_1x1 = ConvNorm(now, channels, 1)
        for i, pair in enumerate(pairs):
            for side, (op, kernel, stride, read) in zip(("left", "right"), pair, strict=True):
                if op == "sep":
                    width = before if fit == "raw" and read == LEFT else channels
                    branch = TwiceSeparable(width, channels, kernel, stride)
                    self.add_module(f"comb_iter_{i}_{side}", branch)

    def forward(self, right: Tensor, left: Tensor) -> Tensor:
        """The inputs and sums that `out` names, concatenated."""
        hidden = [self._fit(left), self.conv_1x1(right)]
        for i, (a, b) in enumerate(self.pairs):
            hidden.append(
                self._branch(f"comb_iter_{i}_left", a, hidden)
                + self._branch(f"comb_iter_{i}_right", b, hidden)
            )
        return torch.cat([hidden[i] for i in self.out], 1)

    def _fit(self, x: Tensor) -> Tensor:
        if self.fit == "project":
            x = self.conv_prev_1x1(x)
        elif self.fit == "halve":
            x = F.relu(x)
            even = self.path_1(F.avg_pool2d(x, 1, stride=2))
            odd = self.path_2(F.avg_pool2d(F.pad(x, (-1, 1, -1, 1)), 1, stride=2))
            x = self.final_path_bn(torch.cat([even, odd], 1))
        return x

    def _branch(self, name: str, branch: Branch, hidden: list[Tensor]) -> Tensor:
        op, kernel, stride, read = branch
        x = hidden[read]
        if op == "sep":
            x = self.get_submodule(name)(x)
        elif op == "max":
            x = F.max_pool2d(_pad_same(x, kernel, stride, float("-inf")), kernel, stride)
        elif op == "mean" and stride == 1:
            x = F.avg_pool2d(x, kernel, 1, padding=kernel // 2, count_include_pad=False)
        elif op == "mean":  # as timm does: the padding counts when the stride is 2
            x = F.avg_pool2d(_pad_same(x, kernel, stride, 0.0), kernel, stride)
        return x


class TwiceSeparable(nn.Module):
    """ReLU, depthwise, pointwise, batch norm; twice. Only the first one has the stride."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.separable_1 = Separable(channels, out, kernel, stride)
        self.bn_sep_1 = nn.BatchNorm2d(out, eps=0.001)
        self.separable_2 = Separable(out, out, kernel, 1)
        self.bn_sep_2 = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """Two separable convolutions of x, each behind a ReLU and before a norm."""
        x = self.bn_sep_1(self.separable_1(F.relu(x)))
        x = self.bn_sep_2(self.separable_2(F.relu(x)))
        return x


class Separable(nn.Module):
    """Depthwise, then pointwise; padded to ceil(size / stride) pixels as TensorFlow does."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.depthwise_conv2d = nn.Conv2d(
            channels,
            channels,
            kernel,
            stride,
            padding=kernel // 2 if stride == 1 else 0,
            groups=channels,
            bias=False,
        )
        self.pointwise_conv2d = nn.Conv2d(channels, out, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The pointwise convolution of the depthwise one."""
        if self.stride != 1:
            x = _pad_same(x, self.kernel, self.stride, 0.0)
        x = self.pointwise_conv2d(self.depthwise_conv2d(x))
        return x


class ConvNorm(nn.Module):
    """ReLU (but for the very first), convolution, batch norm."""

    def __init__(
        self, channels: int, out: int, kernel: int, stride: int = 1, relu: bool = True
    ) -> None:
        super().__init__()
        self.relu = relu
        self.conv = nn.Conv2d(channels, out, kernel, stride, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised convolution of the rectified x."""
        x = self.bn(self.conv(F.relu(x) if self.relu else x))
        return x


def _pad_same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """Pad so that the output has ceil(size / stride) pixels; the odd one goes right and below."""
    sides = []
    for size in (x.shape[-1], x.shape[-2]):
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        sides += [total // 2, total - total // 2]
    return F.pad(x, sides, value=value)

"""Models that ask for values, beside eager and torch.compile: interleaved, medians and spread.

    PYTHONPATH=src python benchmarks/cuts.py --json out.json             # on the GPU, or the CPU
    PYTHONPATH=src python benchmarks/cuts.py --models router --rounds 30

Each is written from its paper with the operators that implementations of it have: a Conformer with
lengths (Gulati et al. 2020; `int(lengths.max())`), three graph convolutions that exchange their
self-loops in forward (Kipf and Welling 2017; a boolean mask over edges), a detector with
non-maximum suppression behind it (Ren et al. 2015), and a mixture of experts with a loop over its
experts (Jiang et al. 2024; `nonzero`). Five calls with different values each are compared with
eager first.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import anabranch
from anabranch.bench.statistics import paired, summary

Drawn = Callable[[int], tuple[Any, ...]]
"""Inputs of a call by a seed."""
CALLS = 5


class Feed(nn.Sequential):
    """Half a feed-forward module of a Conformer."""

    def __init__(self, width: int) -> None:
        super().__init__(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
        )


class ConformerBlock(nn.Module):
    """f[batch, time, width] and a mask of what is padding -> the same."""

    def __init__(self, width: int, heads: int, taps: int) -> None:
        super().__init__()
        self.first, self.second = Feed(width), Feed(width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm, self.into = nn.LayerNorm(width), nn.Conv1d(width, 2 * width, 1)
        self.near = nn.Conv1d(width, width, taps, padding=taps // 2, groups=width)
        self.batch_norm, self.out = nn.BatchNorm1d(width), nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        x = x + 0.5 * self.first(x)
        y = self.before(x)
        x = x + self.attention(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        y = F.glu(self.into(self.norm(x).transpose(1, 2)), dim=1)
        x = x + self.out(F.silu(self.batch_norm(self.near(y)))).transpose(1, 2)
        normed: Tensor = self.after(x + 0.5 * self.second(x))
        return normed


class Conformer(nn.Module):
    """f[batch, time, width], i64[batch] lengths, the longest of which is `time`."""

    def __init__(self, width: int, layers: int, heads: int = 4, taps: int = 15) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ConformerBlock(width, heads, taps) for _ in range(layers))

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        longest = int(torch.max(lengths).item())
        steps = torch.arange(longest, device=lengths.device)
        padding = steps.expand(lengths.shape[0], longest) >= lengths.unsqueeze(1)
        for block in self.blocks:
            x = block(x, padding)
        return x, lengths


class GraphConvolution(nn.Module):
    """f[nodes, width], i64[2, edges] -> f[nodes, out]: normalised sums over neighbours."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear, self.bias = nn.Linear(width, out, bias=False), nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        count = x.shape[0]
        edges = edges[:, edges[0] != edges[1]]
        loops = torch.arange(count, device=x.device).expand(2, -1)
        source, sink = torch.cat([edges, loops], 1)
        degree = x.new_zeros(count).scatter_add_(0, sink, x.new_ones(sink.shape[0]))
        scale = degree.pow(-0.5)
        scale = scale.masked_fill(scale == float("inf"), 0)
        x = self.linear(x)
        sent = x[source] * (scale[source] * scale[sink])[:, None]
        return torch.zeros_like(x).index_add_(0, sink, sent) + self.bias


class GraphNetwork(nn.Module):
    """Three layers with self-loops of their own: classes of nodes."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.one = GraphConvolution(width, hidden)
        self.two = GraphConvolution(hidden, hidden)
        self.three = GraphConvolution(hidden, classes)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.one(x, edges))
        x = F.relu(self.two(x, edges))
        return F.log_softmax(self.three(x, edges), -1)


@torch.library.custom_op("anabranch_benchmarks::nms", mutates_args=())
def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """i64[kept], best first: greedy non-maximum suppression, as torchvision's operator."""
    order = scores.argsort(descending=True, stable=True)
    boxes = boxes[order]
    area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    covers = (shared > threshold * (area[:, None] + area[None] - shared)).cpu()
    gone = torch.zeros(len(order), dtype=torch.bool)
    for place in range(len(order)):
        if not gone[place]:
            gone[place + 1 :] |= covers[place, place + 1 :]
    return order[~gone.to(order.device)]


@nms.register_fake
def _(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    return boxes.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


class Detector(nn.Module):
    """f[1, 3, size, size] -> boxes f[kept, 4] and their scores, one anchor a cell."""

    def __init__(self, width: int, stages: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for _ in range(stages):
            layers += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
                *(nn.BatchNorm2d(width), nn.ReLU()),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                *(nn.BatchNorm2d(width), nn.ReLU()),
            ]
            channels = width
        self.backbone, self.stride = nn.Sequential(*layers), 2**stages
        self.boxes, self.scores = nn.Conv2d(width, 4, 1), nn.Conv2d(width, 1, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.backbone(image)
        rows, columns = x.shape[-2:]
        y, across = torch.meshgrid(
            torch.arange(rows, device=x.device),
            torch.arange(columns, device=x.device),
            indexing="ij",
        )
        centre = torch.stack([across, y], -1).reshape(-1, 2) * float(self.stride)
        moves = self.boxes(x).flatten(2)[0].t()
        half = self.stride * moves[:, 2:].clamp(max=2).exp()
        middle = centre + self.stride * moves[:, :2].tanh()
        boxes = torch.cat([middle - half, middle + half], -1)
        scores = self.scores(x).flatten().sigmoid()
        likely = scores > 0.5
        boxes, scores = boxes[likely], scores[likely]
        kept = nms(boxes, scores, 0.5)
        return boxes[kept], scores[kept]


class Expert(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Router(nn.Module):
    """f[tokens, width] -> the same: each token goes to the two experts that it weighs most, behind
    a layer that all tokens go through."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.norm, self.shared = nn.LayerNorm(width), Expert(width, inner)
        self.route = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(Expert(width, inner) for _ in range(experts))
        self.last, self.out = nn.LayerNorm(width), Expert(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.shared(self.norm(x))
        weights, chosen = self.route(x).softmax(-1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        routed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.nonzero(chosen == number, as_tuple=True)
            routed.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        x = x + routed
        y: Tensor = x + self.out(self.last(x))
        return y


def conformer(small: bool) -> tuple[nn.Module, Drawn]:
    """144 channels and 16 layers: the small one of the paper."""
    width, layers, batch, steps = (16, 1, 2, 12) if small else (144, 16, 4, 400)

    def drawn(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        lengths = torch.randint(1, steps + 1, (batch,))
        lengths[0] = steps
        return torch.randn(batch, steps, width), lengths

    return Conformer(width, layers), drawn


def graph(small: bool) -> tuple[nn.Module, Drawn]:
    """Of the size of Cora: 2,708 nodes, 10,556 edges, 1,433 features, 7 classes."""
    nodes, edges, width, hidden, classes = (
        (12, 40, 8, 16, 4) if small else (2708, 10556, 1433, 64, 7)
    )

    def drawn(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))

    return GraphNetwork(width, hidden, classes), drawn


def detector(small: bool) -> tuple[nn.Module, Drawn]:
    """A picture of 512 by 512, 1,024 anchors."""
    width, stages, size = (8, 2, 16) if small else (96, 4, 512)

    def drawn(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return (torch.randn(1, 3, size, size),)

    return Detector(width, stages), drawn


def router(small: bool) -> tuple[nn.Module, Drawn]:
    """Eight experts, 256 tokens of 1,024 channels."""
    width, inner, experts, tokens = (16, 32, 4, 24) if small else (1024, 3584, 8, 256)

    def drawn(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return (torch.randn(tokens, width),)

    return Router(width, inner, experts), drawn


MODELS = {"conformer": conformer, "graph": graph, "detector": detector, "router": router}


def made(name: str, small: bool, device: torch.device, dtype: torch.dtype) -> tuple[Any, Drawn]:
    """A model with random weights, and inputs of it by a seed, on a device."""
    torch.manual_seed(0)
    model, drawn = MODELS[name](small)

    def there(seed: int) -> tuple[Any, ...]:
        return tuple(
            x.to(device, dtype) if x.is_floating_point() else x.to(device) for x in drawn(seed)
        )

    return model.eval().to(device, dtype), there


def alike(ours: Any, theirs: Any) -> bool:
    """Whether results have the same shapes and about the same values."""
    pairs = zip(*map(pytree.tree_leaves, (ours, theirs)), strict=True)
    return all(
        result.shape == other.shape
        and bool(
            ((result - other).abs().max() <= 0.02 * other.abs().max() + 1e-4)
            if result.numel()
            else True
        )
        for result, other in pairs
    )


def measured(
    calls: dict[str, Callable[[], Any]], rounds: int, cuda: bool
) -> dict[str, list[float]]:
    """Milliseconds of `CALLS` calls, host included, in rounds that visit all."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(3):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            if cuda:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            taken[name].append(1e3 * (time.perf_counter() - begun))
    return taken


def summed_up(times: Sequence[float]) -> dict[str, float]:
    """Milliseconds of one call: the median, and the tenth and the ninetieth percentile."""
    told = summary([time / CALLS for time in times])
    return {"median_ms": told.median, "p10_ms": told.p10, "p90_ms": told.p90}


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = {"fp32": torch.float32, "fp16": torch.float16}[args.dtype]
    model, drawn = made(name, args.small, device, dtype)
    begun = time.perf_counter()
    fast = anabranch.compile(model, drawn(0))
    seconds = time.perf_counter() - begun
    torch.compiler.reset()
    inductor: Any = torch.compile(model)
    inputs_of_calls = [drawn(seed) for seed in range(CALLS)]
    with torch.no_grad():
        equal = [alike(fast(*inputs), model(*inputs)) for inputs in inputs_of_calls]
        for inputs in inputs_of_calls:
            inductor(*inputs)

        def all_of(called: Callable[..., Any]) -> Callable[[], Any]:
            return lambda: [called(*inputs) for inputs in inputs_of_calls]

        ways = {"anabranch": fast, "eager": model, "inductor": inductor}
        calls = {way: all_of(called) for way, called in ways.items()}
        took = measured(calls, args.rounds, device.type == "cuda")
    return {
        "model": name,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "dtype": args.dtype,
        "equal_to_eager": equal,
        "compiled_in_s": seconds,
        "calls": {way: summed_up(times) for way, times in took.items()},
        "over_ours": {way: asdict(paired(times, took["anabranch"])) for way, times in took.items()},
        "facts": {key: value for key, value in fast.facts.items() if key != "sections"},
        "memory": str(fast.memory()),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--dtype", choices=["fp32", "fp16"], default="fp16")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--small", action="store_true", help="sizes for a test")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models.split(","):
        row = measure(name, args)
        rows.append(row)
        told = ", ".join(
            f"{way} {times['median_ms']:.3f} ms ({times['p10_ms']:.3f} to {times['p90_ms']:.3f})"
            for way, times in row["calls"].items()
        )
        told += "".join(
            f"; {way} / ours {over['ratio']:.2f} ({over['low']:.2f} to {over['high']:.2f})"
            for way, over in row["over_ours"].items()
            if way != "anabranch"
        )
        print(f"{name} on {row['device']}, {args.dtype}: {told}; equal {row['equal_to_eager']}")
        if args.json is not None:
            args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

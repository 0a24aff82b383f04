"""Calls of drawn sizes: a few plans beside exact ones and beside torch.compile(dynamic=True).

    PYTHONPATH=src python benchmarks/drawn_sizes.py bert --json FILE      # on the GPU, or the CPU
    PYTHONPATH=src python benchmarks/drawn_sizes.py vit --calls 1000 --exact 16

| model | varies |
|---|---|
| bert | BERT-base: batch 1 to 32, 16 to 512 tokens, a mask beside them |
| vit | ViT-S/16 of 224 pixels: batch 1 to 32 |
| resnet50 | batch 1 to 64 |

Where a command may take some minutes only: `--exact 0` first, then `--modes "" --exact 16`, which
reads the buckets from the cache.

Small batches are called more often than large ones (with the weight 1 / batch), lengths are drawn
evenly. Plans are chosen from the histogram of the calls' sizes. Every call waits for its results
and is timed with all that the host does; the systems take turns call by call, after each has seen
every size: what they compile and record by then is not counted. Some sizes, drawn by the same
seed, are compiled once more, one plan each (`exact`), and called in turn with the plan that answers
them here, and that plan with a call of its own size (`filled`): what padding adds, and what the
step to the next size.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

import anabranch
from anabranch.bench.harness import write
from anabranch.models.load import load_model

Size = tuple[int, ...]
MODES = ("reduce-overhead", "max-autotune")
ROUNDS = 30
"""Of calls of one size, with its exact plan."""


class VisionLayer(nn.Module):
    """Attention and two products, each behind a norm and beside what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        parts = self.qkv(self.before(x)).view(b, n, 3, self.heads, c // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        y: Tensor = x + self.down(F.gelu(self.up(self.between(x))))
        return y


class Vision(nn.Module):
    """f[batch, 3, side, side] -> f[batch, classes], as Dosovitskiy et al. (2021) have it."""

    def __init__(self, width: int, heads: int, layers: int, side: int, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(VisionLayer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        scores: Tensor = self.head(self.norm(self.layers(x))[:, 0])
        return scores


class Case:
    """A model, the sizes that its calls have, and the call of a size."""

    def __init__(self, name: str, small: bool, device: torch.device, dtype: torch.dtype) -> None:
        self.name, self.device, self.dtype, self.small = name, device, dtype, small
        self.most = 4 if small else 64 if name == "resnet50" else 32
        self.tokens = (4, 16) if small else (16, 512)
        kind = "tiny" if small else "paper"
        torch.manual_seed(0)
        model = (
            Vision(*((32, 2, 2, 32, 10) if small else (384, 6, 12, 224)))
            if name == "vit"
            else load_model(f"zoo:{'bert_base' if name == 'bert' else name}/{kind}")[0]
        )
        self.model = model.eval().to(device, dtype)

    @property
    def shapes(self) -> Any:
        """The dimensions that vary, as torch.export takes them."""
        batch = Dim("batch", min=1, max=self.most)
        if self.name != "bert":
            return ({0: batch},)
        both = {0: batch, 1: Dim("tokens", min=self.tokens[0], max=self.tokens[1])}
        return (both, both)

    def drawn(self, dice: random.Random) -> Size:
        """A size of a call."""
        batches = range(1, self.most + 1)
        (batch,) = dice.choices(batches, [1 / n for n in batches])
        return (batch, dice.randint(*self.tokens)) if self.name == "bert" else (batch,)

    def call(self, size: Size) -> tuple[Tensor, ...]:
        """Inputs of a size; of the tokens of each row the last few are padding."""
        if self.name == "bert":
            ids = torch.randint(0, 100, size, device=self.device)
            lengths = torch.randint(size[1] // 2 + 1, size[1] + 1, (size[0], 1))
            return ids, (torch.arange(size[1]) < lengths).to(self.device)
        side = 32 if self.small else 224
        x = torch.randn(*size, 3, side, side, device=self.device, dtype=self.dtype)
        return (x.contiguous(memory_format=torch.channels_last),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=["bert", "vit", "resnet50"])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--distinct", type=int, default=150, help="sizes that the calls have")
    parser.add_argument("--exact", type=int, default=16, help="sizes with a plan of their own")
    parser.add_argument("--modes", default=",".join(MODES), help="of torch.compile")
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--search", default="none", help="effort: the one that the effort has")
    parser.add_argument("--workers", help="processes that compile sizes, as `compile` takes it")
    parser.add_argument("--effort", choices=["fast", "default", "max"], default="default")
    parser.add_argument("--dtype", choices=["fp32", "fp16"], default="fp16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--small", action="store_true", help="sizes for a test")
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    for row in rows(flags):
        print({key: value for key, value in row.items() if key != "sizes"}, flush=True)
        if flags.json is not None:
            write(flags.json, "drawn sizes", "auto", vars(flags), [row])


def rows(flags: argparse.Namespace) -> Any:
    """The record, once with all calls and again with exact plans: it may be stopped."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if flags.dtype == "fp16" else torch.float32
    case, dice = Case(flags.model, flags.small, device, dtype), random.Random(flags.seed)
    distinct = [case.drawn(dice) for _ in range(flags.distinct)]
    sizes = [dice.choice(distinct) for _ in range(flags.calls)]
    histogram = Counter(sizes)
    largest = max(histogram)
    options: dict[str, Any] = {"effort": flags.effort, "workers": flags.workers}
    if flags.search != "effort":
        options["search"] = flags.search
    begun = time.perf_counter()
    fast = anabranch.compile(
        case.model,
        case.call(largest),
        dynamic_shapes=case.shapes,
        sizes=shares(histogram),
        buckets=flags.buckets,
        **options,
    )
    row: dict[str, Any] = {
        "model": flags.model,
        "dtype": flags.dtype,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "compiled_in_s": time.perf_counter() - begun,
        "buckets": [entry.at for entry in fast.entries],
        "memory": str(fast.memory()),
        "arena_beside_largest": arenas(fast),
        "sizes": [list(size) for size in sizes],
    }
    calls = {size: case.call(size) for size in histogram}
    with torch.no_grad():
        row["worst_error"] = max(
            error(fast, case.model, call) for call in list(calls.values())[:20]
        )
        rivals: dict[str, Callable[..., Any]] = {}
        for mode in filter(None, flags.modes.split(",")):
            try:
                largest_first = [calls[size] for size in sorted(calls, reverse=True)]
                rivals[mode] = rival(case.model, mode, largest_first)
            except Exception as failed:
                row[f"{mode}_failed"] = f"{type(failed).__name__}: {str(failed)[:300]}"
        plans = len(fast.entries)
        systems = {"anabranch": fast, **rivals}
        row["seconds_of_all_calls"] = all_calls(systems, [calls[size] for size in sizes], device)
        row["compiled_in_calls"] = len(fast.entries) - plans
    row["exact"] = []
    yield row
    chosen = dice.sample(sorted(histogram), min(flags.exact, len(histogram)))
    if not chosen:
        return
    begun = time.perf_counter()
    exact = anabranch.compile(
        case.model,
        case.call(max(chosen)),
        dynamic_shapes=case.shapes,
        sizes=list(shares(dict.fromkeys(chosen, 1))),
        buckets=len(chosen),
        **options,
    )
    row["exact_compiled_in_s"] = time.perf_counter() - begun
    for size in chosen:
        full = answering_size(fast, size)
        assert answering_size(exact, size) == size
        ways = {
            "bucket": partial(fast, *calls[size]),
            "exact": partial(exact, *calls[size]),
            "filled": partial(fast, *case.call(full)),
            **{mode: partial(other, *calls[size]) for mode, other in rivals.items()},
        }
        with torch.no_grad():
            took = in_turn(ways, device)
        row["exact"].append({"size": list(size), "of": list(full), **took})
    row["buckets_beside_exact"] = beside_exact(row["exact"], dict.fromkeys(histogram, 1))
    row["calls_beside_exact"] = beside_exact(row["exact"], histogram)
    yield row


def shares(histogram: Mapping[Size, int]) -> dict[Any, int]:
    """As `compile` takes it: a size of one dimension is a number."""
    return {size if len(size) > 1 else size[0]: n for size, n in histogram.items()}


def answering_size(fast: Any, size: Size) -> Size:
    """The size of the plan that answers calls of this size: its own, or the fastest larger one."""
    fitting = [
        e for e in fast.entries if all(n <= full for n, full in zip(size, e.at, strict=True))
    ]
    if any(entry.at == size for entry in fitting):
        return size
    at: Size = min(fitting, key=lambda entry: entry.compilation.cost.us).at
    return at


def beside_exact(timed: Sequence[Mapping[str, Any]], shares: Mapping[Size, float]) -> float:
    """The times of the plans that there are by those of exact plans, in sum over calls so often."""
    of = [shares[tuple(ms["size"])] for ms in timed]
    sums = [
        sum(n * ms[way] for n, ms in zip(of, timed, strict=True)) for way in ("bucket", "exact")
    ]
    return float(sums[0] / sums[1])


def arenas(fast: Any) -> float:
    """Bytes of all plans' arena by those of the largest plan alone."""
    alone = max(entry.plan.arena_bytes for entry in fast.entries)
    return float(fast.memory().arena / max(alone, 1))


def error(fast: Callable[..., Any], model: nn.Module, call: tuple[Tensor, ...]) -> float:
    """Of the first result, relative to eager's largest number."""
    ours, theirs = (
        result[0] if isinstance(result, tuple) else result for result in (fast(*call), model(*call))
    )
    return float((ours - theirs).abs().max() / theirs.abs().max())


def rival(model: nn.Module, mode: str, calls: Sequence[tuple[Tensor, ...]]) -> Callable[..., Any]:
    """torch.compile for varying sizes, after it has seen each of them three times."""
    torch.compiler.reset()
    torch._dynamo.config.recompile_limit = 64
    compiled: Callable[..., Any] = torch.compile(model, dynamic=True, mode=mode)
    for call in calls:
        for _ in range(3):
            compiled(*call)
    return compiled


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def all_calls(
    systems: dict[str, Callable[..., Any]],
    calls: Sequence[tuple[Tensor, ...]],
    device: torch.device,
) -> dict[str, float]:
    """Seconds of all calls, host included; systems take turns, each first as often as others."""
    taken = dict.fromkeys(systems, 0.0)
    names = list(systems)
    for number, call in enumerate(calls):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            settle(device)
            begun = time.perf_counter()
            systems[name](*call)
            settle(device)
            taken[name] += time.perf_counter() - begun
    return taken


def in_turn(ways: Mapping[str, Callable[[], Any]], device: torch.device) -> dict[str, float]:
    """Milliseconds of one call each, the median of rounds that visit all."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for call in ways.values():
        call()
    for _ in range(ROUNDS):
        for name, call in ways.items():
            settle(device)
            begun = time.perf_counter()
            call()
            settle(device)
            taken[name].append(1e3 * (time.perf_counter() - begun))
    return {name: statistics.median(times) for name, times in taken.items()}


if __name__ == "__main__":
    main()

"""What single decisions are worth: forecasts of a simulated GPU with each, and with it undone.

    PYTHONPATH=src python benchmarks/undone.py --json undone.json          # no GPU is needed
    PYTHONPATH=src python benchmarks/undone.py --only sink,places

`host` is no forecast: milliseconds of a processor that looking at a model and putting it back take,
and that new weights in a plan for the CPU take.

Each compilation has a process of its own, without a search and without a cache; nothing but the one
decision differs. Times are predicted: they say what a plan is expected to take, and not more.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import anabranch
from anabranch.frontend.python_state import PythonState
from anabranch.fusion import vertical
from anabranch.kernels.dfg.computed_index import ELSEWHERE
from anabranch.kernels.dfg.lower import LOWERINGS
from anabranch.kernels.dfg.scans import SCANS
from anabranch.kernels.triton import rows
from anabranch.models.load import load_model
from anabranch.rewrite.passes import PASSES
from anabranch.tuning import tuner

TARGET = "sim:h200"


class Scan(nn.Module):
    """Nucleus sampling's filter: a softmax, its cumulative sum, and a mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = x.softmax(-1)
        return torch.where(p.cumsum(-1) - p < 0.9, x, -1e4)


class Decoder(nn.Module):
    """A block that decodes images: mirrored padding, twice the size, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(64, 64, 3)
        self.second = nn.Conv2d(64, 32, 3)
        self.up = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.first(F.pad(x, (1, 1, 1, 1), mode="reflect")))
        x = F.interpolate(x, scale_factor=2.0, mode="bilinear")
        return F.relu(self.up(F.relu(self.second(x))))


class Pool(nn.Module):
    """The mean and the largest of 32 channels of a large image."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.mean((2, 3)), x.amax((2, 3))


class Mixing(nn.Module):
    """Token mixing of an MLP-Mixer, its activation behind a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(196, 384), nn.Linear(512, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(F.gelu(self.first(x).transpose(1, 2)))


class Shortcut(nn.Module):
    """A residual block whose shortcut is computed last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 256, 1)
        self.short = nn.Conv2d(64, 256, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(F.relu(self.first(x)))
        return F.relu(y + self.short(x))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "softmax, cumulative sum and mask, 64 rows of 1,024": lambda: (
        Scan().eval(),
        (torch.randn(64, 1024, dtype=torch.float16),),
    ),
    "decoder block, 64 channels of 56 x 56": lambda: (
        Decoder().eval().half(),
        (torch.randn(1, 64, 56, 56, dtype=torch.float16),),
    ),
    "mean and maximum of 32 channels of 112 x 112": lambda: (
        Pool().eval(),
        (torch.randn(1, 32, 112, 112, dtype=torch.float16),),
    ),
    "linear, transpose, GELU, linear, 512 rows of 196": lambda: (
        Mixing().eval().half(),
        (torch.randn(1, 512, 196, dtype=torch.float16),),
    ),
    "residual block, 64 channels of 56 x 56": lambda: (
        Shortcut().eval().half(),
        (torch.randn(1, 64, 56, 56, dtype=torch.float16),),
    ),
}


def one_cut(number: int) -> None:
    """Only one fusion configuration."""
    tuner.CUTS = tuner.CUTS[number : number + 1]  # type: ignore[assignment]


def unsunk() -> None:
    """Transposes stay above pointwise nodes."""
    del PASSES["sink"]


def first_met() -> None:
    """A sum runs with the last of its operands in the order of the graph."""
    vertical._by_depth = lambda nodes, facts: list(nodes)


def without(*tables: dict[str, Any]) -> None:
    """These operators are not generated."""
    for name in {name for table in tables for name in table}:
        LOWERINGS.pop(name, None)


def unshared() -> None:
    """One CTA walks each row."""
    rows._shared = lambda walk, spec: []


SCAN, DECODER, POOL, MIXING, SHORTCUT = MODELS
UNDONE: dict[str, tuple[dict[str, Callable[[], object]], tuple[str, ...]]] = {
    "cuts": (
        {
            "library calls only": lambda: one_cut(0),
            "pointwise groups": lambda: one_cut(1),
            "clusters": lambda: one_cut(3),
            "clusters and chains": lambda: one_cut(5),
        },
        ("zoo:squeezenet", "zoo:resnet50", "zoo:mobilenet_v2", "zoo:bert_base"),
    ),
    "sink": ({"without": unsunk}, (MIXING, "zoo:bert_base", "zoo:gpt2", "zoo:attention_rnn")),
    "deepest": (
        {"without": first_met},
        (SHORTCUT, "zoo:resnet50", "zoo:googlenet", "zoo:densenet121"),
    ),
    "scans": ({"without": lambda: without(SCANS)}, (SCAN,)),
    "places": ({"without": lambda: without(ELSEWHERE)}, (DECODER,)),
    "shared_rows": ({"without": unshared}, (POOL,)),
}
"""For each decision how it is undone, and models that it is tried on."""
HOST = ("zoo:resnet50", "zoo:bert_base")


def forecast(model: str, undo: Callable[[], object] | None) -> dict[str, Any]:
    """A plan's time in microseconds, and its launches."""
    torch.manual_seed(0)
    if undo is not None:
        undo()
    begun = time.perf_counter()
    if model in MODELS:
        module, inputs = MODELS[model]()
    else:
        module, inputs = load_model(model, dtype="fp16")
    plan = anabranch.compile(module, inputs, target=TARGET, search="none", cache_dir=None)
    facts = plan.known
    return {
        "us": round(facts["latency_ms"] * 1e3, 2),
        "tasks": facts["tasks"],
        "recorded": facts["forecast"]["recorded"],
        "seconds": round(time.perf_counter() - begun, 1),
    }


def host(model: str) -> dict[str, Any]:
    """Medians of five in milliseconds, and the number of containers that were looked at."""
    module, inputs = load_model(model)

    def looked() -> int:
        state = PythonState.of(module)
        assert not state.changes()
        state.restore()
        return len(state.was.held)

    begun = time.perf_counter()
    plan = anabranch.compile(module, inputs, target="cpu", search="none", cache_dir=None)
    compiled = time.perf_counter() - begun
    return {
        "containers": looked(),
        "look_ms": _median_ms(looked),
        "refit_ms": _median_ms(lambda: plan.refit(module)),
        "compile_s": round(compiled, 1),
    }


def _median_ms(call: Callable[[], object]) -> float:
    took = []
    for _ in range(5):
        begun = time.process_time()
        call()
        took.append(time.process_time() - begun)
    return round(statistics.median(took) * 1e3, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="forecasts with single decisions undone")
    parser.add_argument(
        "--only", default=",".join([*UNDONE, "host"]), help="decisions, with commas"
    )
    parser.add_argument("--json", type=Path)
    flags = parser.parse_args()
    found_rows = []
    for decision in flags.only.split(","):
        if decision == "host":
            ways, models = {}, HOST
        else:
            ways, models = UNDONE[decision]
        for model in models:
            for name, undo in {"as decided": None, **ways}.items():
                row = {
                    "decision": decision,
                    "model": model,
                    "how": name,
                    **apart(decision, model, undo),
                }
                found_rows.append(row)
                print(json.dumps(row), flush=True)
                if flags.json:
                    flags.json.write_text(json.dumps(found_rows, indent=1) + "\n", "utf-8")


def apart(decision: str, model: str, undo: Callable[[], object] | None) -> dict[str, Any]:
    """The forecast, made in a process of its own, which forgets what was undone."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def run() -> None:
        try:
            theirs.send(host(model) if decision == "host" else forecast(model, undo))
        except Exception as error:
            theirs.send({"failed": f"{type(error).__name__}: {error}"})

    process = context.Process(target=run)
    process.start()
    row: dict[str, Any] = ours.recv()
    process.join()
    return row


if __name__ == "__main__":
    main()

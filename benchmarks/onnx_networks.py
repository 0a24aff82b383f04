"""Networks as files of ONNX: right, beside onnxruntime, and as fast as from PyTorch?

    PYTHONPATH=src python3 -m benchmarks.onnx_networks     agreement, on the CPU
    ... --target sim:h200                                  and forecasts of both plans
    ... --target cuda --dtype fp16 --no-runtime            both plans timed, in turns
    ... --only resnet50,bert_base --size tiny              some of them, small ones

Each network is exported by torch in the opset of the table. Writes onnx_networks.json into $OUT,
else into the working directory, after each network. Exit status 1 if one is off by more than 1e-4
of its largest number in fp32, or takes more than 2% longer than the same network from PyTorch, by
the median of rounds in which both were timed, unless its range holds 1. `same_kernels`: whether
both plans run the same.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import anabranch
from anabranch.bench.provenance import provenance
from anabranch.bench.statistics import paired
from anabranch.frontend.onnx.importer import from_onnx
from anabranch.ir.key import structure_text
from anabranch.ir.tolerances import relative_error
from anabranch.models.load import DTYPES, load_model

NETWORKS: dict[str, tuple[int, bool]] = {
    "squeezenet": (13, False),
    "densenet121": (14, False),
    "googlenet": (15, False),
    "sru": (16, False),
    "resnet50": (17, False),
    "mobilenet_v2": (18, True),
    "inception_v3": (18, True),
    "t5": (19, False),
    "deepspeech2": (20, False),
    "bert_base": (21, True),
    "gpt2": (23, True),
    "gru": (25, True),
    "lstm": (22, True),
    "mlp": (26, True),
    "vit": (20, True),
    "distilbert": (18, True),
    "torchvision:regnet_y_400mf": (13, False),
    "torchvision:convnext_tiny": (17, False),
    "torchvision:swin_t": (24, True),
    "timm:resnest14d": (15, False),
    "timm:mobilevit_s": (20, True),
    "timm:coat_lite_tiny": (23, True),
}
"""By name, of the zoo where it says nothing else, the opset, and whether torch.export is below the
exporter."""
ALLOWED, SLOWER = 1e-4, 1.02
ROUNDS, CALLS = 9, 50


class Hidden(nn.Module):
    """The last hidden states of a network of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(x).last_hidden_state
        return hidden


def loaded(name: str, size: str, dtype: str, device: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """A network of the zoo, of torchvision or timm, or one of transformers in its usual size."""
    if ":" in name:
        return load_model(name, dtype=dtype, device=device)
    if name not in ("vit", "distilbert"):
        return load_model(f"zoo:{name}/{size}", dtype=dtype, device=device)
    import transformers

    torch.manual_seed(0)
    small = {"num_hidden_layers": 2, "n_layers": 2} if size == "tiny" else {}
    if name == "vit":
        model: Any = transformers.ViTModel(transformers.ViTConfig(**small))
        x = torch.randn(1, 3, 224, 224)
    else:
        model = transformers.DistilBertModel(transformers.DistilBertConfig(**small))
        x = torch.randint(0, 30000, (1, 128))
    kind = DTYPES[dtype]
    x = x.to(kind) if x.is_floating_point() else x
    return Hidden(model).eval().to(device, kind), (x.to(device),)


def exported(name: str, size: str, folder: Path) -> Path:
    """Its file, written in fp32."""
    opset, newer = NETWORKS[name]
    model, args = loaded(name, size, "fp32", "cpu")
    path = folder / f"{name.replace(':', '-')}.onnx"
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, args, path, dynamo=newer, opset_version=opset, verbose=False, external_data=False
        )
    return path


def error_of(path: Path, args: tuple[Any, ...]) -> float:
    """How far its module is from onnxruntime, at most, relative to the largest number."""
    import onnxruntime

    net = from_onnx(path)
    with torch.no_grad():
        ours = net(*args[: len(net.names)])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {key.name: x.numpy() for key, x in zip(session.get_inputs(), args, strict=False)}
    ours = ours if isinstance(ours, tuple) else (ours,)
    theirs = [torch.from_numpy(x) for x in session.run(None, feeds)]
    if not all(bool(x.any()) for x in theirs):
        raise ValueError(f"{path.name} gives zeros, of which comparing says nothing")
    return max(relative_error(a, b) for a, b in zip(ours, theirs, strict=True))


def took(fasts: list[Any], calls: list[tuple[Any, ...]]) -> list[list[float]]:
    """Milliseconds a call of each takes, in turns; of a simulated GPU, its forecasts."""
    if any(fast.executable() is None for fast in fasts):
        return [[float(fast.known["latency_ms"])] for fast in fasts]
    rounds: list[list[float]] = [[] for _ in fasts]
    for _ in range(ROUNDS):
        for number, (fast, args) in enumerate(zip(fasts, calls, strict=True)):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(CALLS):
                fast(*args)
            torch.cuda.synchronize()
            rounds[number].append((time.perf_counter() - begin) / CALLS * 1e3)
    return rounds


def kernels_of(fast: Any) -> Counter[str]:
    """How often each kernel runs in a plan, by what it computes and which variant it is."""
    tasks = fast.entries[0].plan.tasks.tasks
    return Counter(
        f"{task.kernel and task.kernel.variant} {structure_text(task.body)}" for task in tasks
    )


def row(name: str, flags: argparse.Namespace, folder: Path) -> dict[str, Any]:
    path = exported(name, flags.size, folder)
    opset, newer = NETWORKS[name]
    figures: dict[str, Any] = {"network": name, "opset": opset, "over_torch_export": newer}
    if not flags.no_runtime:
        figures["error"] = error_of(path, loaded(name, flags.size, "fp32", "cpu")[1])
    if flags.target:
        device = "cuda" if flags.target.startswith("cuda") else "cpu"
        model, args = loaded(name, flags.size, flags.dtype, device)
        net = from_onnx(path, dtype=DTYPES[flags.dtype]).to(device)
        calls = [args, args[: len(net.names)]]
        fasts = [
            anabranch.compile(module, inputs, target=flags.target, search=flags.search)
            for module, inputs in zip((model, net), calls, strict=True)
        ]
        theirs, ours = took(fasts, calls)
        told = paired(ours, theirs)
        figures |= {"torch_ms": statistics.median(theirs), "onnx_ms": statistics.median(ours)}
        figures |= {"ratio": told.ratio, "low": told.low, "high": told.high, "tie": told.tie}
        figures["same_kernels"] = kernels_of(fasts[0]) == kernels_of(fasts[1])
    print(json.dumps(figures), flush=True)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description="networks as files of ONNX")
    parser.add_argument("--only", default=",".join(NETWORKS), help="names, with commas")
    parser.add_argument("--size", choices=("paper", "tiny"), default="paper")
    parser.add_argument("--target", help="compile both for it: cuda, sim:h200")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="fp32")
    parser.add_argument("--search", default="autograph")
    parser.add_argument("--no-runtime", action="store_true", help="leave onnxruntime out")
    flags = parser.parse_args()
    names = [name for name in flags.only.split(",") if name]
    if unknown := [name for name in names if name not in NETWORKS]:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(NETWORKS)}")
    place = Path(os.environ.get("OUT") or ".") / "onnx_networks.json"
    record: dict[str, Any] = {"provenance": provenance(), "asked": vars(flags), "rows": []}
    rows = record["rows"]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            rows.append(row(name, flags, Path(folder)))
            place.write_text(json.dumps(record, indent=1, default=str) + "\n")
    wrong = [
        figures["network"]
        for figures in rows
        if figures.get("error", 0) > ALLOWED
        or (figures.get("ratio", 1) > SLOWER and not figures["tie"])
    ]
    print(f"{len(rows)} networks; {', '.join(wrong) or 'none'} off by more than is allowed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

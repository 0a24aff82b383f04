"""anabranch doctor: what is installed, what will be used, what is missing and how to get it.

ok       torch           2.11.0+cu130
ok       gpu             NVIDIA H200, compute capability 9.0, driver 580.65
missing  cudnn frontend  pip install nvidia-cudnn-frontend: convolutions fused in one launch
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

import anabranch
from anabranch.cache import Cache
from anabranch.cli import flags, screen
from anabranch.errors import AnabranchError
from anabranch.options import Options
from anabranch.report import units
from anabranch.targets import cuda, resolve
from anabranch.targets.cuda import callables

OPTIONAL = (
    ("triton", "triton", "generated kernels"),
    ("cudnn frontend", "nvidia-cudnn-frontend", "convolutions with bias, residual and activation"),
)
"""Name, package, what it is for: a GPU uses them, nothing else needs them."""
EXTRAS = (
    ("torchvision", "torchvision", "models named torchvision:NAME"),
    ("timm", "timm", "models named timm:NAME"),
    ("onnx", "onnx-ir", "models named FILE.onnx"),
    ("ortools", "ortools", "exact schedules to compare with"),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """state: ok, missing, broken or absent (which is fine). `detail`: what is there, or how to get
    it."""

    state: str
    name: str
    detail: str


def run(json: flags.Json = None) -> None:
    """Show what is installed, what will be used, and what is missing."""
    findings = list(examine())
    rows = [(finding.state, finding.name, finding.detail) for finding in findings]
    console = screen.console(json)
    console.print(screen.table(("<state", "<what", "<detail"), rows))
    here = cuda.available()
    verdict = (
        "Models compile for this GPU (target cuda)."
        if here
        else "Without a GPU, target auto is the CPU; sim:h200 plans for an H200 and runs nothing."
    )
    console.print(verdict)
    screen.write_json(
        json,
        {
            "findings": [asdict(finding) for finding in findings],
            "default_target": "cuda" if here else "cpu",
            "verdict": verdict,
        },
    )


def examine() -> Iterator[Finding]:
    """Everything worth knowing, in the order in which it matters."""
    yield Finding("ok", "anabranch", anabranch.__version__)
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    yield Finding("ok", "torch", torch.__version__)
    yield from _gpu()
    yield from _targets()
    for name, package, use in OPTIONAL:
        yield _package(name, package, use, "missing" if cuda.available() else "absent")
    for name, package, use in EXTRAS:
        yield _package(name, package, use, "absent")
    yield _cache()


def _gpu() -> Iterator[Finding]:
    if not cuda.available():
        built = torch.version.cuda
        why = f"torch is built for CUDA {built}, no GPU answers" if built else "torch has no CUDA"
        yield Finding("absent", "gpu", f"{why}; check nvidia-smi, and install torch for CUDA")
        return
    facts = callables.survey()
    yield Finding(
        "ok",
        "gpu",
        f"{facts['gpu']}, compute capability {facts['capability']}, {facts['sms']} SMs, "
        f"{units.size(int(facts['memory_bytes']))}",
    )
    if "driver" in facts:
        yield Finding("ok", "driver", str(facts["driver"]))
    yield Finding("ok", "cuda, cudnn", f"{facts['cuda']}, {facts['cudnn']}")


def _targets() -> Iterator[Finding]:
    for name in ("cuda", "cpu", "sim:h200"):
        try:
            yield Finding("ok", f"target {name}", resolve(name).spec.name)
        except AnabranchError as error:
            state = "absent" if name == "cuda" else "broken"
            yield Finding(state, f"target {name}", f"{error.why}; {error.next}")


def _package(name: str, package: str, use: str, otherwise: str) -> Finding:
    try:
        return Finding("ok", name, version(package))
    except PackageNotFoundError:
        return Finding(otherwise, name, f"pip install {package}: {use}")


def _cache() -> Finding:
    directory = Options.read().cache_dir
    with Cache.open(directory) as cache:
        stats = cache.stats()
    if stats.path is None:
        state = "ok" if directory is None else "broken"
        return Finding(state, "cache", "kept in memory only")
    entries, size = sum(stats.entries.values()), sum(stats.bytes.values())
    return Finding("ok", "cache", f"{stats.path}: {entries} entries, {units.size(size)}")

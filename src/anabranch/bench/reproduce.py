"""Published tables by paper and name: the systems, schedulers or batches that they compare.

    REPRODUCTIONS["ios"]["schedulers"].matrix -> a ScheduleMatrix of the paper's networks

A table is run as our benchmarks of that kind are: all systems take the same kernels on the machine
at hand, so ratios are to be compared with the paper's, and times are not. Networks that the paper
has and the zoo has not are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from anabranch.bench.batches import BatchMatrix
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.result_rows import ALPHAS, PUBLISHED_SYSTEMS, BenchmarkMatrix
from anabranch.errors import OptionError

Matrix = BenchmarkMatrix | ScheduleMatrix | BatchMatrix
T = TypeVar("T")

FP32 = ("fp32",)
AUTOGRAPH = tuple(
    f"zoo:{name}"
    for name in (
        *("inception_v3", "resnet50", "resnext50", "nasnet_large", "nasnet_mobile"),
        *("sru", "bert_base"),
    )
)
IOS = ("zoo:inception_v3", "zoo:randwire_ios", "zoo:nasnet_ios", "zoo:squeezenet_bypass")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published table: what it says, where it stands, and what is run for it."""

    says: str
    matrix: Matrix


REPRODUCTIONS: dict[str, dict[str, Reproduction]] = {
    "autograph": {
        "systems": Reproduction(
            "Table 2: latency at batch 1 under TASO, Nimble, IOS and AutoGraph",
            BenchmarkMatrix(AUTOGRAPH, FP32, rivals=("torchscript",), systems=PUBLISHED_SYSTEMS),
        ),
        "ablation": Reproduction(
            "Figure 10: AutoGraph without its dynamic programme, without its partition, and with "
            "other weights of the critical path",
            BenchmarkMatrix(
                AUTOGRAPH,
                FP32,
                rivals=(),
                systems=(
                    *("taso", "taso-nimble", "nimble", "autograph"),
                    *("autograph+search_dp=false", "autograph+search_partition=false"),
                    *(f"autograph+search_alpha={alpha}" for alpha in ALPHAS),
                ),
                ours=False,
            ),
        ),
        "batches": Reproduction(
            "What AutoGraph's search gains at several batches",
            BenchmarkMatrix(
                AUTOGRAPH,
                FP32,
                (4, 16, 64),
                rivals=(),
                systems=("taso-nimble", "nimble", "autograph"),
                ours=False,
            ),
        ),
    },
    "deepcuts": {
        "inference": Reproduction(
            "Section 5: generated and library kernels together over the library's alone",
            BenchmarkMatrix(
                ("zoo:resnet50", "zoo:inception_v3", "zoo:bert_base"),
                FP32,
                (1, 16),
                rivals=(),
                systems=("cudagraph", "deepcuts"),
                ours=False,
            ),
        ),
    },
    "ios": {
        "schedulers": Reproduction(
            "Section 6.1: sequential, greedy and IOS's schedules at batch 1",
            ScheduleMatrix(
                IOS,
                ("sequential", "greedy", "ios-merge", "ios-barrier", "ios-both", "ios-paper"),
                FP32,
                kernels="library",
            ),
        ),
        "batches": Reproduction(
            "Section 6.4: schedules made for one batch, run at the others",
            BatchMatrix(("zoo:inception_v3",), (1, 32, 128), "fp32", "ios"),
        ),
    },
    "nimble": {
        "streams": Reproduction(
            "What many streams gain over one, at batch 1",
            ScheduleMatrix(
                ("zoo:inception_v3", "zoo:nasnet_mobile", "zoo:nasnet_large"),
                ("sequential", "nimble"),
                FP32,
                kernels="library",
            ),
        ),
    },
    "opara": {
        "systems": Reproduction(
            "Figure 5: eager, one CUDA graph, Nimble and Opara at batch 1",
            BenchmarkMatrix(
                tuple(
                    f"zoo:{name}"
                    for name in ("googlenet", "inception_v3", "deepfm", "nasnet_large", "bert_base")
                ),
                FP32,
                rivals=("eager",),
                systems=("cudagraph", "nimble", "opara"),
                ours=False,
            ),
        ),
    },
}


def reproduction(paper: str, table: str) -> Reproduction:
    """The table of this paper. OptionError lists the known ones."""
    tables = _entry("paper", paper, REPRODUCTIONS)
    return _entry(f"table of {paper}", table, tables)


def asked_as(matrix: Matrix, models: tuple[str, ...], dtype: str | None, target: str) -> Matrix:
    """The matrix on these models (none: the paper's), with this dtype (None: the paper's)."""
    held = replace(matrix, models=models or matrix.models, target=target)
    if dtype is None:
        return held
    if isinstance(held, BatchMatrix):
        return replace(held, dtype=dtype)
    return replace(held, dtypes=(dtype,))


def _entry(what: str, name: str, known: dict[str, T]) -> T:
    if name not in known:
        raise OptionError(
            f"unknown {what} {name!r}",
            f"no {what} has this name",
            f"choose from: {', '.join(known)}; anabranch reproduce lists all",
        )
    return known[name]

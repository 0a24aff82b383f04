"""Published tables by paper and name: the systems, schedulers or batches that they compare.

    REPRODUCTIONS["ios"]["schedulers"].matrix -> a ScheduleMatrix of the paper's networks

A table is run as our benchmarks of that kind are: all systems take the same kernels on the machine
at hand, so ratios are to be compared with the paper's, and times are not. A record is written anew
after every network, dtype and batch, so that a run that is ended keeps what it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from anabranch.bench.batches import BatchMatrix
from anabranch.bench.jobs import ScheduleMatrix
from anabranch.bench.result_rows import (
    ALPHAS,
    OURS,
    PUBLISHED_SYSTEMS,
    BenchmarkMatrix,
    check_names,
)
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
DEEPCUTS = tuple(
    f"zoo:{name}"
    for name in (
        *("resnet50", "densenet121", "inception_v3", "mobilenet_v2"),
        *("deepspeech2", "attention_rnn", "dlrm", "bert_base"),
    )
)
TRAINING_BATCHES = {"zoo:deepspeech2": (16,), "zoo:attention_rnn": (16,), "zoo:dlrm": (1024,)}
"""Batches of training steps; its paper says none."""
IOS = ("zoo:inception_v3", "zoo:randwire_ios", "zoo:nasnet_ios", "zoo:squeezenet_bypass")
OPARA = tuple(
    f"zoo:{name}"
    for name in ("googlenet", "inception_v3", "deepfm", "nasnet_large", "bert_base", "t5")
)
IOS_SECONDS = 60.0
"""Of one search of IOS, whose stages are measured; what it has not measured then is estimated, and
its row says how much. Of tables by batch and device: of a whole compilation."""
WITHOUT_PARTS = (
    *("autograph+search_dp=false", "autograph+search_partition=false"),
    *(f"autograph+search_alpha={alpha}" for alpha in ALPHAS),
)
PRUNED = tuple(f"ios-paper+max_group_size={r}+max_groups={s}" for s in (8, 3) for r in (3, 2, 1))
"""IOS's r, operators of a group, and s, groups of a stage, as its figure 9 has them."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A published table: what it says, where it stands, and what is run for it; `training`: whole
    training steps."""

    says: str
    matrix: Matrix
    training: bool = False


def _systems(
    models: tuple[str, ...],
    systems: tuple[str, ...],
    batches: tuple[int, ...] = (1,),
    rivals: tuple[str, ...] = (),
    ours: bool = False,
) -> BenchmarkMatrix:
    return BenchmarkMatrix(models, FP32, batches, rivals=rivals, systems=systems, ours=ours)


REPRODUCTIONS: dict[str, dict[str, Reproduction]] = {
    "autograph": {
        "systems": Reproduction(
            "Table 2: latency at batch 1 under TASO, Nimble, IOS and AutoGraph",
            _systems(AUTOGRAPH, PUBLISHED_SYSTEMS, rivals=("torchscript",), ours=True),
        ),
        "ablation": Reproduction(
            "Figure 10: AutoGraph without its dynamic programme, without its partition, and with "
            "other weights of the critical path",
            _systems(AUTOGRAPH, ("taso", "taso-nimble", "nimble", "autograph", *WITHOUT_PARTS)),
        ),
        "batches": Reproduction(
            "What AutoGraph's search gains at several batches",
            _systems(AUTOGRAPH, ("taso-nimble", "nimble", "autograph"), (1, 4, 16, 64)),
        ),
        "cell": Reproduction(
            "The case study: a cell of NASNet-A, whose merges cost more than they save in parallel",
            _systems(
                ("zoo:nasnet_cell",), ("cudagraph", "taso", "taso-nimble", "nimble", "autograph")
            ),
        ),
    },
    "deepcuts": {
        "inference": Reproduction(
            "Section 5: generated and library kernels together over the library's alone, at small "
            "and large batches",
            _systems(
                DEEPCUTS,
                ("cudagraph", "deepcuts"),
                (1, 8, 16, 64, 128, 256),
                rivals=("inductor", "xla"),
            ),
        ),
        "ablation": Reproduction(
            "What fusion is worth, and what the performance upper limit is: without either",
            _systems(
                DEEPCUTS,
                ("cudagraph", "deepcuts", "deepcuts+fusion=none", "deepcuts+pruning=time"),
            ),
        ),
        "training": Reproduction(
            "Section 5: whole training steps, generated and library kernels together over the "
            "library's alone",
            BenchmarkMatrix(
                DEEPCUTS,
                ("bf16", "tf32"),
                (32,),
                rivals=("eager-graph",),
                systems=("cudagraph", "deepcuts"),
                ours=False,
                own_batches=TRAINING_BATCHES,
            ),
            training=True,
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
                budget=IOS_SECONDS,
            ),
        ),
        "frameworks": Reproduction(
            "Section 6: IOS beside other compilers at batch 1",
            _systems(
                IOS,
                ("cudagraph", f"ios+budget={IOS_SECONDS:g}"),
                rivals=("eager", "inductor", "inductor-max", "xla", "tvm", "tensorrt"),
                ours=True,
            ),
        ),
        "warps": Reproduction(
            "Active warps over time, sequential and IOS's",
            ScheduleMatrix(
                IOS,
                ("sequential", "ios-paper"),
                FP32,
                kernels="library",
                budget=IOS_SECONDS,
                utilisation=True,
            ),
        ),
        "pruning": Reproduction(
            "Figure 9: latency and seconds of the search under several r and s",
            ScheduleMatrix(
                ("zoo:inception_v3", "zoo:nasnet_ios"),
                ("sequential", *PRUNED),
                FP32,
                kernels="library",
                budget=IOS_SECONDS,
                apart=True,
            ),
        ),
        "batches": Reproduction(
            "Section 6.4: schedules made for one batch, run at the others",
            BatchMatrix(
                ("zoo:inception_v3",), (1, 32, 128), "fp32", "ios-measured", budget=IOS_SECONDS
            ),
        ),
        "devices": Reproduction(
            "Section 6.4: schedules made for other GPUs, run on the one at hand",
            BatchMatrix(
                ("zoo:inception_v3",),
                (1,),
                "fp32",
                "ios-measured",
                budget=IOS_SECONDS,
                devices=("sim:h200",),
            ),
        ),
        "sweep": Reproduction(
            "Sequential and IOS's schedules at batch 1 to 128",
            ScheduleMatrix(
                ("zoo:inception_v3",),
                ("sequential", "ios-paper"),
                FP32,
                (1, 16, 32, 64, 128),
                kernels="library",
                budget=IOS_SECONDS,
            ),
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
            "Figure 5: eager, one CUDA graph, Nimble and Opara at batch 1; their memory, and what "
            "allocating streams and ordering launches takes",
            _systems(OPARA, ("cudagraph", "nimble", "opara"), rivals=("eager",)),
        ),
        "batches": Reproduction(
            "The same at batch 2 to 32",
            _systems(
                ("zoo:inception_v3",),
                ("cudagraph", "nimble", "opara"),
                (2, 4, 8, 16, 32),
                rivals=("eager",),
            ),
        ),
        "orders": Reproduction(
            "Section 2.3: launch orders, how operators bound by arithmetic and by memory overlap, "
            "and SM efficiency over time",
            ScheduleMatrix(
                OPARA,
                ("sequential", "nimble", "opara-traced", "opara-depth", "opara-paper"),
                FP32,
                kernels="library",
                utilisation=True,
            ),
        ),
    },
}


def tables_of(paper: str) -> dict[str, Reproduction]:
    """The tables of this paper, by name. OptionError lists the known papers."""
    return _entry("paper", paper, REPRODUCTIONS)


def reproduction(paper: str, table: str) -> Reproduction:
    """The table of this paper. OptionError lists the known ones."""
    return _entry(f"table of {paper}", table, tables_of(paper))


def asked_as(
    matrix: Matrix,
    models: tuple[str, ...],
    dtype: str | None,
    target: str,
    batches: tuple[int, ...] = (),
    only: tuple[str, ...] = (),
) -> Matrix:
    """The matrix on these models (none: the paper's), with this dtype (None: the paper's), these
    batches (none: the paper's), and only these of its systems, rivals, schedulers or devices (none:
    all). OptionError for one that it has not."""
    held = replace(matrix, models=models or matrix.models, target=target)
    if batches and isinstance(held, BenchmarkMatrix):
        held = replace(held, own_batches={})
    if batches:
        held = replace(held, batches=batches)
    if dtype is not None:
        if isinstance(held, BatchMatrix):
            held = replace(held, dtype=dtype)
        else:
            held = replace(held, dtypes=(dtype,))
    return _with_only(held, only) if only else held


def _with_only(matrix: Matrix, only: tuple[str, ...]) -> Matrix:
    if isinstance(matrix, ScheduleMatrix):
        _check(only, matrix.schedulers)
        return replace(matrix, schedulers=_those(matrix.schedulers, only))
    if isinstance(matrix, BatchMatrix):
        return replace(matrix, devices=only)
    rivals = matrix.rivals or ()
    ours = (OURS,) if matrix.ours else ()
    _check(only, (*ours, *rivals, *matrix.systems))
    return replace(
        matrix,
        rivals=_those(rivals, only),
        systems=_those(matrix.systems, only),
        ours=matrix.ours and OURS in only,
    )


def _those(names: Sequence[str], only: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name in only)


def _check(only: tuple[str, ...], choices: Sequence[str]) -> None:
    check_names("row of this table", only, choices)


def _entry(what: str, name: str, entries: dict[str, T]) -> T:
    if name not in entries:
        raise OptionError(
            f"unknown {what} {name!r}",
            f"no {what} has this name",
            f"choose from: {', '.join(entries)}; anabranch reproduce lists all",
        )
    return entries[name]

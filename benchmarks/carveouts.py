"""What it is worth that all kernels ask for one carve-out: schedules of a network, side by side.

    PYTHONPATH=src python3 benchmarks/carveouts.py zoo:randwire [--kernels library] [--json FILE]

The same kernels and schedules, without dependent launches, captured several times: with what the
driver chooses for each kernel by itself, and with all kernels in each carve-out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

import torch

from anabranch.bench import harness
from anabranch.bench.jobs import job_of
from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.costs.measured import Measured
from anabranch.ir.protocols import Executable, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.variant import WHOLE_PERCENT
from anabranch.kernels.triton.l1_carveout import CARVEOUTS_PERCENT
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.schedule import SCHEDULERS
from anabranch.targets.cuda import nodes
from anabranch.targets.cuda.target import CudaTarget
from anabranch.trace import Trace

NAMES = ("sequential", "greedy", "wavefront", "critical", "opara-paper", "ios", "local")
DRIVERS = "the driver's"
SECONDS = 3.0
"""Of timing, for all together."""


@contextmanager
def asking(percent: int | None) -> Iterator[None]:
    """All kernels of graphs that are captured in the block ask for this; None: for nothing."""
    part = nodes.part

    def told(graph: int, _: int) -> None:
        if percent is not None:
            part(graph, percent)

    with mock.patch.object(nodes, "part", told):
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description="one carve-out for all kernels")
    parser.add_argument("model")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--kernels", default="all", choices=("all", "library"))
    parser.add_argument("--json", type=Path, help="where to write what was found")
    flags = parser.parse_args()
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()), flags.dtype == "tf32")
    tasks, schedules = _made(flags.model, flags.dtype, flags.batch, flags.kernels, target)
    runs: dict[tuple[str, str], Executable] = {}
    for name, schedule in schedules.items():
        plan = pack(tasks, schedule, target.spec)
        for percent in (None, WHOLE_PERCENT, *CARVEOUTS_PERCENT):
            with asking(percent):
                runs[name, DRIVERS if percent is None else f"{percent}%"] = target.load(plan)
    costs = dict(zip(runs, target.time(list(runs.values()), SECONDS), strict=True))
    rows = [
        {"scheduler": name, "carveout": way, "us": round(c.us, 3), "spread": round(c.spread, 3)}
        for (name, way), c in costs.items()
    ]
    for name in schedules:
        said = [f"{way} {c.us:.1f}" for (of, way), c in costs.items() if of == name]
        print(f"{name:<12} {', '.join(said)}")
    if flags.json:
        harness.write(flags.json, "carveouts", "cuda", vars(flags), rows)
    return 0


def _made(
    model: str, dtype: str, batch: int, kernels: str, target: CudaTarget
) -> tuple[TaskGraph, dict[str, Schedule]]:
    """The network with kernels, and its schedules."""
    options = Options.read({"tf32": target.tf32, "kernels": kernels, "search": "none"})
    trace = Trace()
    with Cache.open(options.cache_dir) as cache:
        job = job_of(model, dtype, batch, target, options, cache, trace)
        tasks: TaskGraph = compile_model(job, stop_after="probe")
    costs = Measured(target, partial(pack, spec=target.spec), None, trace, each=0.01)
    limits = Limits(spec=target.spec, compared=True, trace=trace)
    return tasks, {name: SCHEDULERS[name](tasks, costs, limits) for name in NAMES}


if __name__ == "__main__":
    sys.exit(main())

"""What each mode of dependent launch is worth: one plan of a network, all its kernels in one mode.

    PYTHONPATH=src python3 benchmarks/modes.py zoo:bert_base [--asked 1,4,8,16] [--json FILE]

All side by side, with the plan as it was compiled ("kept": each kernel in a mode of its own), and
its kernels in no mode ("plain"). `--asked`: lines of weights that a thread asks for in modes a
and f, one plan for each number.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from anabranch.bench import harness
from anabranch.bench.jobs import job_of
from anabranch.cache import Cache
from anabranch.compiler.compilation import Compilation
from anabranch.compiler.pipeline import compile_model
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable
from anabranch.ir.task import Task
from anabranch.ir.variant import WHOLE_PERCENT, PdlMode, Variant
from anabranch.kernels.triton import codegen, pdl
from anabranch.options import Options
from anabranch.targets.cuda.target import CudaTarget
from anabranch.trace import Trace
from anabranch.tuning.launch.pdl import generated, in_mode

SECONDS = 0.15
"""Of timing, for each way."""
ASKING = (PdlMode.PREFETCH_L2, PdlMode.PREFETCH_L2_EARLY)


def main() -> int:
    parser = argparse.ArgumentParser(description="all kernels of a plan in one mode")
    parser.add_argument("model")
    parser.add_argument("--dtype", default="fp16")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--search", default="autograph")
    parser.add_argument("--asked", default="", help="lines a thread asks for: 1,4,8,16")
    parser.add_argument("--json", type=Path, help="where to write what was found")
    flags = parser.parse_args()
    target = CudaTarget(torch.device("cuda", torch.cuda.current_device()), flags.dtype == "tf32")
    options = Options.read({"tf32": target.tf32, "search": flags.search})
    with Cache.open(options.cache_dir) as cache:
        job = job_of(flags.model, flags.dtype, flags.batch, target, options, cache, Trace())
        compilation: Compilation = compile_model(job)
    runs = _runs(
        compilation.plan, target, [int(lines) for lines in flags.asked.split(",") if lines]
    )
    costs = dict(zip(runs, target.time(list(runs.values()), SECONDS * len(runs)), strict=True))
    schedule = compilation.plan.schedule
    print(f"{len(schedule.launches)} launches on {schedule.streams} streams")
    for name, cost in costs.items():
        print(f"{name:<10} {cost.us:8.1f} us +- {cost.spread:.1f}")
    if flags.json:
        rows = [
            {"way": n, "us": round(c.us, 3), "spread": round(c.spread, 3)} for n, c in costs.items()
        ]
        harness.write(flags.json, "launch modes", "cuda", vars(flags), rows)
    return 0


def _runs(plan: Plan, target: CudaTarget, asked: list[int]) -> dict[str, Executable]:
    plain = replace(plan, tasks=replace(plan.tasks, tasks=tuple(map(_plain, plan.tasks.tasks))))
    runs: dict[str, Executable] = {"kept": target.load(plan), "plain": target.load(plain)}
    for mode in PdlMode:
        for lines in (asked if mode in ASKING else []) or [None]:
            told = {} if lines is None else {mode: lines}
            with mock.patch.dict(pdl.ASKED, told):
                _forget()
                launched = replace(plain, tasks=in_mode(plain.tasks, mode))
                runs[f"{mode}{lines or ''}"] = target.load(launched)
    _forget()
    return runs


def _plain(task: Task) -> Task:
    """The task with its kernel in no mode."""
    if task.kernel is None or not generated(task):
        return task
    if not isinstance(task.kernel.variant, Variant):
        return task
    variant = replace(task.kernel.variant, pdl=None, carveout=WHOLE_PERCENT)
    source = codegen.program(task.kernel.body, variant).text
    kernel = replace(task.kernel, variant=variant, source=source)
    return replace(task, kernel=kernel)


def _forget() -> None:
    """Texts are written once, and would be those of another number of lines."""
    codegen._program.cache_clear()
    codegen._of_task.cache_clear()
    codegen.LEARNED.clear()


if __name__ == "__main__":
    sys.exit(main())

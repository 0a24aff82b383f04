"""What workers gain in the first batch of a cold compilation, with delays in place of GPUs.

    PYTHONPATH=src:. python3 benchmarks/worker_delays.py --counts 1,2

All of the real code runs but what it waits for: compilers (`--slots` of them for a worker, half a
second a text, some of them two), trials in a sandbox (12 ms), engines, precise times (18 ms each)
and checks in the caller. So what is serial shows without a GPU, and it shows who waits for whom:

    2 workers: 30.7 s
      caller     tuning.sandbox                0.0 ...    29.8    29.8
      worker 0   397 kernels                   1.0 ...    20.4    19.4

Processes are forked, so one core for each worker is enough.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from unittest import mock

from benchmarks.workers import timeline
from tests.tuning.sandbox.forked import Forked
from tests.tuning.sandbox.test_client import DEEDS

from anabranch.cache import Cache
from anabranch.ir.protocols import Cost
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import parse_graph
from anabranch.targets.cpu.target import CpuTarget
from anabranch.trace import Trace
from anabranch.tuning.sandbox import process as sandbox_process
from anabranch.tuning.sandbox import spread
from anabranch.tuning.sandbox.client import SandboxClient
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.sandbox.spread import SpreadTrials
from anabranch.tuning.workers.identity import identity_of
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool

STRUCTURES = 227
"""Of NASNet-A Large, with some thousand generated kernels and some three hundred others."""
PRECISE_S, ENGINE_S, CHECK_S = 0.018, 0.15, 0.025
BEFORE_S = 6.0
"""In which processes start while the model is captured."""
START = (
    DEEDS
    + """
import math, random
from anabranch.ir.protocols import Cost
from anabranch.tuning.sandbox import worker

def ready(self, kernels, cache=None, in_turn=False):
    texts = [f"{kernel.body.inputs[0].type} {kernel.variant}" for kernel in kernels]
    took = [0.25 + 0.35 * math.exp(random.Random(text).gauss(0, 0.6)) for text in texts]
    window = 64 if in_turn else max(1, len(took))
    order = [
        i
        for at in range(0, len(took), window)
        for i in sorted(range(len(took))[at : at + window], key=took.__getitem__, reverse=True)
    ]
    slots, ends = [time.monotonic()] * SLOTS, []
    for i in order:
        at = slots.index(min(slots))
        slots[at] += took[i]
        ends.append((slots[at], i))
    yield []
    for end, i in sorted(ends):
        time.sleep(max(0.0, end - time.monotonic()))
        yield [i]

def tried(task, target, oracle, values=None):
    time.sleep(0.012)
    return worker.Verdict("right", Cost(float(task.kernel.variant.split()[1]), "measured", 0.1))

cpu.CpuTarget.ready, worker.try_kernel = ready, tried
time.sleep(4.0)
"""
)
BODY = """\
graph relu {
  input %x: f32[WIDTH]
  %out: f32[WIDTH] = aten.relu.default(%x)
  return %out
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="workers with delays in place of GPUs")
    parser.add_argument("--counts", default="1,2", help="of workers")
    parser.add_argument("--slots", type=int, default=15, help="compilers of each")
    flags = parser.parse_args()
    processes = SimpleNamespace(Popen=Forked, PIPE=-1, DEVNULL=-3)
    start = START.replace("SLOTS", str(flags.slots))
    with (
        mock.patch.object(sandbox_process, "subprocess", processes),
        mock.patch.object(spread, "SandboxProcess", partial(SandboxProcess, start=start)),
        mock.patch.object(CpuTarget, "prepare", prepared),
    ):
        for count in map(int, flags.counts.split(",")):
            show(count, start)


def show(count: int, start: str) -> None:
    """A batch by so many workers; one of them is this process alone."""
    tasks, trace = list(drawn()), Trace(quiet=True)
    crew = LocalCrew("cpu", [""] * count, method="fork")
    pool = WorkerPool(crew, identity_of(CpuTarget().spec)) if count > 1 else None
    with (
        pool or nullcontext(),
        SandboxProcess(
            CpuTarget(), None, start, None if pool is None else SpreadTrials(pool, False)
        ) as sandbox,
        SandboxClient(CpuTarget(), None, trace, sandbox) as client,
    ):
        sandbox.start()
        time.sleep(BEFORE_S)
        begin, checked = time.perf_counter(), list[int]()

        def check(asked: Sequence[Task], costs: Sequence[Cost | None]) -> None:
            checked.append(len(asked))
            time.sleep(CHECK_S)

        client.before(trial, check)(tasks)
        time.sleep(CHECK_S * (STRUCTURES - len(checked)))
    print(f"{count} workers: {time.perf_counter() - begin:.1f} s")
    for who, what, first, last in timeline(trace.events):
        if last - first > 1.0:
            span = f"{first - BEFORE_S:7.1f} ... {last - BEFORE_S:7.1f} {last - first:7.1f}"
            print(f"  {who:<10} {what:<24} {span}")


def drawn() -> Iterator[Task]:
    """Tasks of as many structures, with generated kernels and some of a library."""
    for number in range(STRUCTURES):
        draw = random.Random(number)
        body = parse_graph(BODY.replace("WIDTH", str(100 + number)))
        for k in range(draw.choice((2, 4, 5, 5, 6))):
            variant = f"takes {draw.randint(10, 14)}.{k}"
            yield Task("relu", body, Kernel("deeds", "relu", body, variant, True, source="text"))
        for k in range(draw.choice((1, 1, 1, 2))):
            yield Task("relu", body, Kernel("deeds", "relu", body, f"library {k}", True))


def trial(tasks: Sequence[Task]) -> list[Cost]:
    time.sleep(PRECISE_S * len(tasks))
    return [Cost(1.0, "measured") for _ in tasks]


def prepared(
    target: CpuTarget,
    kernels: Sequence[Kernel],
    cache: Cache | None = None,
    trace: Trace | None = None,
) -> None:
    engines = [kernel for kernel in kernels if kernel.variant != "library 0" and not kernel.source]
    time.sleep(ENGINE_S * len(engines))


if __name__ == "__main__":
    main()

"""The process in which generated kernels are tried: what it does, and what it is told and tells.

task --> load, run between fences on random data, look at the fences, time --> Verdict
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import sys
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch

from anabranch.cache import Cache
from anabranch.costs.measured import repeat_of
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.inputs import random_tensor
from anabranch.ir.protocols import Target
from anabranch.ir.schedule import Schedule, sequential_launches
from anabranch.ir.task import Kernel, Task, TaskGraph
from anabranch.ir.text import parse_graph, text_graph
from anabranch.kernels.triton.program import facts_of, program_of
from anabranch.kernels.triton.write import is_ours, learn, unnamed
from anabranch.pack import pack
from anabranch.pack.fence import fence
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.cuda.target import CudaTarget

GENERATES = "triton"
"""The provider whose kernels are written by `kernels.triton.write`."""
ROUGHLY = 0.002
"""Seconds of timing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why` a kernel must not be used, "" if it may; what it takes, roughly, if it may."""

    why: str
    us: float = 0.0
    spread: float = 0.0


def audition(task: Task, target: Target) -> Verdict:
    """Run a task alone between fences, on random data, and time it."""
    body = task.body
    constants = tuple(_filled(constant, i, target) for i, constant in enumerate(body.constants))
    alone = TaskGraph(task.name, body.inputs, constants, (task,), (), body.outputs)
    plan = pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec)
    run = target.load(fence(plan), repeat=repeat_of(task, target.spec))
    run([random_tensor(value.type, i, target.device) for i, value in enumerate(body.inputs)])
    why = run.strays()  # which waits: whatever went wrong on the device is heard here
    if why:
        return Verdict(why)
    (cost,) = target.time([run], ROUGHLY)
    return Verdict("", cost.us, cost.spread)


def main(device: str, tf32: str, folder: str) -> None:
    """The other side: lists of tasks in, and for each, as it is compiled, its position and, when
    it has run, why it must not be used; of a list that is only to be compiled, the positions."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not be heard as answers
    where = torch.device(device)
    target = CpuTarget() if where.type == "cpu" else CudaTarget(where, tf32 == "1")
    if isinstance(target, CudaTarget):
        target.start()
    with Cache.open(Path(folder) if folder else None) as cache:
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            tasks = [read(item) for item in asked["tasks"]]
            kernels = [task.kernel for task in tasks if task.kernel]
            for number in itertools.chain.from_iterable(target.ready(kernels, cache)):
                _say(answers, number)
                if not asked["run"]:
                    continue
                try:
                    verdict = audition(tasks[number], target)
                except Exception as failed:
                    said = " ".join(str(failed).split())[:400]
                    verdict = Verdict(f"{type(failed).__name__}: {said}")
                _say(answers, astuple(verdict))
                if verdict.why and not _alive(where):
                    return


def _alive(device: torch.device) -> bool:
    """Whether the device still answers: after a fault it never does in this process."""
    try:
        return torch.ones(1, device=device).add(1).item() == 2
    except RuntimeError:
        return False


def _say(answers: BinaryIO, what: object) -> None:
    answers.write(json.dumps(what).encode() + b"\n")
    answers.flush()


def written(task: Task) -> dict[str, Any]:
    """`program`: what a template wrote for the kernel, which its reader need not write again."""
    kernel = task.kernel
    assert kernel is not None
    known = kernel.provider == GENERATES and is_ours(kernel.variant)
    return {
        "task": task.name,
        "body": text_graph(task.body, origins=False),
        "kernel": [kernel.provider, kernel.name, kernel.variant, kernel.source],
        "kernel_body": text_graph(kernel.body, origins=False),
        "writes_out": kernel.writes_out,
        "workspace": kernel.workspace,
        "program": facts_of(unnamed(kernel.body, kernel.variant)) if known else None,
    }


def read(item: dict[str, Any]) -> Task:
    provider, name, variant, source = item["kernel"]
    body, kernel_body = (_parsed(item[text]) for text in ("body", "kernel_body"))
    if item["program"] is not None:
        learn(kernel_body, variant, program_of(item["program"]))
    kernel = Kernel(
        provider,
        name,
        kernel_body,
        variant,
        item["writes_out"],
        item["workspace"],
        source=source,
    )
    return Task(item["task"], body, kernel)


@functools.lru_cache(maxsize=1 << 12)
def _parsed(text: str) -> Graph:
    """All kernels of a task have its body."""
    return parse_graph(text)


def _filled(constant: Constant, seed: int, target: Target) -> Constant:
    return replace(constant, value=random_tensor(constant.type, 100 + seed, target.device))

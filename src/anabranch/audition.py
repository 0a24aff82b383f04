"""The process in which generated kernels are tried: what it does, and what it is told and tells.

task --> load, run between fences on random data, look at fences and numbers, time --> Verdict
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.costs.measured import repeat_of
from anabranch.ir import numbers, ops
from anabranch.ir.dag import dag_of
from anabranch.ir.graph import Constant, Graph, Input
from anabranch.ir.inputs import lookups_fit, random_inputs
from anabranch.ir.protocols import Target
from anabranch.ir.reference import eager_and_reference
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
HELD, ANSWERS = 1 << 30, 64
"""Bytes that answers may take, about, and how many are held."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why` a kernel must not be used, "" if it may; what it takes, roughly, if it may."""

    why: str
    us: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class Expected:
    """What a body computes. `constants`, `inputs`: random, of this seed; `truth`: for each output
    the reference and the error allowed, empty where nothing can be said."""

    seed: int
    constants: tuple[Constant, ...]
    inputs: tuple[Tensor, ...]
    truth: tuple[tuple[Tensor, float], ...]

    @property
    def nbytes(self) -> int:
        """Of all that it holds."""
        held = [*self.inputs, *(truth for truth, _ in self.truth)]
        held += [c.value for c in self.constants if c.value is not None]
        return sum(one.nbytes for one in held)


class Oracle:
    """What bodies compute, on random numbers drawn anew in each process: all kernels of a task are
    compared with the same answers, with the second one only where they fail at the first. They are
    held as long as there is room, the latest."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[str, int], Expected] = {}

    def of(self, body: Graph, draw: int = 0) -> Expected:
        """The answer to this draw of numbers."""
        key = text_graph(body, origins=False), draw
        if key not in self._known:
            self._make_room()
            self._known[key] = self._expected(body)
        return self._known[key]

    def _make_room(self) -> None:
        held = sum(one.nbytes for one in self._known.values())
        while self._known and (held > HELD or len(self._known) >= ANSWERS):
            held -= self._known.pop(next(iter(self._known))).nbytes

    def _expected(self, body: Graph) -> Expected:
        """Of normal numbers, or if these lead to infinities and worse, as roots and variances below
        zero do, of positive ones. Probabilities stay what they are: of others operators end the
        process."""
        seed = secrets.randbits(31)
        found = self._computed(body, seed, positive=False)
        return found if found.truth else self._computed(body, seed, positive=True)

    def _computed(self, body: Graph, seed: int, positive: bool) -> Expected:
        target, count = self._target, len(body.constants)
        asked = (*(Input(c.name, c.type) for c in body.constants), *body.inputs)
        drawn = random_inputs(replace(body, inputs=asked, constants=()), seed, target.device)
        if positive:
            unit = ops.probabilities(body.nodes)
            drawn = [
                one.abs() + 0.5 if one.is_floating_point() and value.name not in unit else one
                for value, one in zip(asked, drawn, strict=True)
            ]
        constants = tuple(
            replace(constant, value=value)
            for constant, value in zip(body.constants, drawn[:count], strict=True)
        )
        filled, inputs = replace(body, constants=constants), tuple(drawn[count:])
        truth: tuple[tuple[Tensor, float], ...] = ()
        if not any(ops.info(node.op).random for node in body.nodes) and lookups_fit(filled, inputs):
            try:
                own, reference = eager_and_reference(filled, inputs, target)
                truth = _allowed(own, reference, target.spec.tf32)
            except (RuntimeError, IndexError, ValueError):
                pass  # operators that refuse random content
        return Expected(seed, constants, inputs, truth)


def _allowed(
    own: Sequence[Tensor], reference: Sequence[Tensor], tf32: bool
) -> tuple[tuple[Tensor, float], ...]:
    """Nothing is said of a body that does not make numbers of these numbers."""
    if not all(one.isfinite().all() for one in (*own, *reference)):
        return ()
    return tuple(numbers.expected(own, reference, tf32))


def audition(task: Task, target: Target, oracle: Oracle) -> Verdict:
    """Run a task alone between fences, on random data, compare what it wrote, and time it. What is
    off on numbers of one draw is asked on those of others (`numbers.DRAWS`)."""
    body, why = task.body, ""
    for draw in range(numbers.DRAWS):
        expected = oracle.of(body, draw)
        alone = TaskGraph(task.name, body.inputs, expected.constants, (task,), (), body.outputs)
        plan = pack(alone, Schedule("alone", sequential_launches(dag_of(alone))), target.spec)
        run = target.load(fence(plan), repeat=repeat_of(task, target.spec))
        outs = run(list(expected.inputs))
        strays = run.strays()  # which waits: whatever went wrong on the device is heard here
        if strays:
            return Verdict(strays)
        why = _differs(outs, expected)
        if not why:
            (cost,) = target.time([run], ROUGHLY)
            return Verdict("", cost.us, cost.spread)
    return Verdict(why)


def _differs(outs: Sequence[Tensor], expected: Expected) -> str:
    """How what a kernel wrote differs from what it was to write, "" if it does not."""
    if not expected.truth:
        return ""
    for out, (truth, allowed) in zip(outs, expected.truth, strict=True):
        error = numbers.relative_error(out, truth)
        if not error <= allowed:
            said = f"error {error:.2e} where {allowed:.2e} is allowed"
            return f"{said}, of numbers of seed {expected.seed}"
    return ""


def main(device: str, tf32: str, folder: str, patience: str = "2") -> None:
    """The other side: lists of tasks in, and for each, as it is compiled, its position and, when
    it has run, why it must not be used; of a list that is only to be compiled, the positions."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not be heard as answers
    where = torch.device(device)
    target = CpuTarget() if where.type == "cpu" else CudaTarget(where, tf32 == "1")
    if isinstance(target, CudaTarget):
        target.start()
    oracle = Oracle(target)
    place = Path(folder) if folder else None
    with Cache.open(place, patience=float(patience)) as cache:
        for line in sys.stdin.buffer:
            asked = json.loads(line)
            tasks = [read(item) for item in asked["tasks"]]
            kernels = [task.kernel for task in tasks if task.kernel]
            for number in itertools.chain.from_iterable(target.ready(kernels, cache)):
                _say(answers, number)
                if not asked["run"]:
                    continue
                try:
                    verdict = audition(tasks[number], target, oracle)
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

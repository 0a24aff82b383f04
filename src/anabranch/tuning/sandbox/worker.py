"""The process in which generated kernels are tried: what it does, and what it is told and tells.

task --> load, run between fences, look at fences and numbers, time --> Verdict

The numbers are finite ones, then special ones, both drawn anew in each process, with constants that
are drawn as well; or the values of the example, where these came with the task: they do where its
operators may not read drawn ones.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from anabranch.cache import Cache, Codec
from anabranch.costs.measured import repeat_of
from anabranch.deadline import TIME
from anabranch.ir import tolerances
from anabranch.ir.codec import nouns
from anabranch.ir.contents import bytes_of
from anabranch.ir.graph import Graph
from anabranch.ir.proof import Answer, answer, answered
from anabranch.ir.protocols import Executable, Target
from anabranch.ir.refused import Refused
from anabranch.ir.task import Task
from anabranch.ir.text import text_graph
from anabranch.ir.tolerances import Screen
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import learn, unnamed
from anabranch.kernels.triton.program import Program
from anabranch.memory.guard_bytes import fenced
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.cuda.sharing import turn
from anabranch.targets.cuda.target import CudaTarget
from anabranch.tuning.verdict import Verdict

TOLD: Codec[Verdict] = nouns(Verdict)
"""How verdicts are told, one in a line."""
SENT = 1 << 20
"""Bytes of values that a task is sent with, at most."""
MOST_ANSWER_BYTES, ANSWERS = 1 << 30, 64
"""Bytes that answers may take, about, and how many are held."""


@dataclass(frozen=True, slots=True)
class SandboxTask:
    """What the process is told of a task with its kernel. `source`: the kernel's text; `program`:
    what a template wrote for it, which the process need not write again; `values`: what the task
    reads on the example, None where it reads drawn numbers."""

    task: Task
    source: str
    program: Program | None
    values: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class SandboxBatch:
    """Tasks to compile; `run`: and to try, about in this order, for somebody waits for the first
    ones."""

    tasks: tuple[SandboxTask, ...]
    run: bool


BATCHES: Codec[SandboxBatch] = nouns(SandboxBatch)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a body computes. `body`: with constants of this seed; `finite` and `special`: on inputs
    of these sets."""

    seed: int
    body: Graph
    finite: Answer
    special: Answer
    screens: Mapping[int, Screen] = field(init=False, compare=False, repr=False)
    """What lets right results pass quickly, by the identity of the answer."""

    def __post_init__(self) -> None:
        screen_of = {
            id(answer): answer.screen() for answer in (self.finite, self.special) if answer.judged
        }
        screens = {key: screen for key, screen in screen_of.items() if screen is not None}
        object.__setattr__(self, "screens", screens)

    @property
    def nbytes(self) -> int:
        """Of all that it holds."""
        held = [c.value for c in self.body.constants if c.value is not None]
        screened = [t for screen in self.screens.values() for t in (*screen.truth, *screen.allowed)]
        bytes_held = sum(tensor.nbytes for tensor in (*held, *screened))
        return self.finite.nbytes + self.special.nbytes + bytes_held


class Oracle:
    """What bodies compute, on random numbers drawn anew in each process: all kernels of a task are
    compared with the same answers, with the second one only where they fail at the first. They are
    held as long as there is room, the latest."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._expected_of: dict[tuple[str, int], Expected] = {}

    def of(self, body: Graph, draw: int = 0) -> Expected:
        """The answer to this draw of numbers."""
        key = text_graph(body, origins=False), draw
        if key not in self._expected_of:
            self._make_room()
            self._expected_of[key] = self._expected(body)
        return self._expected_of[key]

    def _make_room(self) -> None:
        held = sum(expected.nbytes for expected in self._expected_of.values())
        while self._expected_of and (held > MOST_ANSWER_BYTES or len(self._expected_of) >= ANSWERS):
            held -= self._expected_of.pop(next(iter(self._expected_of))).nbytes

    def _expected(self, body: Graph) -> Expected:
        seed = secrets.randbits(31)
        filled, finite = answer(body, "finite", seed, self._target, fill=True)
        _, special = answer(filled, "special", seed, self._target)
        return Expected(seed, filled, finite, special)


def try_kernel(
    task: Task, target: Target, oracle: Oracle, values: Sequence[Tensor] | None = None
) -> Verdict:
    """Run a task alone between fences, compare what it wrote, and time it roughly. A kernel that is
    off on numbers of one draw is run on those of others (`tolerances.DRAWS`). `values`: what it
    reads on the example, where it may not read drawn numbers."""
    wrong: Refused | None = None
    for draw in range(tolerances.DRAWS):
        expected = oracle.of(task.body, draw)
        wanted = [expected.finite, expected.special]
        if values is not None:
            wanted = [answered(expected.body, "real", values, target)]
        first, *others = wanted
        judged = [first, *(other for other in others if other.judged)]
        inputs = {v.name: x for v, x in zip(task.body.inputs, first.inputs, strict=True)}
        plan = fenced(task, expected.body.constants, target.spec)
        run = target.load(plan, repeat_of(task, target.spec), inputs)
        wrong = next(filter(None, (_differs(run, asked, expected) for asked in judged)), None)
        # What is written to a wrong place makes other numbers wrong, too.
        if strays := run.strays():
            return Verdict("ran", refused=Refused(strays))
        if wrong is None:
            if len(judged) > 1:
                run(list(first.inputs))  # for they are what it is timed on
            (cost,) = target.time([run], TIME.kernel_rough_s)
            return Verdict("right", cost)
    return Verdict("ran", refused=wrong)


def _differs(run: Executable, asked: Answer, expected: Expected) -> Refused | None:
    """How what it computes on these inputs is another answer, if it is."""
    outs = run(list(asked.inputs))
    seen = expected.screens.get(id(asked))
    wrong = None if seen is not None and seen.passes(outs) else asked.differs(outs)
    return wrong and Refused(f"{wrong}, of numbers of seed {expected.seed}")


def main(device: str, tf32: str, folder: str, patience: str = "2", ahead: str = "16") -> None:
    """The other side: lists of tasks in, and for each, as it is compiled, its position and, when
    it has run, why it must not be used; of a list that is only to be compiled, the positions; at an
    empty list compilers start. `ahead`: how many of them start now."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries that print must not be heard as answers
    where = torch.device(device)
    target = CpuTarget() if where.type == "cpu" else CudaTarget(where, tf32 == "1")
    if isinstance(target, CudaTarget):
        target.start(int(ahead))
    oracle = Oracle(target)
    place = Path(folder) if folder else None
    with Cache.open(place, patience=float(patience)) as cache:
        for line in sys.stdin.buffer:
            asked = BATCHES.read(line, None)
            if not asked.tasks and isinstance(target, CudaTarget):
                target.start()
            tasks, values = list(map(read, asked.tasks)), list(map(values_told, asked.tasks))
            kernels = [task.kernel for task in tasks if task.kernel]
            for number in itertools.chain.from_iterable(target.ready(kernels, cache, asked.run)):
                _say(answers, json.dumps(number).encode())
                if not asked.run:
                    continue
                try:
                    with turn() if isinstance(target, CudaTarget) else nullcontext():
                        verdict = try_kernel(tasks[number], target, oracle, values[number])
                except Exception as failed:
                    said = " ".join(str(failed).split())[:400]
                    verdict = Verdict("tried", refused=Refused(f"{type(failed).__name__}: {said}"))
                _say(answers, TOLD.write(verdict, None))
                if verdict.refused and not _alive(where):
                    return


def _alive(device: torch.device) -> bool:
    """Whether the device still answers: after a fault it never does in this process."""
    try:
        return torch.ones(1, device=device).add(1).item() == 2
    except RuntimeError:
        return False


def _say(answers: BinaryIO, what: bytes) -> None:
    answers.write(what + b"\n")
    answers.flush()


def written(task: Task, values: Sequence[Tensor] | None = None) -> SandboxTask:
    """The task as the process is told of it. `values`: what it reads on the example, which are sent
    if they are few enough."""
    kernel = task.kernel
    assert kernel is not None
    generated = isinstance(kernel.variant, Variant)
    program = unnamed(kernel.body, kernel.variant) if generated else None
    return SandboxTask(task, kernel.source, program, _sent(values))


def _sent(values: Sequence[Tensor] | None) -> tuple[str, ...] | None:
    if values is None or sum(value.nbytes for value in values) > SENT:
        return None
    flat = (bytes_of(value.cpu()) for value in values)
    return tuple(base64.b64encode(bytes(data.numpy())).decode() for data in flat)


def values_told(asked: SandboxTask) -> list[Tensor] | None:
    """The values that came with a task."""
    if asked.values is None:
        return None
    values = []
    for value, text in zip(asked.task.body.inputs, asked.values, strict=True):
        data = torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
        values.append(data.view(value.type.dtype).reshape(value.type.shape))
    return values


def read(asked: SandboxTask) -> Task:
    """The task that `written` told of, with its kernel's text."""
    kernel = asked.task.kernel
    assert kernel is not None
    if asked.program is not None:
        learn(kernel.body, kernel.variant, asked.program)
    return replace(asked.task, kernel=replace(kernel, source=asked.source))

"""Operator timing: what new operators take, each run once, as published searches have it.

    pieces --those that nobody has run--> kernels chosen for all in one batch --> timed --> by text

Kernels chosen and times measured are in the cache, as those of any other task. TASO and AutoGraph
define the cost of a graph over measured operators (SOSP 2019, section 5; AAAI 2023, section 3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from anabranch.costs import costs_of
from anabranch.deadline import TIME
from anabranch.errors import AnabranchError
from anabranch.ir.domains import ANY, domains
from anabranch.ir.graph import Graph
from anabranch.ir.inputs import drawn
from anabranch.ir.task import Task, TaskGraph
from anabranch.memory import pack
from anabranch.search.cost.task_cuts import TaskPiece
from anabranch.trace import Trace
from anabranch.tuning.build import tuner_of
from anabranch.tuning.job import Job

OPERATORS = "operators"


class OperatorTimes:
    """Times pieces; each is asked for once, however many searches meet it. `job.deadline`: when it
    is over, nothing more is timed."""

    def __init__(self, job: Job) -> None:
        self._job = job
        prepare, quiet = partial(pack, spec=job.target.spec), Trace(quiet=True)
        asked = job.target, prepare, job.cache, quiet, job.deadline, TIME.kernel_s
        self._costs = costs_of(*asked, cold=job.cold)
        self._us_of: dict[str, float | None] = {}

    def __call__(self, pieces: Sequence[TaskPiece]) -> Mapping[str, float]:
        """Microseconds by text, of those that run and that there was time for."""
        new = {piece.text: piece.task for piece in pieces if piece.text not in self._us_of}
        if new and not self._job.deadline.over():
            with self._job.trace.stage("search.time"):
                self._us_of.update(self._timed(new))
            why = f"{sum(us is not None for us in self._us_of.values())} timed, each once"
            self._job.trace.add("applied", "search", "new operators", why)
        asked = {piece.text: self._us_of.get(piece.text) for piece in pieces}
        return {text: us for text, us in asked.items() if us is not None}

    def _timed(self, new: Mapping[str, Task]) -> dict[str, float | None]:
        """Of these; None of one that has no kernel, or that nobody could measure."""
        target, bodies = self._job.target, [task.body for task in new.values()]
        if not target.spec.simulated:  # where nothing runs, there is nowhere to draw numbers
            bodies = [with_numbers(body, target.device) for body in bodies]
        batch = [Task(f"operator{i}", body) for i, body in enumerate(bodies)]
        tasks = TaskGraph(OPERATORS, (), (), tuple(batch), (), ())
        try:
            chosen = tuner_of(self._job).alone(tasks, self._costs).tasks.tasks
        except AnabranchError:
            if len(new) == 1:
                return dict.fromkeys(new)
            alone = [self._timed({text: task}) for text, task in new.items()]
            return {text: us for times in alone for text, us in times.items()}
        return dict(zip(new, map(self._us, chosen), strict=True))

    def _us(self, task: Task) -> float | None:
        """What it takes, None where that was not measured."""
        cost = self._costs.task(task)
        return None if cost.source == "estimated" else cost.us


def with_numbers(body: Graph, device: torch.device | None) -> Graph:
    """The body; what rewrites will compute ahead and nobody has computed yet has drawn numbers, by
    which its kernels are checked and timed."""
    bounds = domains(body)
    held = tuple(
        replace(constant, value=drawn(constant.type, seed, device, bounds.get(constant.name, ANY)))
        if constant.value is None
        else constant
        for seed, constant in enumerate(body.constants)
    )
    return replace(body, constants=held)

"""One plan launched in many ways: its memory once, and a graph for each way.

    plan --load--> the first way: places, weights, warm-ups, a graph
                   | again, for modes (e, none, ...): a graph, and kernels seen before as they are

A search for modes tries hundreds of ways that differ in kernels alone. Loading each anew took
longer than timing it: 13 ms for thirty tasks, 35 for a hundred, 200 for seven hundred.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.errors import TargetError
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Executable, Target
from anabranch.ir.task import Task
from anabranch.ir.variant import PdlMode
from anabranch.tuning.launch.pdl import in_modes

Modes = tuple[PdlMode | None, ...]
"""A mode for each task, None for those launched in the ordinary way."""


class LoadedVariants:
    """A plan on a target. `first`: as it is launched in the modes that it was made with, None where
    that does not run as a graph."""

    def __init__(self, plan: Plan, modes: Modes, target: Target) -> None:
        self._plan, self._target = plan, target
        self._tasks: dict[tuple[int, PdlMode | None], Task] = {}
        self.first = self._graph(None, modes)

    def of(self, modes: Modes) -> Executable | None:
        """The plan in these modes, a mode for each task; None where it does not run as a graph."""
        assert self.first is not None, "without a first way there is none beside it"
        return self._graph(self.first, modes)

    def _graph(self, first: Executable | None, modes: Modes) -> Executable | None:
        plan = self._in_modes(modes)
        try:
            run = self._target.again(first, plan) if first else self._target.load(plan)
        except TargetError:
            return None
        return None if run.failure else run

    def _in_modes(self, modes: Modes) -> Plan:
        """Each task in each mode is written once."""
        whole = self._plan.tasks
        wanted = [(at, mode) for at, mode in enumerate(modes) if (at, mode) not in self._tasks]
        for at, mode in wanted:
            alone = replace(whole, tasks=(whole.tasks[at],))
            (self._tasks[at, mode],) = in_modes(alone, (mode,)).tasks
        tasks = tuple(self._tasks[at, mode] for at, mode in enumerate(modes))
        return replace(self._plan, tasks=replace(whole, tasks=tasks))

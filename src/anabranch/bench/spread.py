"""Cells of a benchmark over workers: each is one job, which one worker times, alone on its GPU.

    cells a b c d -> worker 0: a, d     worker 1: b, c     -> (0, gpu, rows), (2, ..), (1, ..), ..

The largest networks begin first: one that is begun last would have all other workers wait for it.
Who asks puts cells in the order of the matrix. A cell that two workers died of has the rows that
`failed` makes of the sentence; what a cell raises is raised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.deadline import ENDLESS, Deadline
from anabranch.models.load import size_of
from anabranch.trace import Trace
from anabranch.tuning.workers.job import Done, JobRefusal, Undone, WorkerJob, value_of
from anabranch.tuning.workers.pool import WorkerPool

CellRows = Sequence[Any]
"""Of dataclasses, all of one class."""
CellAnswer = tuple[int, str, CellRows | None]
"""The number of a cell, the GPU it was on, and its rows; None where it was not begun."""


@dataclass(frozen=True, slots=True)
class CellSpread:
    """How cells are done by workers. `rows_of(here, *args, cell)`: a function of a module;
    `failed`: the rows of a cell of which workers died. `until`: when no more is begun; without a
    stop of its own the first Ctrl-C is one of the cells that run."""

    pool: WorkerPool
    rows_of: Callable[..., CellRows]
    args: tuple[Any, ...]
    failed: Callable[[Any, str], CellRows]
    until: Deadline = ENDLESS

    def answers(
        self, cells: Sequence[Any], label: Callable[[Any], str], trace: Trace
    ) -> Iterator[CellAnswer]:
        """One for each cell, as they come."""
        jobs = [
            WorkerJob(str(number), self.rows_of, (*self.args, cells[number]), label(cells[number]))
            for number in self._longest_first(cells)
        ]
        asks = self.until.stop is None
        for done in self.pool.outcomes(jobs, trace, self.until, asks):
            number = int(done.key)
            if isinstance(done, JobRefusal):
                yield number, "", self.failed(cells[number], str(done.refused))
            elif isinstance(done, Undone):
                yield number, "", None
            else:
                gpu = done.gpu if isinstance(done, Done) else ""
                yield number, gpu, value_of(done)

    def _longest_first(self, cells: Sequence[Any]) -> list[int]:
        """The numbers of the cells as they are begun: those whose size nobody knows, then the
        largest networks, each in the order given. The workers start meanwhile."""
        numbers = list(range(len(cells)))
        if len(cells) <= self.pool.size:
            return numbers
        self.pool.start()
        size = {name: size_of(name) for name in dict.fromkeys(cell[0] for cell in cells)}
        sizes = [size[cell[0]] for cell in cells]
        return sorted(numbers, key=lambda number: -(sizes[number] or math.inf))


def spread_over(
    pool: WorkerPool | None,
    rows_of: Callable[..., CellRows],
    args: tuple[Any, ...],
    failed: Callable[[Any, str], CellRows],
    until: Deadline = ENDLESS,
) -> CellSpread | None:
    """How cells are done by these workers, None without any."""
    return None if pool is None else CellSpread(pool, rows_of, args, failed, until)

"""Precise times, taken while others still try kernels: a body's, once all its kernels were tried.

    sandbox, or workers   body a   body b   body c   body d ...         rough times
    caller                engines  engines  a        b, c               precise times, and checks
    caller, or workers                                       rest: d    when all was tried

What decides is asked as if it were asked at the end: the finalists of one body, side by side, on
one GPU. Only when that is done differs: it would else begin when the last kernel has been tried,
and take as long again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.task import Task
from anabranch.trace import Trace
from anabranch.tuning.halving import TrialTimer, successive_halving
from anabranch.tuning.verdict import Verdict

TOGETHER = 24
"""Candidates that are worth a trial: some ten of them are finalists, which are held and timed
together. Trials of 64 took 2 to 5 s on an H200, for which workers waited for their next job."""


BodyTimed = Callable[[Sequence[Task], Sequence[Cost | None]], object]


class EarlyTimes:
    """The times of some tasks. `verdict_of`: what became of the task at a position in the sandbox,
    None as long as nobody knows; of a library's kernel, which none is asked of, a verdict that says
    nothing. `timed`: hears of the tasks of a body and their costs, None of what was refused, while
    there is something to wait for. `last`: the trial of what is left at the end, where that is
    another one."""

    def __init__(
        self,
        tasks: Sequence[Task],
        trial: TrialTimer,
        target: Target,
        verdict_of: Callable[[int], Verdict | None],
        trace: Trace,
        timed: BodyTimed | None = None,
        last: TrialTimer | None = None,
    ) -> None:
        self._timed, self._last = timed, last or trial
        self._untold = list[list[int]]()
        self._tasks, self._trial, self._target = tasks, trial, target
        self._verdict_of, self._trace = verdict_of, trace
        self._bodies: dict[str, list[int]] = {}
        for i, task in enumerate(tasks):
            self._bodies.setdefault(structure_text(task.body), []).append(i)
        self._unbuilt = dict(self._bodies)
        self._costs: dict[int, Cost | None] = {}

    def step(self) -> bool:
        """Time some bodies that are ready, or build the engines of one; whether there is something
        else to do at once."""
        ready = self._ready()
        enough = sum(len(self._bodies[body]) for body in ready) >= TOGETHER
        if enough or (ready and not self._unbuilt):
            self._untold += [self._bodies[body] for body in ready]
            self._time(ready, self._trial)
        elif self._untold and self._timed is not None:
            positions = self._untold.pop()
            with self._trace.stage("tuning.check"):
                self._timed(
                    [self._tasks[i] for i in positions], [self._costs[i] for i in positions]
                )
        elif self._unbuilt:
            self._build(
                ready[0] if ready and ready[0] in self._unbuilt else next(iter(self._unbuilt))
            )
        else:
            return False
        return True

    def rest(self) -> list[Cost | None]:
        """The costs of all tasks, None for what was refused; what has none yet is timed now."""
        self._time(list(self._bodies), self._last)
        return [self._costs[i] for i in range(len(self._tasks))]

    def _ready(self) -> list[str]:
        """The first bodies of which all candidates were tried, as many as are worth a trial."""
        ready, count = list[str](), 0
        for body, positions in self._bodies.items():
            if count < TOGETHER and all(map(self._verdict_of, positions)):
                ready.append(body)
                count += len(positions)
        return ready

    def _build(self, body: str) -> None:
        kernels = [self._tasks[i].kernel for i in self._unbuilt.pop(body)]
        wanted = [kernel for kernel in kernels if kernel is not None and not kernel.source]
        if wanted:
            with self._trace.stage("tuning.engines"):
                self._target.prepare(wanted)

    def _time(self, bodies: Sequence[str], trial: TrialTimer) -> None:
        """What is timed is neither timed nor built again."""
        positions = sorted(i for body in bodies for i in self._bodies.pop(body))
        for body in bodies:
            self._unbuilt.pop(body, None)
        verdicts = {i: self._verdict_of(i) for i in positions}
        left = [i for i in positions if not (verdict := verdicts[i]) or not verdict.refused]
        costs = ((at, verdicts[i]) for at, i in enumerate(left))
        rough = {at: v.cost for at, v in costs if v is not None and v.cost is not None}
        with self._trace.stage("tuning.time"):
            timed = successive_halving([self._tasks[i] for i in left], rough, trial)
        self._costs |= dict.fromkeys(positions, None) | dict(zip(left, timed, strict=True))

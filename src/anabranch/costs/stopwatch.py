"""Times what may fail: executables to be built -> costs, until a deadline.

All that can be built are timed in one interleaved batch. If the batch fails, each is timed alone,
to see which is to blame. A candidate that cannot run is no error, whatever it raises: it is an
event, and None. So is one that is left out because the time is over while others are built.

    a, b and c take much memory      a and b are timed and let go, then c and d are built
    c runs out of memory             what nobody needs is given back, c is built again
    it does so once more             a and b are timed and let go, then c and d are built
    and with nothing else held       c is not measured; the next process may do better

A plan whose graph could not be captured runs launch by launch, and may take ten times as long. That
may be chance (of one plan of RandWire, once): it is loaded again, and where that does not help, an
event says that it was timed so, and its cost has the source "launched". Such a cost is for this
process alone: the next may capture the plan.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from anabranch.deadline import Deadline
from anabranch.errors import VerifyError
from anabranch.ir.protocols import Cost, Executable, Target
from anabranch.trace import Trace

MaybeCosts = list[Cost | None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """Something to measure: its name in events, how to make it ready, what to say of it if there
    is no time to measure it."""

    what: str
    build: Callable[[], Executable]
    estimate: Callable[[], Cost]


@dataclass(frozen=True, slots=True)
class _NoRoom:
    """Memory ran out while a trial was built, for itself or for its graph: what was said then."""

    why: str


class Stopwatch:
    """Times trials on a target. `until`: when it is over, nothing more is begun; `each`: seconds
    for one trial."""

    def __init__(self, target: Target, trace: Trace, until: Deadline, each: float) -> None:
        self.until = until
        self.settled = True
        """Whether all that is not known would not be known again: nothing was left out for want
        of time or of memory."""
        self._target, self._trace, self._each = target, trace, each
        self._told = False
        self._capturable = True
        """Whether no plan failed to be captured twice, for another reason than want of memory: the
        next ones are not tried again."""

    def measure(
        self, trials: Sequence[Trial], least: int = 0, room: float = math.inf
    ) -> MaybeCosts:
        """One cost for each trial, None where it failed; estimates if no time is left. `least`: of
        those that are compared, so many are measured all the same, the first among them; the others
        have None where the time ends. `room`: bytes; of those that hold more together, some are
        timed and let go before the next are built. All are let go before this returns."""
        if self.until.over() and not least:
            self.settled = False
            if not self._told:
                why = f"no time is left to measure: {trials[0].what} and others estimated"
                self._trace.add("warning", "costs", self._target.spec.name, why)
            self._told = True
            return [trial.estimate() for trial in trials]
        costs: MaybeCosts = [None] * len(trials)
        left = self._order(trials, least or len(trials))
        wanted = least or len(trials)
        while left:
            runs, left = self._built(trials, left, wanted, room)
            wanted -= len(runs)
            taken = self._time([trials[i] for i in runs], list(runs.values()))
            for i, cost in zip(runs, taken, strict=True):
                costs[i] = cost
            del runs  # their memory, before others are built
        return costs

    def _order(self, trials: Sequence[Trial], least: int) -> list[int]:
        """In which they are built: the first comes first, then what promises most."""
        order = list(range(len(trials)))
        if least < len(trials) and self.until.left() < math.inf:
            order[1:] = sorted(order[1:], key=lambda i: trials[i].estimate().us)
        return order

    def _built(
        self, trials: Sequence[Trial], order: Sequence[int], least: int, room: float
    ) -> tuple[dict[int, Executable], list[int]]:
        """Executables by the positions of their trials, `least` of them or as many as there is time
        for: to build the plan of a large network takes most of a second. And the positions that
        there is no memory for beside these, or no room."""
        runs: dict[int, Executable] = {}
        held: dict[int, int] = {}
        pools = 0
        for at, i in enumerate(order):
            if sum(held.values()) + pools >= room:
                return runs, list(order[at:])
            if self.until.over() and len(runs) >= least:
                self.settled = False
                self._refuse(trials[i], "no time is left")
                continue
            run = self._loaded(trials[i])
            if isinstance(run, _NoRoom) and runs:
                why = f"timed apart from {len(runs)} others, for want of memory: {run.why}"
                self._trace.add("fallback", "costs", trials[i].what, why)
                return runs, list(order[at:])
            if isinstance(run, _NoRoom):
                self.settled = False
                self._refuse(trials[i], run.why)
            elif run is not None:
                runs[i] = run
                memory = run.held()
                pools += memory.pool
                for places in memory.places.values():
                    held |= places
        return runs, []

    def _loaded(self, trial: Trial) -> Executable | _NoRoom | None:
        run = self._with_room(trial)
        if run is None or isinstance(run, _NoRoom) or not lacks_graph(run):
            return run
        if self._capturable:
            why = f"no graph, loaded again: {run.failure}"
            self._trace.add("fallback", "costs", trial.what, why)
            del run  # its memory
            run = self._with_room(trial)
            if run is None or isinstance(run, _NoRoom) or not lacks_graph(run):
                return run
            self._capturable = False
        why = f"no graph, timed as it is launched one by one: {run.failure}"
        self._trace.add("fallback", "costs", trial.what, why)
        return run

    def _with_room(self, trial: Trial) -> Executable | _NoRoom | None:
        """The trial, built; where memory runs out once more, when all is given back that is not in
        use."""
        run = self._once(trial)
        if isinstance(run, _NoRoom):
            gc.collect()
            self._target.give_back()
            run = self._once(trial)
        return run

    def _once(self, trial: Trial) -> Executable | _NoRoom | None:
        try:
            run = trial.build()
        except VerifyError:
            raise
        except Exception as failure:
            if _out_of_memory(str(failure)):
                return _NoRoom(_told(failure))
            self._refuse(trial, _told(failure))
            return None
        if lacks_graph(run) and _out_of_memory(run.failure):
            return _NoRoom(f"no graph: {run.failure}")
        return run

    def _time(self, trials: Sequence[Trial], runs: Sequence[Executable]) -> MaybeCosts:
        """All runs interleaved; if that fails, one by one, to see which is to blame."""
        if not runs:
            return []
        try:
            costs: MaybeCosts = list(self._target.time(runs, self._each * len(runs)))
        except VerifyError:
            raise
        except Exception:
            costs = [
                self.attempt(trial, partial(self._alone, run))
                for trial, run in zip(trials, runs, strict=True)
            ]
        return [
            replace(cost, source="launched") if cost is not None and lacks_graph(run) else cost
            for cost, run in zip(costs, runs, strict=True)
        ]

    def _alone(self, run: Executable) -> Cost:
        return self._target.time([run], self._each)[0]

    def attempt(self, trial: Trial, act: Callable[[], T]) -> T | None:
        """What `act` returns; None, and an event, where it fails. A candidate that cannot run is
        no error, whatever it raises, unless it shows a defect of ours."""
        try:
            return act()
        except VerifyError:
            raise
        except Exception as failure:
            if _out_of_memory(str(failure)):
                self.settled = False
            self._refuse(trial, _told(failure))
            return None

    def _refuse(self, trial: Trial, why: str) -> None:
        self._trace.add("refused", "costs", trial.what, f"not measured: {why}")


def lacks_graph(run: Executable) -> bool:
    """Whether a graph was wanted of it and could not be had."""
    return bool(run.failure) and run.plan.graph


def _out_of_memory(said: str) -> bool:
    return "out of memory" in said.lower()


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"

"""Times what may fail: executables to be built -> costs, until a deadline.

All that can be built are timed in one interleaved batch. If the batch fails, each is timed alone,
to see which is to blame. A candidate that cannot run is no error, whatever it raises: it is an
event, and None. So is one that is left out because the time is over while others are built.

A plan whose graph could not be captured runs launch by launch, and may take ten times as long. That
may be chance (of one plan of RandWire, once): it is loaded again, and where that does not help, an
event says that it was timed so, and its time is for this process alone: the next may capture it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class Stopwatch:
    """Times trials on a target. `until`: when it is over, nothing more is begun; `each`: seconds
    for one trial."""

    def __init__(self, target: Target, trace: Trace, until: Deadline, each: float) -> None:
        self.until = until
        self.settled = True
        """Whether all that is not known would not be known again: nothing was left out for want
        of time or of memory."""
        self._target, self._trace, self._each = target, trace, each
        self.without_graph = frozenset[int]()
        """Which of the trials of the last `measure` ran launch by launch for want of a graph."""
        self._told = False
        self._capturable = True
        """Whether no plan failed to be captured twice: the next ones are not tried again."""

    def measure(self, trials: Sequence[Trial], least: int = 0) -> MaybeCosts:
        """One cost for each trial, None where it failed; estimates if no time is left. `least`: of
        those that are compared, so many are measured all the same, the first among them; the others
        have None where the time ends."""
        self.without_graph = frozenset()
        if self.until.over() and not least:
            self.settled = False
            if not self._told:
                why = f"no time is left to measure: {trials[0].what} and others estimated"
                self._trace.add("warning", "costs", self._target.spec.name, why)
            self._told = True
            return [trial.estimate() for trial in trials]
        runs = self._built(trials, least or len(trials))
        lacking = (i for i, run in enumerate(runs) if run is not None and _lacks_graph(run))
        self.without_graph = frozenset(lacking)
        return self._time(trials, runs)

    def _built(self, trials: Sequence[Trial], least: int) -> list[Executable | None]:
        """The executables, `least` of them or as many as there is time for: to build the plan of a
        large network takes most of a second. The first comes first, then what promises most."""
        runs: list[Executable | None] = [None] * len(trials)
        order = list(range(len(trials)))
        if least < len(trials) and self.until.left() < math.inf:
            order[1:] = sorted(order[1:], key=lambda i: trials[i].estimate().us)
        for i in order:
            if self.until.over() and len(runs) - runs.count(None) >= least:
                self.settled = False
                self._refuse(trials[i], "no time is left")
            else:
                runs[i] = self._loaded(trials[i])
        return runs

    def _loaded(self, trial: Trial) -> Executable | None:
        run = self.attempt(trial, trial.build)
        if run is None or not _lacks_graph(run):
            return run
        if self._capturable:
            why = f"no graph, loaded again: {run.failure}"
            self._trace.add("fallback", "costs", trial.what, why)
            del run  # its memory
            run = self.attempt(trial, trial.build)
            if run is None or not _lacks_graph(run):
                return run
            self._capturable = False
        why = f"no graph, timed as it is launched one by one: {run.failure}"
        self._trace.add("fallback", "costs", trial.what, why)
        return run

    def _time(self, trials: Sequence[Trial], runs: Sequence[Executable | None]) -> MaybeCosts:
        """All runs interleaved; if that fails, one by one, to see which is to blame."""
        good = [run for run in runs if run is not None]
        if not good:
            return [None] * len(runs)
        try:
            costs = iter(self._target.time(good, self._each * len(good)))
            return [next(costs) if run is not None else None for run in runs]
        except VerifyError:
            raise
        except Exception:
            return [
                None if run is None else self.attempt(trial, partial(self._alone, run))
                for trial, run in zip(trials, runs, strict=True)
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
            if "out of memory" in str(failure).lower():
                self.settled = False
            self._refuse(trial, f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}")
            return None

    def _refuse(self, trial: Trial, why: str) -> None:
        self._trace.add("refused", "costs", trial.what, f"not measured: {why}")


def _lacks_graph(run: Executable) -> bool:
    """Whether a graph was wanted of it and could not be had."""
    return bool(run.failure) and run.plan.graph

"""SearchLimits: how long a search may look, in work that is counted, or in time if need be.

    a price 1.5 ms, a node of a graph that is built 8 ms, a task of a part timing 0.4 s ...
    work    30 s: so much of it is the same on every machine, so what a search finds is, too
    seconds 45 s: nothing is begun that, by the pace so far, would not end within them, but for
                  the first candidate, which may have some slack

Work is counted in seconds of a usual machine with a GPU, on the high side, so that the clock rarely
has a say. Where it has, the answer depends on the machine's speed, and an event says so.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from anabranch.deadline import ENDLESS, TIME, CutShort, Deadline
from anabranch.ir.graph import Graph
from anabranch.search.engine.pricing import Counted
from anabranch.trace import Trace

WorkKind = Literal["survey", "price", "whole", "part timing", "build"]

ON_PROCESSOR: tuple[WorkKind, ...] = ("survey", "price", "whole")
FEWEST_PRICES = 500
"""Prices without which a search of a network is not worth its beginning."""

WORK_DONE = "the work that it may do is done; search_seconds gives more"
STOPPED = "stopped as asked, with {left:.0f}% of its work undone; compile again to go on"
TOO_SLOW = (
    "stopped by the clock, with {left:.0f}% of its work undone: a faster machine may find another "
    "graph; search_seconds gives more"
)


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """`measured`: candidates near one graph that are run; `every`: these are what one search ends
    with, as published, and not the best one of as many; `promise`: the part of the time that a
    candidate must be predicted to save, to be run; `stops`: where all parts together are promised
    to save less, none is timed and no whole is searched for; `work`: in seconds of a usual machine,
    None for as much as it takes; `until`: when it ends on this one at the latest; `each`: the
    seconds that building a candidate is expected to take, as long as none was built; `slack`: by so
    many this one may end later."""

    measured: int = 3
    promise: float = 0.005
    every: bool = False
    stops: bool = False
    work: float | None = None
    until: Deadline = ENDLESS
    each: float = 0.0
    slack: float = 0.0


class Meter:
    """What is left of the limits of a search. `stopped`: why something was not begun, "" so far;
    `cause`: of that, if it was no want of work; `undone`: the part of the work that was left
    then."""

    def __init__(self, limits: SearchLimits) -> None:
        self.stopped = ""
        self.cause: CutShort = ""
        self.undone = 0.0
        self._all = self._work = limits.work
        self._until = limits.until
        self._each, self._slack = limits.each, limits.slack
        self._pace: dict[WorkKind, float] = {}
        self._spent: dict[WorkKind, float] = {}

    def affords(self, kind: WorkKind, work: float, then: float = 0.0) -> bool:
        """Whether there is enough left for this, and for building a candidate of so much work
        `then`."""
        if self._work is not None and work + then > self._work:
            self.stopped = self.stopped or WORK_DONE  # the clock may have had its say before
        elif self.late(kind, work, then):
            self.stopped = self._cut()
        else:
            return True
        return False

    def late(self, kind: WorkKind, work: float, then: float = 0.0) -> bool:
        """Whether it would not end in time."""
        return self.deadline(then).earlier(self._expected(kind, work)).over()

    def prices(self, most: int, then: float = 0.0) -> int:
        """So many prices may be asked for, of these, if a candidate is to be built then."""
        if self._work is None:
            return most
        return max(0, min(most, int((self._work - then) / TIME.work_price_s)))

    def tasks(self, most: int, runs: int, then: float) -> int:
        """So many tasks may be compiled for timing parts in so many runs, if what paid is to be
        built then."""
        if self._work is not None:
            most = max(
                0,
                min(
                    most,
                    int((self._work - runs * TIME.work_part_run_s - then) / TIME.work_part_task_s),
                ),
            )
        while most and self.late(
            "part timing", most * TIME.work_part_task_s + runs * TIME.work_part_run_s, then
        ):
            most, self.stopped = most // 2, self._cut()
        return most

    def deadline(self, then: float) -> Deadline:
        """By when a search must end, if a candidate is to be built then."""
        return self._until.earlier(self._expected("build", then)) if then else self._until

    def left(self) -> float:
        """Seconds."""
        return self._until.left()

    def cut_short(self) -> None:
        """Something ended at its deadline, and not with its work."""
        self.stopped = self._cut()

    @contextmanager
    def spending(self, kind: WorkKind, work: Callable[[], float]) -> Iterator[None]:
        """What is done here has this work, known once it is done."""
        begun = time.monotonic()
        try:
            yield
        finally:
            done, seconds = work(), time.monotonic() - begun
            self._spent[kind] = self._spent.get(kind, 0.0) + seconds
            if self._work is not None:
                self._work -= done
            if done:
                told = max(done, TIME.pace_known_s) if kind in ON_PROCESSOR else done
                self._pace[kind] = seconds / told

    def tell(self, trace: Trace, name: str) -> None:
        """Say what the time went to, and why nothing more was begun, if that is so."""
        for kind, seconds in self._spent.items():
            part = f"search.{kind}"
            trace.add("stage", part, part, seconds=round(seconds, 4))
        if self.stopped:
            trace.add("refused", "search", name, self.stopped)

    def _expected(self, kind: WorkKind, work: float) -> float:
        """Seconds within the limit, by the pace of the last of its kind; of the first, by that of
        all that is done on the processor alone."""
        if kind in self._pace:
            return work * self._pace[kind]
        usual = work * max(1.0, *(self._pace.get(done, 0.0) for done in ON_PROCESSOR))
        return max(0.0, max(usual, self._each) - self._slack) if kind == "build" else usual

    def _cut(self) -> str:
        whole = self._all or 0.0
        self.undone = max(0.0, self._work or 0.0) / whole if 0 < whole < math.inf else 1.0
        self.cause = "stop" if self._until.stopped() else "budget"
        said = STOPPED if self.cause == "stop" else TOO_SLOW
        return said.format(left=100 * self.undone)


def surveying(graph: Graph) -> float:
    """The work to find out the parts of a graph."""
    return TIME.work_survey_node_s * len(graph.nodes)


def building(graph: Graph) -> float:
    """The work to build a graph and race it."""
    return TIME.work_build_node_s * len(graph.nodes)


def looking(graph: Graph, looks: int) -> float:
    """The work to look at a whole graph so often: for the places of a rule, at one of them to
    rewrite it there, or for its price."""
    return TIME.work_whole_node_s * len(graph.nodes) * looks


def pricing(*asked: Counted) -> float:
    """The work of all prices that these were asked for."""
    return TIME.work_price_s * sum(counted.asked for counted in asked)

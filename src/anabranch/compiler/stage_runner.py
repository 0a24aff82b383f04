"""What stands around stages: time as an event, the noun as a file, where to stop; and what earlier
processes know, which refuses a graph, answers for operators, or takes the place of several stages.

    captured, seen = stage("capture", capture, job)      # what capture(job) returns
      -> one event; 00_capture.txt, if somebody wants dumps; Stopped, if it is the last one wanted

The pipeline has one runner for each attempt, so that what holds for a stage is said once and a
stage is a function of nouns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar, TypeVarTuple

from anabranch.compiler.dump import dump
from anabranch.frontend.captured import Captured
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph
from anabranch.ir.type_cache import Answers
from anabranch.trace import Event
from anabranch.tuning.job import Job

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NO_GRAPH = Graph("", (), (), (), ())
"""Until one is captured."""


class Stopped(Exception):
    """The stage to stop after has run. `noun`: what it made."""

    def __init__(self, noun: Any) -> None:
        super().__init__("stopped after a stage")
        self.noun = noun


class StageRunner:
    """Runs the stages of one attempt. `captured`: the model's graph, once there is one."""

    def __init__(
        self,
        job: Job,
        nouns: Mapping[str, Callable[[Any], Any]],
        stop_after: str | None,
        refuse: Callable[[Captured], None] = lambda captured: None,
    ) -> None:
        """`nouns`: by stage, how to find its noun in what it returns; `refuse`: raises where a
        graph is known to become something else."""
        self.captured: Captured | None = None
        self._refuse, self._cache, self._answers = refuse, job.cache, Answers(None, NO_GRAPH)
        self._trace, self._folder = job.trace, job.options.dump
        self._nouns, self._stop_after = nouns, stop_after
        self._begun, self._begins = len(job.trace.events), dict[str, int]()
        self._ends, self._dumped = dict[str, int](), 0

    def __call__(
        self,
        name: str,
        make: Callable[[*Ts], T],
        *args: *Ts,
        pause_gc: bool = False,
    ) -> T:
        """What `make` returns. Raises Stopped after the last stage that is wanted."""
        self._begins[name] = len(self._trace.events)
        with self._trace.stage(name), uncollected() if pause_gc else nullcontext():
            result = make(*args)
        self._ends[name] = len(self._trace.events)
        self.passed(name, result)
        return result

    def passed(self, name: str, result: Any) -> None:
        """Dump what a stage made, and stop if it is the last one wanted; called by itself where
        the stage's work was recalled as a part of more."""
        noun = self._nouns[name](result)
        if isinstance(noun, Captured):
            self.captured, self._answers = noun, Answers(self._cache, noun.graph)
        if self._folder is not None:
            self._dumped += dump(self._folder, f"{self._dumped:02}_{name}.txt", noun)
        if name == self._stop_after:
            raise Stopped(noun)
        if isinstance(noun, Captured):
            self._refuse(noun)

    def recalled_or(
        self,
        first: str,
        last: str,
        recalled: T | None,
        decide: Callable[[*Ts], T],
        *args: *Ts,
    ) -> tuple[T, list[Event] | None]:
        """The decisions of the stages from `first` to `last` that earlier processes made, with
        None; else what `decide`, which runs them, decides, and their events. What operators answer
        meanwhile is recalled, and kept for later processes."""
        if recalled is not None:
            self.passed(last, recalled)
            return recalled, None
        self.recall_answers()
        decided = decide(*args)
        self._answers.keep()
        return decided, self.events_of(first, last)

    def recall_answers(self) -> None:
        """Take over what operators answered when the captured graph was compiled before."""
        self._answers.recall()

    def wants(self, *stages: str) -> bool:
        """Whether somebody looks at what one of these stages makes."""
        return self._folder is not None or self._stop_after in stages

    def span(self, first: str, last: str) -> tuple[int, int]:
        """Where in the trace the events of these stages, and of all between, begin and end."""
        return self._begins[first], self._ends[last]

    def events_of(self, first: str, last: str) -> list[Event]:
        """The events of these stages, and of all between."""
        begin, end = self.span(first, last)
        return self._trace.events[begin:end]

    @property
    def events(self) -> list[Event]:
        """Of this attempt."""
        return self._trace.events[self._begun :]

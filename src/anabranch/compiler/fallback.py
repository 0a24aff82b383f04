"""Where a plan computes something else, or does not fit: the next attempt, which does less.

    as asked --does not fit--> values computed again, fewer and fewer bytes live at once
    as asked --wrong--> nothing recalled --wrong--> no search --> library kernels --> as captured
                   +--not a number elsewhere--> exact=True --wrong---^

All attempts have one deadline and one clock: what the first took is time that the next one no
longer has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from anabranch.compiler.plan_cache import KnownError
from anabranch.compiler.stage_runner import StageRunner
from anabranch.deadline import TIME
from anabranch.errors import MemoryLimitError, NumericsError, TargetError
from anabranch.frontend.captured import Captured
from anabranch.options import Options
from anabranch.search.driver import predicts_graph
from anabranch.trace import RECALLED, Event
from anabranch.tuning.job import Job
from anabranch.tuning.verify.plan import OTHER_CLASS, WRONG_CAPTURE

T = TypeVar("T")

EXACT: dict[str, Any] = {"search": "none", "folding": "exact"}
LIBRARY: dict[str, Any] = {**EXACT, "kernels": "library", "horizontal_fusion": "none"}
AS_CAPTURED: dict[str, Any] = {
    **{**LIBRARY, "fuel": 0, "scheduler": "sequential"},
    **{"channels_last": False, "check": 0},
}
CAREFUL = {
    "without a search, and no weight rounded anew": EXACT,
    "with library kernels alone": LIBRARY,
    "as captured, one library call after another": AS_CAPTURED,
}
"""Where an optimisation went wrong: options under which less and less is done, at last nothing."""
SPECIAL = "without the rules that change what NaN, infinities or signs of zero give"
SHRINK_RATIO = 0.97
"""The largest part of the bytes alive at once in a plan that did not fit that the next plan may
have."""
LAUNCHED: dict[str, Any] = {"cuda_graph": False, "scheduler": "sequential", "pdl": "off"}
BY_EACH_CALL = "launched by each call, for operators that are not torch's may not be captured"
"""Some launch on the default stream, whatever the current one is: no capture sees that."""
TORCHS = frozenset({"aten", "prims", "anabranch"})
"""Namespaces of operators that are known to launch on the current stream."""


def with_fallback(
    job: Job, attempt: Callable[[Job, StageRunner], T], runner: Callable[[Job], StageRunner]
) -> T:
    """What the first attempt returns that is not wrong. NumericsError where all are."""
    while True:
        stages = runner(job)
        try:
            return attempt(job, stages)
        except TargetError as failed:
            again = _as_it_was(job, failed, stages)
            if again is None:
                raise
        except NumericsError as wrong:
            again = _again(job, wrong, stages)
            if again is None:
                raise
        except MemoryLimitError as over:
            again = _with_less(job, over)
            if again is None:
                raise
        # Out here, nothing holds what the failed attempt has loaded.
        moment = max(job.deadline.moment, time.monotonic() + TIME.attempt_least_s)
        job = replace(again, deadline=replace(job.deadline, moment=moment))


def _as_it_was(job: Job, failed: TargetError, stages: StageRunner) -> Job | None:
    """The next attempt where a graph cannot be built that was taken by predicted times: with the
    graph as it was, which nobody has built yet. None where none was taken so."""
    taken = any(event.kind == "chosen" and event.where == "search" for event in stages.events)
    if job.options.strict or not taken or not predicts_graph(job):
        return None
    why = f"{failed.what}: compiled without a search"
    job.trace.add("fallback", "tuning", type(job.model).__name__, why)
    options = job.options.model_copy(update={"search": "none"})
    return replace(job, options=options, wanted=job.wanted or job.options)


def anything_recalled(job: Job, events: Iterable[Event]) -> bool:
    """Whether something that decides what a plan computes came from the cache."""
    return not job.anew and any(
        event.where in ("capture", "rewrite", "recall") and event.why == RECALLED
        for event in events
    )


def _again(job: Job, wrong: NumericsError, stages: StageRunner) -> Job | None:
    """The next attempt, None if there is none left: with nothing from the cache, if this one had
    something, else with less optimised."""
    name, is_known = type(job.model).__name__, isinstance(wrong, KnownError)
    careful = None if job.options.strict else more_careful(job, wrong, stages.captured)
    recalled = not is_known and anything_recalled(job, stages.events)
    if (careful is None and is_known) or recalled:
        job.trace.add("fallback", "verify", name, f"{wrong.what}: decided anew, without the cache")
        return replace(job, anew=True)
    if careful is None:
        return None
    how, options = careful
    job.trace.add("fallback", "verify", name, f"{wrong.what}: compiled {how}")
    return replace(job, options=options, wanted=job.wanted or job.options)


def _with_less(job: Job, over: MemoryLimitError) -> Job | None:
    """The next attempt where a plan did not fit: one in which fewer bytes live at once, or as few
    as can where even those are too many. None where nothing more can be computed again."""
    if over is job.over:
        return None
    live = over.may
    if over.counted is not None:
        live = min(
            int(over.counted * over.may / max(1, over.takes)), int(SHRINK_RATIO * over.counted)
        )
    live = max(1, live)
    why = f"{over.why}: values are computed again, {live:,} B may live at once"
    job.trace.add("fallback", "memory", type(job.model).__name__, why)
    return replace(job, live_bytes=live, over=over)


def more_careful(
    job: Job, wrong: NumericsError, captured: Captured | None
) -> tuple[str, Options] | None:
    """What to try next, and the options for it; None if there is nothing left. Where the capture
    itself is wrong, optimising less does not help, but rounding less may. `captured`: the graph, if
    there was one."""
    options, rungs = job.options, list(CAREFUL.items())
    rungs = rungs[-1:] if wrong.why == WRONG_CAPTURE else rungs
    rungs = [(SPECIAL, {"exact": True}), *rungs] if wrong.why == OTHER_CLASS else rungs
    nodes = captured.graph.nodes if captured is not None else ()
    if job.target.spec.kind == "cuda" and {n.op.partition(".")[0] for n in nodes} - TORCHS:
        # First of all: each less careful attempt would be captured just as wrongly.
        rungs = [(BY_EACH_CALL, LAUNCHED), *rungs]
    for how, update in rungs:
        more = options.model_copy(update=update)
        if more != options:
            return how, more
    return None

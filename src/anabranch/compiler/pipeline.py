"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> recompute -> recall -> foresee -> fusion -> tuning -> probe -> schedule
                                                              ^----------------------------'
        -> search -> horizontal_fusion -> memory -> load -> verify -> eager

`_stages` is the only place that knows the order. A stage is a function of nouns. `stage_runner` has
what stands around stages (time, dumps, where to stop, refusals, recalling and keeping), `fallback`
what is tried when one fails. The search closes the outer loop: it judges a rewritten graph by
running the stages from `fusion` to `schedule` on it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

from anabranch.compiler.compilation import Compilation
from anabranch.compiler.eager_candidate import beside_eager
from anabranch.compiler.fallback import with_fallback
from anabranch.compiler.stage_runner import StageRunner, Stopped
from anabranch.compiler.stages import (
    Decided,
    capture,
    foresee,
    fusion,
    load,
    memory,
    prove,
    recall,
    recompute,
    refuse_known_wrong,
    search,
)
from anabranch.costs.weights_read import uncached
from anabranch.errors import OptionError
from anabranch.frontend.observe import generators_kept
from anabranch.frontend.surroundings import neutral
from anabranch.schedule import scheduler
from anabranch.tuning.build import (
    probe,
    schedule,
    schedulers_of,
    simplified_or_recalled,
    tune,
)
from anabranch.tuning.horizontal.decide import horizontal_fusion
from anabranch.tuning.job import Job, with_samples
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.sandbox.spread import SpreadTrials

NOUNS: Mapping[str, Callable[[Any], Any]] = {
    "capture": itemgetter(0),
    "rewrite": lambda graph: graph,
    "recompute": lambda result: result[1] if result[0].again else None,
    "recall": lambda earlier: earlier.decided and earlier.decided.compiled,
    "foresee": lambda foreseen: foreseen.graph if foreseen.prediction else None,
    "fusion": itemgetter(-1),
    "tuning": attrgetter("selection"),
    "probe": attrgetter("tasks"),
    "schedule": attrgetter("choice"),
    "search": lambda result: result[0].graph,
    "horizontal_fusion": attrgetter("tasks"),
    "memory": attrgetter("compiled.plan"),
    "load": itemgetter(1),
    "verify": lambda compilation: compilation,
    "eager": lambda compilation: compilation,
}
"""The stages in order, and of each the noun in what it returns: what `stop_after` gives."""
STAGES = tuple(NOUNS)
INSIDE = STAGES[STAGES.index("foresee") : STAGES.index("memory")]
"""What these make is not recalled where all that was decided is."""


def compile_model(job: Job, stop_after: str | None = None) -> Any:
    """The Compilation, or the noun of the stage to stop after: any of STAGES, of the graph as it
    was before the search for stages before it."""
    if stop_after is not None and stop_after not in STAGES:
        raise OptionError(
            f"unknown stage {stop_after!r}", "no stage has this name", f"one of {', '.join(STAGES)}"
        )
    for name in schedulers_of(job.options):
        scheduler(name)
    # One deadline and one clock for all attempts.
    deadline = job.deadline.within(job.options.budget)
    job = replace(job, deadline=deadline, begun=time.monotonic())
    with neutral(), generators_kept(job.target.device):
        return _attempts(job, stop_after)


def _attempts(job: Job, stop_after: str | None) -> Any:
    return with_fallback(job, _attempt, partial(_runner, stop_after=stop_after))


def _runner(job: Job, stop_after: str | None) -> StageRunner:
    return StageRunner(job, NOUNS, stop_after, partial(refuse_known_wrong, job))


def _attempt(job: Job, stage: StageRunner) -> Any:
    others = None if job.workers is None else SpreadTrials(job.workers, job.options.tf32)
    with SandboxProcess(job.target, job.cache, others=others) as sandbox:
        try:
            return _stages(replace(job, sandbox=sandbox), stage)
        except Stopped as stopped:
            return stopped.noun


def _stages(job: Job, stage: StageRunner) -> Compilation:
    """The whole line. For a graph that an earlier process decided, the stages from `foresee` to
    `memory` are recalled as one."""
    captured, seen = stage("capture", capture, job, pause_gc=True)
    job = replace(job, cold=uncached(captured.graph, job.target.spec))
    here = with_samples(job, captured, captured.graph)
    ask, whole = stage.recall_answers, not stage.wants(*INSIDE)
    graph = stage("rewrite", simplified_or_recalled, here, captured.graph, ask, pause_gc=True)
    here, graph = stage("recompute", recompute, here, graph)
    earlier = stage("recall", recall, here, captured, graph, ask, whole, pause_gc=True)

    def decide(here: Job) -> Decided:
        # It returns no kernels and values on the device but the plan's: loading needs the room.
        begin = stage("foresee", foresee, here, earlier)
        line = with_samples(here, captured, begin.graph)
        cuts = stage("fusion", fusion, line, begin)
        tuned = stage("tuning", tune, line, captured, begin.graph, cuts)
        tuned = stage("probe", probe, line, captured, tuned)
        built = stage("schedule", schedule, line, tuned)
        span = stage.span("fusion", "schedule")
        built, path = stage("search", search, here, captured, graph, built, begin, span)
        built = stage("horizontal_fusion", horizontal_fusion, here, built)
        return stage("memory", memory, here, built, path)

    decided, decisions = stage.recalled_or("foresee", "memory", earlier.decided, decide, here)
    # What was decided anew left garbage that holds memory of the device: it may be collected.
    recalled, graphs = decisions is None, (graph, earlier.begin)
    compiled, run = stage("load", load, here, captured, graphs, decided.compiled, pause_gc=recalled)
    compilation = Compilation(captured, decided.path, compiled, run, ())
    rest = compilation, seen, stage.events, decisions
    compilation = stage("verify", prove, here, *rest, pause_gc=recalled)
    del here, seen, rest
    return stage("eager", beside_eager, job, compilation, partial(_attempts, stop_after="verify"))

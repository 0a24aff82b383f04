"""Sizes of one model compiled by workers ahead of the caller, who then finds all in the cache.

    sizes 64, 8, 1 -> worker 0: 64    worker 1: 8, 1    -> what they stored, in the caller's cache
    caller: 64, 8, 1, one after the other, each recalled

A worker compiles as the caller would have: so the plan is the same whatever the number of workers
and the order of their answers, and what a worker did not do the caller does. A size of which two
workers died is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.deadline import Deadline
from anabranch.errors import WorkerError
from anabranch.frontend.capture_lock import capture_lock
from anabranch.frontend.padding_marks import MarkedPadding
from anabranch.frontend.surroundings import Surroundings, neutral
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.among_sizes import AmongSizes
from anabranch.tuning.job import Job
from anabranch.tuning.workers.job import JobRefusal, WorkerJob, WorkerPlace
from anabranch.tuning.workers.pool import WorkerPool


@dataclass(frozen=True, slots=True)
class SizeToCompile:
    """The sizes of the dimensions, among all sizes, and an example with them; what the graph is to
    read of padding."""

    at: tuple[int, ...]
    among: AmongSizes
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    markings: tuple[MarkedPadding, ...] = ()


def compile_sizes(
    pool: WorkerPool,
    model: Any,
    sizes: Sequence[SizeToCompile],
    options: Options,
    around: Surroundings,
    trace: Trace,
    until: Deadline,
) -> None:
    """Have all sizes compiled into the caller's cache. What fails in a worker fails again in the
    caller, and is told there. WorkerError for a size of which workers died, and for a model that
    cannot be sent."""

    def job(size: SizeToCompile) -> WorkerJob:
        args = model, size, options, around
        return WorkerJob(repr(size.at), _compile_there, args, f"size {size.at}")

    for own in (True, False):  # those between sizes that are searched are told what these found
        jobs = [job(size) for size in sizes if size.among.own == own]
        for outcome in pool.outcomes(jobs, trace, until):
            if isinstance(outcome, JobRefusal):
                raise WorkerError(
                    f"the size {outcome.key!s} cannot be compiled",
                    str(outcome.refused),
                    "leave it out of `sizes`, or compile it alone with workers=None",
                )


def _compile_there(
    here: WorkerPlace, model: Any, size: SizeToCompile, options: Options, around: Surroundings
) -> None:
    """What a worker does: a compilation as the caller's, into the cache of the worker."""
    chosen = options.model_copy(update={"cache_dir": here.cache_dir, "dump": None, "workers": None})
    target = resolve(here.target, chosen.tf32)
    with capture_lock(), neutral(), Cache.open(here.cache_dir) as cache:
        arguments = (model, size.args, size.kwargs, target, chosen, cache, here.trace)
        rest: Any = {"surroundings": around, "among": size.among, "markings": size.markings}
        compile_model(Job(*arguments, deadline=here.deadline, **rest))

"""What a plan makes of a GPU while it runs: active warps and busy multiprocessors over time.

    kernels with start, end, CTAs, warps, registers     (one replay of the plan's CUDA graph)

    a  |-----------|                    warps   8 8 8 12 12 4 4 0      of 64 a multiprocessor
    b        |-------------|            SMs     1 1 1  1  1 .5 .5 0    of all: SM efficiency

No hardware counters are read, which a driver mostly allows to administrators alone: what is known
is when each kernel began and ended (CUPTI's activity records, by torch's profiler) and what a CTA
of it takes. CTAs of a kernel run in turns of as many as its registers, threads and shared memory
let fit, and count evenly over its time; kernels that run at the same time take what those that
began before them leave. On a simulated GPU begin and end are forecast. `how` says which it is.

A kernel that multiplies and accumulates is bound by arithmetic, all others by memory; `overlap` is
the part of the time in which kernels of both sorts run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.costs.work import computes, per_processor
from anabranch.ir.protocols import KernelSpan
from anabranch.ir.schedule import Timeline
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import TaskGraph

STEPS = 64
"""Equal parts of the time of a run of which figures are given."""
WARP = 32


@dataclass(frozen=True, slots=True)
class Utilisation:
    """`us`: of the run that was looked at, from the first start to the last end. `warps`: active
    warps in the mean over it, `warps_share` of the most that the GPU holds; `sm_efficiency`: the
    part of multiprocessors with a CTA, in the mean; `overlap`: the part of the time in which
    kernels bound by arithmetic and by memory both run; `unknown`: kernels, copies and fills of
    which nobody knows what they take; `estimated`: those of which it is estimated, that no compiler
    and no GPU told of. The last two are in steps of `step_us`."""

    how: str
    us: float
    warps: float
    warps_share: float
    sm_efficiency: float
    overlap: float
    unknown: int
    estimated: int
    step_us: float
    warps_over_time: tuple[float, ...]
    sm_efficiency_over_time: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Moment:
    """An interval in which the same kernels run, and what they make of the machine."""

    start: float
    end: float
    warps: float
    busy: float
    both: bool


def kernels_in(tasks: TaskGraph, timeline: Timeline) -> list[KernelSpan]:
    """Each task of a timeline as one kernel, with what that is known to take."""
    task_of = {task.name: task for task in tasks.tasks}
    kernels = []
    for span in timeline.spans:
        task = task_of.get(span.task)
        if task is None:
            continue
        taken = task.kernel.resources if task.kernel is not None else None
        kernels.append(KernelSpan(span.task, span.start, span.end, taken, computes(task)))
    return kernels


def utilisation(spans: Sequence[KernelSpan], spec: TargetSpec, how: str) -> Utilisation | None:
    """Of these kernels on such a machine; None where it is known of none what it takes."""
    spans = [span for span in spans if span.end > span.start]
    if all(span.resources is None for span in spans):
        return None
    begin, end = min(span.start for span in spans), max(span.end for span in spans)
    moments, us = list(_moments(spans, spec)), end - begin
    warps = [(m.start, m.end, m.warps) for m in moments]
    busy = [(m.start, m.end, m.busy) for m in moments]
    most = spec.sms * spec.threads_per_sm / WARP
    mean = _mean(warps, begin, end)
    edges = [begin + us * i / STEPS for i in range(STEPS + 1)]
    steps = list(itertools.pairwise(edges))
    return Utilisation(
        how=how,
        us=us,
        warps=mean,
        warps_share=mean / most,
        sm_efficiency=_mean(busy, begin, end),
        overlap=sum(m.end - m.start for m in moments if m.both) / us,
        unknown=sum(span.resources is None for span in spans),
        estimated=sum(bool(span.resources and span.resources.estimated) for span in spans),
        step_us=us / STEPS,
        warps_over_time=tuple(round(_mean(warps, *step), 1) for step in steps),
        sm_efficiency_over_time=tuple(round(_mean(busy, *step), 4) for step in steps),
    )


def _moments(spans: Sequence[KernelSpan], spec: TargetSpec) -> Iterator[_Moment]:
    """The time between any two starts or ends, in order."""
    edges = sorted({edge for span in spans for edge in (span.start, span.end)})
    order = sorted(spans, key=lambda span: span.start)
    for start, end in itertools.pairwise(edges):
        running = [span for span in order if span.start <= start and span.end >= end]
        warps, busy = _active(running, spec)
        both = {True, False} <= {span.computes for span in running}
        yield _Moment(start, end, warps, busy, both)


def _active(running: Sequence[KernelSpan], spec: TargetSpec) -> tuple[float, float]:
    """Active warps, and the part of multiprocessors that has a CTA."""
    room, warps, ctas = 1.0, 0.0, 0.0
    for span in running:
        taken = span.resources
        if taken is None:
            continue
        at_once = spec.sms * per_processor(taken, spec)
        resident = taken.ctas / math.ceil(max(1, taken.ctas) / at_once)
        resident = min(resident, room * at_once)
        room -= resident / at_once
        warps += resident * math.ceil(taken.threads / WARP)
        ctas += resident
    return warps, min(1.0, ctas / spec.sms)


def _mean(values: Sequence[tuple[float, float, float]], begin: float, end: float) -> float:
    """The mean of a value that is constant between each start and end, 0 elsewhere."""
    parts = ((min(end, e) - max(begin, s), value) for s, e, value in values)
    return sum(long * value for long, value in parts if long > 0) / (end - begin)

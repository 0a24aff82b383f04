"""Products that cuBLAS computes on few streams: a schedule -> one that does so.

    mm1 @0   mm2 @1   mm3 @2   mm4 @5   relu @5 ->   mm1 @0   mm2 @1   mm3 @2   mm4 @1   relu @5

cuBLAS keeps a workspace for each stream that it was called on, 32 MiB on Hopper, as long as the
process lives: a transformer's training step on 16 streams would hold half a gibibyte for them.
The streams with most products keep theirs; others send each of theirs to the one of these where it
may start first, by what tasks take alone. A training step, of which memory matters most, has two:
one of BERT-base takes 0.6% longer on two than on four, by forecast for an H200, and 9% on one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from anabranch.ir.dag import Dag, bits
from anabranch.ir.library_calls import multiplies
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.schedule.local.assignment import Placing, placing_of, schedule_of

MOST_STREAMS, MOST_OF_STEP = 4, 2
EACH = 8
"""Products of a stream of a plan with states, at least: a training step that calls the library a
few times would keep more for that than for all its values."""


def most_streams(tasks: TaskGraph) -> int:
    """How many streams may call cuBLAS."""
    if not tasks.states:
        return MOST_STREAMS
    products = sum(task.kernel is not None and multiplies(task.kernel) for task in tasks.tasks)
    return min(MOST_OF_STEP, -(-products // EACH))


def on_few_streams(
    schedule: Schedule, tasks: TaskGraph, dag: Dag, us: Sequence[float], most: int | None = None
) -> Schedule:
    """The schedule with its products on at most so many streams; the very same where they are. One
    that thinks in stages stays as it is. `us`: of each task, as in the dag; `most`: as many as the
    whole may have where the tasks are a part."""
    most = most_streams(tasks) if most is None else most
    kernels = {task.name: task.kernel for task in tasks.tasks}
    products = {
        v
        for v, name in enumerate(dag.names)
        if (kernel := kernels[name]) is not None and multiplies(kernel)
    }
    placing = placing_of(schedule, dag)
    counts = Counter(placing.stream_of[v] for v in sorted(products))
    if len(counts) <= most or schedule.stages:
        return schedule
    kept = [stream for stream, _ in counts.most_common(most)]
    streams, free, done = list(placing.stream_of), dict[int, float](), dict[int, float]()
    for v in placing.order:
        ready = max((done[before] for before in bits(dag.preds[v])), default=0.0)
        if v in products and streams[v] not in kept:
            start = {stream: max(ready, free.get(stream, 0.0)) for stream in kept}
            streams[v] = min(kept, key=lambda s: (start[s], -free.get(s, 0.0)))
        free[streams[v]] = done[v] = max(ready, free.get(streams[v], 0.0)) + us[v]
    return schedule_of(schedule.scheduler, dag, Placing(placing.order, _in_use(streams)))


def _in_use(streams: list[int]) -> tuple[int, ...]:
    """Streams numbered anew without those on which nothing is left."""
    number = {stream: i for i, stream in enumerate(sorted({*streams}))}
    return tuple(number[stream] for stream in streams)

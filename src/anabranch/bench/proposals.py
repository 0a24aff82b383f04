"""Schedules that differ, to learn from: a task graph -> what the schedulers find, and chance.

Every scheduler of the table with the streams it likes, list scheduling with few streams as well,
and random legal schedules, some near to sensible ones and some not: a model that is fitted to good
schedules only knows nothing about bad ones.

"ios-measured" and "ios-paper" are left out: they would time hundreds of stages, and their schedules
are of the same kind as those of "ios".
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule import SCHEDULERS
from anabranch.schedule.event_waits import launches

LEFT_OUT = ("ios-measured", "ios-paper")
FEW_STREAMS = (2, 4, 8)
CHANCES = ((2, 0.8), (4, 0.5), (8, 0.8), (16, 0.0))
"""Streams of a random schedule, and how likely a task stays on the stream of one it reads from."""


def proposals(
    tasks: TaskGraph, costs: Costs, limits: Limits, seed: int = 0
) -> tuple[Schedule, ...]:
    """Different schedules of the graph; a scheduler that fails is an event."""
    dag = dag_of(tasks)
    makers: dict[str, Callable[[], Schedule]] = {
        name: partial(make, tasks, costs, limits)
        for name, make in SCHEDULERS.items()
        if name not in LEFT_OUT
    }
    for streams in FEW_STREAMS:
        few = replace(limits, max_streams=streams)
        makers[f"critical-{streams}"] = partial(SCHEDULERS["critical"], tasks, costs, few)
    for streams, stay in CHANCES:
        rng = random.Random(f"{seed} {streams}")
        makers[f"random-{streams}"] = partial(chance, dag, streams, stay, rng)
    schedules: dict[tuple[Launch, ...], Schedule] = {}
    for name, maker in makers.items():
        try:
            schedule = replace(maker(), scheduler=name, stages=())
            verify_schedule(schedule, dag)
        except Exception as failure:
            limits.trace.add("warning", "record", name, f"{type(failure).__name__}: {failure}")
            continue
        schedules.setdefault(schedule.launches, schedule)
    return tuple(schedules.values())


def chance(dag: Dag, streams: int, stay: float, rng: random.Random) -> Schedule:
    """A random legal order; each task stays on the stream of an input, or goes anywhere."""
    missing = [preds.bit_count() for preds in dag.preds]
    ready = [v for v, count in enumerate(missing) if not count]
    stream_of, order = [0] * len(missing), []
    while ready:
        v = ready.pop(rng.randrange(len(ready)))
        inputs = list(bits(dag.preds[v]))
        if inputs and rng.random() < stay:
            stream_of[v] = stream_of[rng.choice(inputs)]
        else:
            stream_of[v] = rng.randrange(streams)
        order.append(v)
        for w in bits(dag.succs[v]):
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return Schedule(f"random-{streams}", launches(dag, order, stream_of))

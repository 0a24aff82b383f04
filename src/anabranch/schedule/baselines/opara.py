"""Opara: streams in one pass, launch order by what kernels take. IEEE TC 2025, arXiv 2312.10351.

Algorithm 1: each node hands its stream to the first successor that claims it; a node that can
claim none opens a stream. Algorithm 2: of the ready nodes launch the one that takes the least,
alternating between nodes that compute and nodes that move memory, since kernels cannot be
interrupted and two of a kind contend.

    demand    a 1   b 9   c 2   d 1        order  a  c  b  d     (c takes less than b)
         +--> b --+
    a -->|        +--> d                   streams a c @0, b d @1: c comes first and claims a's
         +--> c --+                        stream, d claims b's, the first that it reads

Kinds come from the op table (contract computes) instead of substrings of names, and the next turn
is the opposite of the kind just launched. Demand is the largest fraction of the whole machine's
shared memory, threads and registers that the launch takes, grid included. A stream whose work is
done is taken over instead of opening another (GoogLeNet: 4 instead of 28), and `max_streams` holds.
`baselines.opara_paper` is what was published.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.costs.work import computes
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph, task_producers
from anabranch.schedule.event_waits import launches
from anabranch.schedule.streams import fewer
from anabranch.schedule.task_weights import demand, tell_unknown


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """With the demand of whole launches, and streams taken over."""
    tell_unknown("opara", tasks, limits.trace)
    dag = dag_of(tasks)
    order = launch_order(
        dag,
        [demand(task, limits.spec) for task in tasks.tasks],
        [computes(task) for task in tasks.tasks],
    )
    stream_of = fewer(dag, order, allocate(dag, order, _inputs(tasks)), limits.max_streams)
    return Schedule("opara", launches(dag, order, stream_of))


def launch_order(
    dag: Dag, demands: Sequence[float], compute: Sequence[bool], by_count: bool = False
) -> list[int]:
    """Algorithm 2. `by_count`: the turn changes with every launch, whichever kind it was of."""
    missing = [preds.bit_count() for preds in dag.preds]
    ready: dict[bool, list[int]] = {True: [], False: []}
    for v, count in enumerate(missing):
        if not count:
            ready[compute[v]].append(v)
    order: list[int] = []
    turn = True
    while ready[True] or ready[False]:
        kind = turn if ready[turn] else not turn
        v = min(ready[kind], key=lambda v: demands[v])
        ready[kind].remove(v)
        order.append(v)
        turn = not turn if by_count else not kind
        for w in bits(dag.succs[v]):
            missing[w] -= 1
            if not missing[w]:
                ready[compute[w]].append(w)
    return order


def allocate(
    dag: Dag, order: Sequence[int], inputs: Sequence[Sequence[int]] | None = None
) -> list[int]:
    """Algorithm 1: for each node its stream. `inputs`: each node's predecessors in the order in
    which it names them, by number if not given."""
    stream_of = [0] * len(dag.names)
    claimed = 0
    opened = 0
    for v in order:
        preds = inputs[v] if inputs is not None else bits(dag.preds[v])
        heir = next((p for p in preds if not claimed >> p & 1), None)
        if heir is None:
            stream_of[v] = opened
            opened += 1
        else:
            claimed |= 1 << heir
            stream_of[v] = stream_of[heir]
    return stream_of


def _inputs(tasks: TaskGraph) -> list[list[int]]:
    producer = task_producers(tasks)
    position = {task.name: i for i, task in enumerate(tasks.tasks)}
    return [
        list(dict.fromkeys(position[p] for name in task.reads for p in producer.get(name, ())))
        for task in tasks.tasks
    ]

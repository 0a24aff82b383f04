"""Opara as published: tasks -> the schedule that its code would make. arXiv 2312.10351.

What the code does and `baselines.opara` does otherwise:

    demand     shared memory of one CTA, whatever the grid; ties are first come, first served; an
               op without a kernel, or one that takes twice what a CTA has without asking for
               more, goes after all whose demand is known
    turns      launches 1, 3, 5.. take from the ops that compute, 2, 4, 6.. from those that move
               memory; where that list is empty from the other, and the count goes on
    kinds      a table of ops that move memory; all others compute, embeddings and softmax too
    inputs     are nodes without a kernel: they take turns and begin streams
    streams    as many as come of it
    waits      one for each edge between two streams

         +--> b --+     x the input; all compute, demand b 9, c 2
    x -->|        +--> d            order x c b d
         +--> c --+                 streams  c takes that of x, b its own, d that of b, which it
                                    reads first; d waits for c

Where this is not the code: ops are known by their ATen names, not by parts of names in the traced
model, where "cat" is no "concat" and "to" is in "customer"; so what the code's table spells wrong
counts as it is meant. Of several kernels the longest counts, not the first. Views are no ops here
and take no turn.

"opara-traced" and "opara-depth" are what its launch order is compared with: the same streams, for
launches in the order of the trace, and one branch after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from anabranch.ir import ops
from anabranch.ir.dag import Dag, bits, dag_of
from anabranch.ir.protocols import Costs, Limits
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.task import Task, TaskGraph, alias_roots, task_producers
from anabranch.schedule.baselines.opara import allocate, launch_order
from anabranch.schedule.task_weights import tell_unknown

MEMORY = frozenset(
    f"aten.{name}"
    for name in (
        *("add", "sub", "neg", "pow", "reciprocal", "sqrt", "exp", "log", "floor", "ceil"),
        *("clamp", "clamp_min", "clamp_max", "relu", "gelu", "sigmoid", "tanh"),
        *("cat", "slice", "transpose", "permute", "unsqueeze", "view", "reshape", "flatten"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"),
        *("max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "dropout", "batch_norm", "layer_norm"),
        *("_native_batch_norm_legit_no_training", "native_layer_norm", "instance_norm"),
        *("contiguous", "clone", "_to_copy", "to", "ones"),
    )
)
"""Its table of ops that are bound by memory."""

CTA_SHARED = 49152
"""Bytes of shared memory that a CTA has without asking for more, on every GPU so far."""
UNKNOWN = float("inf")
Names = Sequence[Sequence[int]]
"""For each node those it reads, in the order in which it names them."""


def schedule(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Streams and launch order as the published code makes them, inputs counted as tasks; costs are
    not asked."""
    tell_unknown("opara-paper", tasks, limits.trace)
    dag, names = _with_inputs(tasks)
    first = len(tasks.inputs)
    demands = [UNKNOWN] * first + [demand(task) for task in tasks.tasks]
    compute = [True] * first + [computes(task) for task in tasks.tasks]
    order = launch_order(dag, demands, compute, by_count=True)
    return _allocated("opara-paper", dag, order, names, first)


def schedule_traced(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Opara's streams, tasks launched in their own order."""
    dag, names = _with_inputs(tasks)
    return _allocated("opara-traced", dag, range(len(dag.names)), names, len(tasks.inputs))


def schedule_depth(tasks: TaskGraph, costs: Costs, limits: Limits) -> Schedule:
    """Opara's streams, one branch launched to its end before the next one is."""
    dag, names = _with_inputs(tasks)
    missing = [preds.bit_count() for preds in dag.preds]
    ready = [v for v, count in enumerate(missing) if not count][::-1]
    order: list[int] = []
    while ready:
        v = ready.pop()
        order.append(v)
        for w in reversed(list(bits(dag.succs[v]))):
            missing[w] -= 1
            if not missing[w]:
                ready.append(w)
    return _allocated("opara-depth", dag, order, names, len(tasks.inputs))


def _allocated(name: str, dag: Dag, order: Sequence[int], names: Names, first: int) -> Schedule:
    stream_of = allocate(dag, order, names)
    return Schedule(name, tuple(_launches(dag, order, stream_of, first)))


def demand(task: Task) -> float:
    """Shared memory of a CTA over what it has without asking, where that is known and below 2."""
    resources = task.kernel.resources if task.kernel is not None else None
    if resources is None:
        return UNKNOWN
    fraction = resources.shared / CTA_SHARED
    return fraction if fraction < 2 else UNKNOWN


def computes(task: Task) -> bool:
    """Whether something in the task is not in the table."""
    return any(
        ops.packet_name(node.op) not in MEMORY and ops.kind_of(node) != "view"
        for node in task.body.nodes
    )


def _with_inputs(tasks: TaskGraph) -> tuple[Dag, Names]:
    """The dag with the graph's inputs as its first nodes, then the tasks in order."""
    producer, roots = task_producers(tasks), alias_roots(tasks)
    position = {value.name: (i,) for i, value in enumerate(tasks.inputs)}
    place = {task.name: len(position) + i for i, task in enumerate(tasks.tasks)}
    names: list[list[int]] = [[] for _ in position]
    for task in tasks.tasks:
        read: list[int] = []
        for name in task.reads:
            producers = tuple(place[maker] for maker in producer.get(name, ()))
            read += producers or position.get(roots.get(name, name), ())
        names.append(list(dict.fromkeys(read)))
    edges = [(u, v) for v, read in enumerate(names) for u in read]
    input_names = tuple(f"input {value.name}" for value in tasks.inputs)
    return Dag.of((*input_names, *dag_of(tasks).names), edges), names


def _launches(
    dag: Dag, order: Sequence[int], stream_of: Sequence[int], first: int
) -> Iterator[Launch]:
    """The launches from node `first` on, with a wait for each of their edges between streams."""
    number: dict[int, int] = {}
    for v in order:
        if v >= first:
            stream = number.setdefault(stream_of[v], len(number))
            other = (u for u in bits(dag.preds[v]) if u >= first and stream_of[u] != stream_of[v])
            yield Launch(dag.names[v], stream, tuple(dag.names[u] for u in other))

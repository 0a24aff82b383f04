"""Small graphs that each show one thing about kernels on a shared machine, with their schedules.

    copies    one task, n times          on 1, 2, 4, 8 streams
    pair      a chain of a beside b      one after the other; beside each other
    steps     48 tiny kernels            a chain, a chain that changes streams, chains side by side,
                                         forks and joins of width 2 to 16, of branches of 1 and 3

Tasks of such a graph have no data between them: what waits for what is said by the schedule alone,
so that one graph has all its schedules timed side by side. Copies that may run at the same time
have inputs and weights of their own, as tasks of a network do; there are no more sets of them than
that, so that they stay in the cache as those of a task timed alone do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.costs.observed import GraphKind
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, rename
from anabranch.ir.schedule import Launch, Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import TensorType
from anabranch.kernels.library import aten_kernel

STREAMS = (1, 2, 4, 8)
SETS = 8
WIDTHS = (2, 4, 8, 16)
TINY = 48
"""Tasks of an experiment with steps, enough that the host is never waited for."""
ENOUGH_US = 40.0
MOST_COPIES = 48
A_CTA = 512
"""Elements that a CTA of torch's pointwise kernels takes, about; the probe tells the real grid."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """A graph of tasks, the schedules to time, and for each task the one it is a copy of."""

    kind: GraphKind
    tasks: TaskGraph
    schedules: tuple[Schedule, ...]
    originals: tuple[Task, ...]


def copies(task: Task, us: float) -> Experiment:
    """One task, as often as fills some time, on several numbers of streams."""
    widest = max(STREAMS)
    wanted = min(MOST_COPIES, round(ENOUGH_US / max(us, 1e-3)))
    n = widest * max(1, wanted // widest)
    graph = _together(f"{n} {task.name}", [task] * n)
    names = [copy.name for copy in graph.tasks]
    schedules = tuple(side_by_side(names, streams) for streams in STREAMS)
    return Experiment("copies", graph, schedules, (task,) * n)


def pair(a: Task, a_us: float, b: Task, b_us: float) -> Experiment:
    """A chain of one task and a chain of another that takes about as long."""
    length = max(ENOUGH_US / 2, a_us, b_us)
    n, m = (max(1, min(MOST_COPIES // 2, round(length / max(us, 1e-3)))) for us in (a_us, b_us))
    originals = (*(a,) * n, *(b,) * m)
    graph = _together(f"{n} {a.name} {m} {b.name}", originals)
    names = [copy.name for copy in graph.tasks]
    place = [i / n for i in range(n)] + [i / m for i in range(m)]
    launches = tuple(
        Launch(names[i], int(i >= n)) for i in sorted(range(n + m), key=lambda i: (place[i], i))
    )
    return Experiment("pair", graph, (_chain(names), Schedule("beside", launches)), originals)


def steps(task: Task, name: str) -> Experiment:
    """Forks, joins and chains of one tiny task."""
    graph = _together(name, [task] * TINY)
    names = [copy.name for copy in graph.tasks]
    schedules = [_chain(names), _zigzag(names)]
    schedules += [side_by_side(names, width) for width in WIDTHS]
    schedules += [fork_join(names, width, 1) for width in WIDTHS]
    schedules += [fork_join(names, width, 3) for width in WIDTHS[:3]]
    return Experiment("steps", graph, tuple(schedules), (task,) * TINY)


def tiny(spec: TargetSpec) -> tuple[Task, ...]:
    """Pointwise tasks that do next to nothing, of one CTA, of one on every processor, of four."""
    return tuple(_relu(A_CTA * grid) for grid in (1, spec.sms, 4 * spec.sms))


def _relu(elements: int) -> Task:
    type = TensorType((elements,), torch.float32)
    node = Node("tiny", "aten.relu.default", (Ref("x"),), (), (type,))
    body = Graph("tiny", (Input("x", type),), (), (node,), (Ref("tiny"),))
    return Task("tiny", body, aten_kernel("aten", body))


def lone(task: Task) -> TaskGraph:
    """A graph of one task."""
    return _together("lone", [task])


def in_a_row(tasks: Sequence[Task]) -> TaskGraph:
    """A graph of these tasks, which share nothing and may be of several networks, in order."""
    return _together("row", [replace(task, name=f"t{i}") for i, task in enumerate(tasks)])


def side_by_side(names: Sequence[str], streams: int) -> Schedule:
    """Equal chains that never meet."""
    launches = tuple(Launch(name, i % streams) for i, name in enumerate(names))
    return Schedule(f"streams-{streams}", launches)


def fork_join(names: Sequence[str], width: int, depth: int) -> Schedule:
    """One task, then `width` branches of `depth` tasks, then one that waits for all, and so on."""
    launches: list[Launch] = []
    ends: dict[int, str] = {}
    left = list(names)
    while left:
        head = left.pop(0)
        launches.append(Launch(head, 0, tuple(ends[stream] for stream in ends if stream)))
        ends = {}
        for level in range(depth):
            row, left = left[:width], left[width:]
            for stream, name in enumerate(row):
                launches.append(Launch(name, stream, (head,) if stream and not level else ()))
                ends[stream] = name
    return Schedule(f"fork-{width}x{depth}", tuple(launches))


def _chain(names: Sequence[str]) -> Schedule:
    return Schedule("chain", tuple(Launch(name, 0) for name in names))


def _zigzag(names: Sequence[str]) -> Schedule:
    """A chain whose every step is on the other of two streams."""
    launches = [Launch(names[0], 0)]
    launches += [Launch(name, i % 2, (names[i - 1],)) for i, name in enumerate(names) if i]
    return Schedule("zigzag", tuple(launches))


def _together(name: str, originals: Sequence[Task]) -> TaskGraph:
    """Copies of the tasks, in order. Only the last result is returned: the others' memory may be
    used again, as in a network."""
    tasks = [_copied(task, i) for i, task in enumerate(originals)]
    inputs = {value.name: value for task in tasks for value in task.body.inputs}
    constants = {c.name: c for task in tasks for c in task.body.constants}
    outputs = tuple(map(Ref, dict.fromkeys(tasks[-1].writes)))
    return TaskGraph(
        name, tuple(inputs.values()), _own(constants.values()), tuple(tasks), (), outputs
    )


def _copied(task: Task, i: int) -> Task:
    own, input_prefix = f"c{i}.", f"{task.name}.set{i % SETS}."
    body = _renamed(task.body, own, input_prefix)
    kernel = task.kernel
    if kernel is not None:
        kernel = replace(kernel, body=_renamed(kernel.body, own, input_prefix))
    return Task(f"{own}{task.name}", body, kernel)


def _renamed(graph: Graph, own: str, input_prefix: str) -> Graph:
    """What it computes begins with `own`, the inputs with `input_prefix`."""
    names = {value.name: input_prefix + value.name for value in graph.inputs}
    names.update((constant.name, input_prefix + constant.name) for constant in graph.constants)
    nodes = []
    for node in graph.nodes:
        args = tuple(rename(arg, names) for arg in node.args)
        kwargs = tuple((key, rename(arg, names)) for key, arg in node.kwargs)
        copy = replace(node, name=own + node.name, args=args, kwargs=kwargs)
        names.update(zip(node.results, copy.results, strict=True))
        nodes.append(copy)
    return Graph(
        graph.name,
        tuple(Input(names[value.name], value.type) for value in graph.inputs),
        tuple(replace(c, name=names[c.name]) for c in graph.constants),
        tuple(nodes),
        tuple(Ref(names[ref.name]) for ref in graph.outputs),
    )


def _own(constants: Iterable[Constant]) -> tuple[Constant, ...]:
    """With memory of their own: equal tasks would read the same weights otherwise."""
    return tuple(c if c.value is None else replace(c, value=c.value.clone()) for c in constants)

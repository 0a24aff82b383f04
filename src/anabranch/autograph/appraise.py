"""Appraising: what a graph, or a part of one, would take, without writing a kernel for it.

    graph -> without what depends on constants alone -> cut into the tasks that it would fuse into
          -> each task's time -> alpha * longest path + sum                    (AutoGraph, 3.3)

A task that the unsearched graph has, too, takes what was found for it there. All others are
estimated, times what estimates of tasks with the same main operator are off by there: so a merged
convolution is compared with the two it replaces in numbers of one scale.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from anabranch.costs import Roofline
from anabranch.costs.mixed import mixed
from anabranch.fuse import partition
from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Costs
from anabranch.ir.rule import Known
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.trace import Trace

Price = Callable[[Graph], float]


def appraiser(
    tasks: TaskGraph, costs: Costs, spec: TargetSpec, alpha: float, generates: bool
) -> Price:
    """The price of graphs, in microseconds. `tasks`: the unsearched graph's, with kernels;
    `generates`: whether kernels are generated, which fuse more than a library does."""
    rough = Roofline(spec)
    known: dict[str, float] = {}
    off: dict[str, list[float]] = {}
    for task in tasks.tasks:
        us, guess = costs.task(task).us, rough.task(Task(task.name, task.body)).us
        known[structure_text(task.body)] = us
        if guess:
            off.setdefault(_main(task), []).append(us / guess)
    every = [ratio for ratios in off.values() for ratio in ratios]
    usual = median(every) if every else 1.0
    scale = {op: median(ratios) for op, ratios in off.items()}
    seen: dict[str, float] = {}

    def us_of(task: Task) -> float:
        key = structure_text(task.body)
        if key in known:
            return known[key]
        if key not in seen:
            seen[key] = rough.task(task).us * scale.get(_main(task), usual)
        return seen[key]

    def price(graph: Graph) -> float:
        cut = partition(without_constants(graph), Trace(), spec, pointwise=generates)
        return mixed(cut, us_of, alpha)

    return price


def without_constants(graph: Graph) -> Graph:
    """The graph as it will be when what depends on constants alone is computed ahead: such values
    are constants, which nobody has computed yet."""
    known = Known.of(graph)
    ahead = [node for node in graph.nodes if known.constant.issuperset(node.results)]
    if not ahead:
        return graph
    gone = {node.name for node in ahead}
    left = tuple(node for node in graph.nodes if node.name not in gone)
    read = {name for node in left for name in node.uses} | {ref.name for ref in graph.outputs}
    made = tuple(
        Constant(name, type, name)
        for node in ahead
        for name, type in zip(node.results, node.types, strict=True)
        if name in read
    )
    held = tuple(constant for constant in graph.constants if constant.name in read)
    return Graph(graph.name, graph.inputs, (*held, *made), left, graph.outputs)


def _main(task: Task) -> str:
    """The operator that a task is mostly about: its contraction, else its first."""
    nodes = task.body.nodes
    main = next(
        (n for n in nodes if ops.info(n.op).kind == "contract"), nodes[0] if nodes else None
    )
    return ops.packet_name(main.op) if main is not None else ""

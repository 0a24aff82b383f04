"""Partition: a graph cut into tasks, each one launch.

    conv = convolution(x, w, b)         task conv { conv = ...; relu = ...; return relu }
    relu = relu(conv)            ->     alias flat = reshape(relu)
    flat = reshape(relu)                task fc { fc = linear(flat, ...); return fc }
    fc   = linear(flat, ...)

Views cost nothing and are aliases; every other node is in exactly one task (`grow` says which go
together). A cluster holds the views through which it reads. A task has the name of its anchor.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from types import MappingProxyType

from anabranch.fusion.gemm_chain import with_gemm_chains
from anabranch.fusion.legality import FusionFacts, Unwritten, why_not_written
from anabranch.fusion.vertical import anchor_of, grow
from anabranch.ir import ops
from anabranch.ir.dag import in_launch_order, waiting
from anabranch.ir.graph import Constant, Graph, Input, Node, NodeGroup, Ref, types, users
from anabranch.ir.rounding import marked
from anabranch.ir.state import may_share, overwriting, placed
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.types import TensorType
from anabranch.trace import Trace


def partition(
    graph: Graph,
    trace: Trace,
    spec: TargetSpec,
    pointwise: bool = False,
    several: bool = False,
    chain_rounds: int = 0,
    unwritten: Unwritten = why_not_written,
    alone: Collection[str] = (),
    loops: Sequence[NodeGroup] = (),
    late: Mapping[str, int] = MappingProxyType({}),
) -> TaskGraph:
    """The graph as tasks without kernels, for a machine like `spec`; strict nodes are marked, so
    that a task knows what others decide by it. `pointwise`: also groups that only a kernel
    generator runs as one launch; `several`: those with several results among them;
    `chain_rounds`: those with two contractions, or with light work before one or behind, in so many
    rounds. `unwritten` may remember what it answered for a group.
    What is `alone` is a task of its own: a concatenation that may come to cost nothing, say; and so
    is each of the `loops`. `late`: as in FusionFacts."""
    graph = marked(graph)
    groups = grow(graph, trace, pointwise, several, unwritten, alone, loops, late)
    if chain_rounds:
        groups = with_gemm_chains(groups, FusionFacts.of(graph), spec, trace, chain_rounds)
    tasks = cut(graph, groups)
    trace.add(
        "applied",
        "fusion",
        f"{graph.name} for {spec.name}",
        f"{len(graph.nodes)} nodes -> {len(tasks.tasks)} tasks, {len(tasks.aliases)} aliases",
    )
    return tasks


def cut(graph: Graph, groups: Sequence[NodeGroup]) -> TaskGraph:
    """The graph with these groups as tasks; they come in an order in which they can run. Groups
    that would wait for each other, since one writes over what another one reads, are split."""
    table, written = types(graph), overwriting(graph)
    views = {node.name: node for node in graph.nodes if ops.is_view(node, table)}
    if written:
        groups = [part for group in groups for part in _with_writers_apart(group, written, views)]
    while True:
        aliases = _aliases(graph, groups, views)
        bodies = _bodies(graph, groups, aliases, views)
        tasks = tuple(Task(body.name, placed(body, written)) for body in bodies)
        border = graph.name, graph.inputs, graph.constants
        task_graph = TaskGraph(*border, tasks, aliases, graph.outputs, states=graph.states)
        if not written:
            return task_graph
        knot = waiting(task_graph)
        if not knot:
            return in_launch_order(task_graph)
        groups = [
            part
            for group, task in zip(groups, tasks, strict=True)
            for part in (_apart(group, views) if task.name in knot else (group,))
        ]


def _with_writers_apart(
    group: NodeGroup, written: Container[str], views: Mapping[str, Node]
) -> tuple[NodeGroup, ...]:
    """The group; what writes over a value shares a launch with what computes a part of that value
    alone."""
    if len(group) == 1 or not any(node.name in written for node in group):
        return (group,)

    def root(name: str) -> str:
        while name in makers:
            name = makers[name].uses[0]
        return name

    makers = {result: view for view in views.values() for result in view.results}
    return (group,) if may_share(group, written, root) else _apart(group, views)


def _apart(group: NodeGroup, views: Container[str]) -> tuple[NodeGroup, ...]:
    """Each node of the group alone."""
    return tuple((node,) for node in group if node.name not in views)


def singly(graph: Graph) -> TaskGraph:
    """The graph with every node a task of its own but views, which are aliases."""
    graph, table = marked(graph), types(graph)
    return cut(graph, [(node,) for node in graph.nodes if not ops.is_view(node, table)])


def graph_of(tasks: TaskGraph) -> Graph:
    """The graph that these are the tasks of, its nodes in an order in which they can run. There are
    no elided concats among them: one has other types than the graph."""
    assert not tasks.elided_concats, "an elided concat is no node of the graph"
    makers: dict[str, Node] = {}
    for node in (*(node for task in tasks.tasks for node in task.body.nodes), *tasks.aliases):
        makers.update(dict.fromkeys(node.results, node))
    ordered: dict[str, Node] = {}
    stack = list({node.name: node for node in makers.values()}.values())[::-1]
    while stack:
        node = stack.pop()
        missing = [makers[n] for n in node.uses if n in makers and makers[n].name not in ordered]
        if missing:
            stack += [node, *missing[::-1]]
        else:
            ordered.setdefault(node.name, node)
    nodes = tuple(ordered.values())
    border = tasks.name, tasks.inputs, tasks.constants
    return Graph(*border, nodes, tasks.outputs, states=tasks.states)


def _aliases(
    graph: Graph, groups: Sequence[NodeGroup], views: Mapping[str, Node]
) -> tuple[Node, ...]:
    """The views that somebody reads who does not hold them: other tasks, the caller, other such
    views; and those that nobody reads."""
    readers, needed = users(graph), {ref.name for ref in graph.outputs}
    for group in groups:
        results = {name for node in group for name in node.results}
        needed |= {name for node in group for name in node.uses} - results
    aliases: list[Node] = []
    for view in reversed(list(views.values())):
        if needed.intersection(view.results) or not any(name in readers for name in view.results):
            aliases.insert(0, view)
            needed.update(view.uses)
    return tuple(aliases)


def _bodies(
    graph: Graph, groups: Sequence[NodeGroup], aliases: tuple[Node, ...], views: Mapping[str, Node]
) -> Iterator[Graph]:
    """The groups as graphs of their own: values keep their names."""
    table = types(graph)
    constants = {constant.name: constant for constant in graph.constants}
    wanted = {ref.name for ref in graph.outputs} | {name for a in aliases for name in a.uses}
    for group in groups:
        results = {name for node in group for name in node.results}
        wanted.update(name for node in group for name in node.uses if name not in results)
    for group in groups:
        outputs = [
            name
            for node in group
            if node.name not in views
            for name in node.results
            if name in wanted
        ]
        yield body_with(group, outputs, table, constants, views)


def body_with(
    group: NodeGroup,
    outputs: Sequence[str],
    table: Mapping[str, TensorType],
    constants: Mapping[str, Constant],
    views: Container[str],
) -> Graph:
    """The group as a graph of its own that returns these values. `table`: all types; `constants`,
    `views`: those of the whole graph."""
    results = {name for node in group for name in node.results}
    read = list(dict.fromkeys(n for node in group for n in node.uses if n not in results))
    return Graph(
        anchor_of(group, views).name,
        tuple(Input(name, table[name]) for name in read if name not in constants),
        tuple(constants[name] for name in read if name in constants),
        group,
        # An unknown operator that nobody reads still runs, and what runs needs memory.
        tuple(map(Ref, outputs or group[-1].results)),
    )

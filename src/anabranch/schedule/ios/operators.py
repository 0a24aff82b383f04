"""IOS's schedulable units: a captured graph -> its compound operators and the dag between them.

IOS (MLSys 2021) schedules coarser units than launches: ReLU, depthwise and pointwise convolution
are one, a convolution takes its norm and activation along, and every operator gathers its own
inputs, a concatenation of sums of values. Here they are found by kinds of op and by structure:

    anchors    what contracts or reduces, joins several values pointwise, or is unknown: one
               operator each, but for a pointwise convolution after its depthwise one
    light      pointwise on one value, norms, pads, views: with the anchor before it if nobody
               else reads that one, else computed anew by each anchor that reads it
    gathering  a sum is part of what reads it, a concatenation only of another concatenation; an
               operator of its own where several read it or nothing can run beside it: the exit
               of a block

    --> relu --> dw --> pw --> bn --+
                                    +--> add --> relu --> conv      four operators: [relu dw pw bn],
    --> conv --+--------------------+                               [conv], [add relu conv], [pool]
               +--> pool

The graph should be as the user wrote it: once equal terms are shared, sums have several readers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anabranch.ir import ops
from anabranch.ir.dag import Dag
from anabranch.ir.graph import Graph, Input, Node, Ref, types, users
from anabranch.ir.task import Task
from anabranch.ir.types import TensorType

ADD, CONVOLUTION = "aten.add.Tensor", "aten.convolution.default"
LIGHT = frozenset(
    f"aten.{name}"
    for name in (
        *("batch_norm", "_native_batch_norm_legit_no_training", "dropout"),
        *("constant_pad_nd", "pad", "clone", "contiguous", "copy"),
        *("reshape", "flatten", "unflatten", "_unsafe_view"),
    )
)
"""Operators that cost an anchor little to do on the way, besides views and pointwise ops."""

CONCATENATIONS = frozenset({"aten.cat.default", "aten.stack.default"})
POOLS = frozenset({"aten.avg_pool2d.default", "aten.max_pool2d.default"})


@dataclass(frozen=True, slots=True)
class Operators:
    """Each operator as a task without kernel, and their dag; bit i is `tasks[i]`. What several
    operators compute anew is in the body of each."""

    tasks: tuple[Task, ...]
    dag: Dag


@dataclass(frozen=True, slots=True)
class _Value:
    """What it takes to have a value: operators (by number) and inputs (by name) to read, light
    nodes to run on the way. `gathers`: one of those sums or concatenates."""

    sources: frozenset[int | str]
    light: tuple[Node, ...] = ()
    gathers: bool = False


def operators(graph: Graph) -> Operators:
    """The operators in an order in which they can run; what nobody needs is left out."""
    table, nodes = types(graph), _needed(graph)
    constants = {constant.name for constant in graph.constants}
    kept = _Kept.of(graph, nodes)
    values = {value.name: _Value(frozenset({value.name})) for value in graph.inputs}
    bodies: list[list[Node]] = []
    names: list[str] = []
    edges: set[tuple[int, int]] = set()
    for node in nodes:
        uses = [name for name in dict.fromkeys(node.uses) if name not in constants]
        gathered = _gathered(node, [values[name] for name in uses], table)
        home = next(iter(gathered.sources)) if len(gathered.sources) == 1 else None
        if isinstance(home, int) and _follows(node, gathered, bodies[home], kept, table):
            bodies[home].append(node)
        elif gathered.light and not kept.alone(node, gathered):
            values.update((name, gathered) for name in node.results)
            continue
        else:
            home = len(bodies)
            names.append(node.name)
            before = {id(other): other for name in uses for other in values[name].light}
            bodies.append([*before.values(), node])
            edges.update((u, home) for u in gathered.sources if isinstance(u, int))
        values.update((name, _Value(frozenset({home}))) for name in node.results)
    tasks = tuple(_task(graph, name, body, table) for name, body in zip(names, bodies, strict=True))
    return Operators(tasks, Dag.of(tuple(task.name for task in tasks), edges))


@dataclass(frozen=True, slots=True)
class _Kept:
    """The facts that decide whether a light or gathering node is an operator of its own."""

    readers: dict[str, list[Node]]
    returned: frozenset[str]
    exits: frozenset[str]

    @staticmethod
    def of(graph: Graph, nodes: Sequence[Node]) -> _Kept:
        needed = {node.name for node in nodes}
        readers = {
            name: [node for node in reading if node.name in needed]
            for name, reading in users(graph).items()
        }
        inputs = {value.name for value in graph.inputs}
        returned = frozenset(ref.name for ref in graph.outputs)
        return _Kept(readers, returned, _exits(nodes, inputs))

    def alone(self, node: Node, value: _Value) -> bool:
        if self.returned.intersection(node.results):
            return True
        readers = self.readers.get(node.name, [])
        ends = node.op in CONCATENATIONS and readers[0].op not in CONCATENATIONS
        return value.gathers and (len(readers) > 1 or ends or node.name in self.exits)

    def only_reader(self, node: Node, last: Node) -> bool:
        """Whether the results of `last` go to this node and nowhere else."""
        return not self.returned.intersection(last.results) and all(
            reader is node for name in last.results for reader in self.readers.get(name, ())
        )


def _needed(graph: Graph) -> list[Node]:
    """The nodes that an output depends on, in graph order."""
    wanted = {ref.name for ref in graph.outputs}
    needed: list[Node] = []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.results):
            needed.append(node)
            wanted.update(node.uses)
    return needed[::-1]


def _exits(nodes: Sequence[Node], inputs: set[str]) -> frozenset[str]:
    """The nodes that depend on an input, those before or after each other one."""
    place: dict[str, int] = {}
    names: list[str] = []
    edges: set[tuple[int, int]] = set()
    for node in nodes:
        if inputs.intersection(node.uses) or any(name in place for name in node.uses):
            edges.update((place[name], len(names)) for name in node.uses if name in place)
            place.update((name, len(names)) for name in node.results)
            names.append(node.name)
    dag = Dag.of(tuple(names), edges)
    everything = (1 << len(names)) - 1
    around = zip(dag.names, dag.ancestors(), dag.descendants(), strict=True)
    return frozenset(name for v, (name, a, d) in enumerate(around) if a | d | 1 << v == everything)


def _gathered(node: Node, read: Sequence[_Value], table: Mapping[str, TensorType]) -> _Value:
    """The node's result if it were computed anew by each reader; `light` is empty if it is not
    to be."""
    sources = frozenset(source for value in read for source in value.sources)
    light = tuple({id(n): n for value in read for n in (*value.light, node)}.values())
    light = light or (node,)
    if node.op in CONCATENATIONS or (len(read) == 2 and _adds(node, table)):
        return _Value(sources, light, gathers=True)
    alone = len(read) == 1 or len(sources) == 1
    if not read or (alone and ops.kind_of(node) == "pointwise") or _passes(node):
        return _Value(sources, light, any(value.gathers for value in read))
    return _Value(sources)


def _adds(node: Node, table: Mapping[str, TensorType]) -> bool:
    """Whether the node is the plain sum of two values of one shape."""
    shapes = {table[name].shape for name in node.uses}
    return node.op == ADD and len(shapes) == 1 and ops.arguments(node)["alpha"] == 1


def _passes(node: Node) -> bool:
    """Whether the node scales, moves or renames what it reads: no work worth a launch."""
    if node.op in POOLS:
        kernel = ops.arguments(node)["kernel_size"]
        return isinstance(kernel, tuple) and set(kernel) == {1}
    return ops.kind_of(node) == "view" or ops.packet_name(node.op) in LIGHT


def _follows(
    node: Node, value: _Value, body: Sequence[Node], kept: _Kept, table: Mapping[str, TensorType]
) -> bool:
    """Whether the node is part of the one operator that it reads: alone to read its result, and
    light, or the pointwise convolution after a depthwise one."""
    last = body[-1]
    if value.light[:-1] or not kept.only_reader(node, last):
        return False
    return bool(value.light) or (_pointwise(node, table) and _depthwise(last, table))


def _depthwise(node: Node, table: Mapping[str, TensorType]) -> bool:
    if node.op != CONVOLUTION:
        return False
    arguments, weight = ops.arguments(node), table[node.uses[1]].shape
    return arguments["groups"] == weight[0] and weight[0] > 1 and weight[1] == 1


def _pointwise(node: Node, table: Mapping[str, TensorType]) -> bool:
    if node.op != CONVOLUTION:
        return False
    window = table[node.uses[1]].shape[2:]
    return ops.arguments(node)["groups"] == 1 and set(window) == {1}


def _task(graph: Graph, name: str, body: Sequence[Node], table: Mapping[str, TensorType]) -> Task:
    """The operator alone, named after its anchor or what gathers. Its last node has the result."""
    place = {node.name: i for i, node in enumerate(graph.nodes)}
    nodes = tuple(sorted(body, key=lambda node: place[node.name]))
    produced = {name for node in nodes for name in node.results}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in produced)
    constants = tuple(constant for constant in graph.constants if constant.name in read)
    named = {constant.name for constant in constants}
    inputs = tuple(Input(name, table[name]) for name in read if name not in named)
    outputs = tuple(map(Ref, nodes[-1].results))
    return Task(name, Graph(name, inputs, constants, nodes, outputs))

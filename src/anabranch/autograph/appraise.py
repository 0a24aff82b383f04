"""Appraising: what a graph, or a part of one, would take, without writing a kernel for it.

    graph -> without what depends on constants alone -> cut into the tasks that it would fuse into
          -> each task's time -> alpha * longest path + sum                    (AutoGraph, 3.3)

A task of a graph that was tried takes what was found for it there. All others are estimated, times
what the estimates of the known tasks most like it are off by (`Scale`): so a merged convolution is
compared with the two it replaces in numbers of one scale, and a convolution that loses its relu
does not get faster for no longer being known.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from anabranch.costs import Roofline
from anabranch.costs.mixed import mixed
from anabranch.costs.roofline import RAMP_US
from anabranch.fuse import partition
from anabranch.fuse.legal import Facts, why_not_written
from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph, Node, types
from anabranch.ir.key import structure_text
from anabranch.ir.ops import CONVOLUTIONS, channels_last
from anabranch.ir.rule import Known
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task
from anabranch.ir.types import TensorType
from anabranch.trace import Trace

Price = Callable[[Graph], float]
Taken = Sequence[tuple[Task, float]]
"""Tasks with what each takes alone, in microseconds."""


def appraiser(taken: Taken, spec: TargetSpec, alpha: float, generates: bool) -> Price:
    """The price of graphs, in microseconds. `taken`: tasks, and what each takes; `generates`:
    whether kernels are generated, which fuse more than a library does."""
    rough = Roofline(spec)
    known = {structure_text(task.body): us for task, us in taken}
    scale = Scale(taken, rough)
    seen: dict[tuple[int, ...], tuple[tuple[Node, ...], float]] = {}
    arranged = spec.kind == "cuda" and any(
        channels_last(task.body.inputs[0].type)
        for task, _ in taken
        if task.body.inputs and any(node.op in CONVOLUTIONS for node in task.body.nodes)
    )

    def us_of(task: Task) -> float:
        # Rewriting keeps the nodes that it does not touch; who holds them keeps their numbers.
        nodes = task.body.nodes
        key = tuple(map(id, nodes))
        if key not in seen:
            us = known.get(structure_text(task.body))
            us = rough.task(task).us * scale.of(task) if us is None else us
            seen[key] = nodes, us
        return seen[key][1]

    written = Written()

    def price(graph: Graph) -> float:
        left = without_constants(graph)
        cut = partition(left, Trace(), spec, pointwise=generates, unwritten=written)
        copies = sum(copy_us(type, spec) for type in disarranged(left)) if arranged else 0.0
        return mixed(cut, us_of, alpha) + (1 + alpha) * copies

    return price


class Written:
    """Remembers of which groups of nodes no template writes a kernel, and why."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Sequence[Node], str]] = {}

    def __call__(self, group: Sequence[Node], facts: Facts) -> str:
        made = {name for node in group for name in node.results}
        read = tuple(facts.types[x] for node in group for x in node.uses if x not in made)
        key = tuple(map(id, group)), read
        if key not in self._known:
            self._known[key] = group, why_not_written(group, facts)
        return self._known[key][1]


class Scale:
    """What estimates are off by, as the known tasks say that are like a task in most.

    Alike are, in this order: those of the same main node, whatever is fused to it; those of its
    operator whose main operands, or only the first of them, have the same types; those of its
    operator, if there are a few; of its kind; all. Of the same main node the most counts: in
    another wrapping it shall not look faster than it is known to be. Of others, the median.
    """

    FEW = 3

    def __init__(self, taken: Taken, rough: Roofline) -> None:
        found: dict[Hashable, list[float]] = {}
        for task, us in taken:
            guess = rough.task(Task(task.name, task.body)).us
            if guess:
                for likeness in _likenesses(task):
                    found.setdefault(likeness, []).append(us / guess)
        self._ratio = {
            likeness: max(ratios) if isinstance(likeness, _Same) else median(ratios)
            for likeness, ratios in found.items()
            if not isinstance(likeness, str) or len(ratios) >= self.FEW
        }

    def of(self, task: Task) -> float:
        return next((self._ratio[x] for x in _likenesses(task) if x in self._ratio), 1.0)


@dataclass(frozen=True, slots=True)
class _Same:
    """A main node: its operator, the types of its main operands, and of what it makes. A bias is
    no main operand: it may as well be added by somebody else."""

    op: str
    operands: tuple[TensorType, ...]
    made: tuple[TensorType, ...]


def _likenesses(task: Task) -> Iterator[Hashable]:
    node = _main(task)
    if node is not None:
        table, op = types(task.body), _label(node)
        read = tuple(table[name] for name in node.uses[:2])
        yield _Same(op, read, node.types)
        yield op, read
        yield op, read[:1]
        yield op
        yield (ops.info(node.op).kind,)
    yield ()


def _label(node: Node) -> str:
    """The operator; a convolution in groups is another one, for libraries run it otherwise."""
    name = ops.packet_name(node.op)
    in_groups = node.op in CONVOLUTIONS and ops.arguments(node)["groups"] != 1
    return f"{name} in groups" if in_groups else name


def _main(task: Task) -> Node | None:
    """What a task is mostly about: its contraction, else its first node."""
    nodes = task.body.nodes
    contract = (node for node in nodes if ops.info(node.op).kind == "contract")
    return next(contract, nodes[0] if nodes else None)


def disarranged(graph: Graph) -> list[TensorType]:
    """The types of values that will be copied to channels_last: what enters a convolution in
    another layout, and what leaves the graph in one, for whoever reads it there."""
    table = types(graph)
    entering = {node.uses[0] for node in graph.nodes if node.op in CONVOLUTIONS}
    names = entering | {ref.name for ref in graph.outputs}
    made = {result for node in graph.nodes for result in node.results}
    found = (table[name] for name in names & made)
    return [type for type in found if len(type.shape) == 4 and not channels_last(type)]


def copy_us(type: TensorType, spec: TargetSpec) -> float:
    """Of a value to another layout."""
    moved = 2 * type.numel * type.dtype.itemsize / spec.bandwidth * 1e6
    return spec.launch_us + RAMP_US + moved


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

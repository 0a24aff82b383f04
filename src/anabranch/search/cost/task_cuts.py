"""Cuts: graphs as the tasks that they would fuse into; of each task what no measurement changes.

    graph -> without what depends on constants alone -> tasks -> pieces, and who waits for whom

A compilation searches again and again, each time by other prices, and meets mostly what it has met
before: rewriting keeps the nodes that it does not touch. So what was found out about nodes is kept
under their identity, and they with it, that no other node may come to have it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from anabranch.costs import Roofline
from anabranch.costs.work import WIDE, main_node
from anabranch.fusion import partition
from anabranch.fusion.legality import FusionFacts, why_not_written
from anabranch.ir import ops
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref, types
from anabranch.ir.key import structure_text
from anabranch.ir.ops import CONVOLUTIONS
from anabranch.ir.refused import Refused
from anabranch.ir.rule import ValueFacts
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph, task_producers
from anabranch.ir.types import TensorType
from anabranch.search.cost.layout_copies import Copies, clone, leaving
from anabranch.trace import Trace

K = TypeVar("K")
V = TypeVar("V")
Shaped = tuple[tuple[int, ...], torch.dtype]
CAT = "aten.cat.default"
STRIDES = re.compile(r"\{[0-9,]*\}")
"""In the text of a type."""
GAPS = 2.0
"""How much longer a contraction is taken to be that reads values with gaps between neighbours, as
every second channel of another: no load is wider than one of them. Not measured; careful, until one
was run."""
PASSED = "\nread by a move alone"
"""In the text of a move that is part of the next one."""
MOST_KEPT = 200_000
"""Graphs, tasks and groups kept at most, of each; who meets more begins anew."""


@dataclass(frozen=True, slots=True)
class TaskPiece:
    """A task as prices see it. `text` tells it from others, `anywhere` wherever its values lie;
    `rough_us`: its estimate; `likenesses`: what it is like, the nearest first; `task`: one of
    them, without a kernel. `free`: generated
    kernels may write its parts into their places, so that nothing is left to do. Where they may
    not, the graph as it was has the same concatenation, or that is soon known."""

    text: str
    anywhere: str
    rough_us: float
    likenesses: tuple[Hashable, ...]
    free: bool
    task: Task = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TaskCut:
    """A graph as pieces, each after those it waits for (`preds`). `leaving`: copies to another
    layout of what leaves it, for whoever reads that there."""

    pieces: tuple[TaskPiece, ...]
    preds: tuple[frozenset[int], ...]
    leaving: tuple[TaskPiece, ...] = ()


@dataclass(frozen=True, slots=True)
class MainOperator:
    """A main node: its operator, the types of its main operands, and of what it makes, wherever
    they lie. A bias is no main operand: it may as well be added by somebody else. A product under
    any name is the same if as many numbers are each the sum of as many: a 1x1 convolution, a
    linear and a product of matrices do not get faster by being called otherwise."""

    op: str
    operands: tuple[Shaped, ...]
    results: tuple[Shaped, ...]


class TaskCutter:
    """Cuts graphs for one machine, and remembers. `generates`: whether kernels are generated, which
    fuse more than a library does."""

    def __init__(self, spec: TargetSpec, generates: bool) -> None:
        self.spec, self._generates = spec, generates
        self._rough = Roofline(spec)
        self._cuts: dict[tuple[int, bool], tuple[Graph, TaskCut]] = {}
        self._pieces: dict[tuple[int, ...], tuple[tuple[Node, ...], TaskPiece]] = {}
        self._told: dict[str, TaskPiece] = {}
        self._paid: dict[str, TaskPiece] = {}
        self._parts: dict[str, TaskPiece] = {}
        self._written: dict[Hashable, tuple[Sequence[Node], Refused | None]] = {}
        self._copied: dict[TensorType, TaskPiece] = {}
        self.copies = Copies()

    def of(self, graph: Graph, arranged: bool = False) -> TaskCut:
        """The whole graph. `arranged`: with the copies that make it channels_last."""
        key = id(graph), arranged
        entry = self._cuts.get(key)
        if entry is None:
            entry = _room(self._cuts)[key] = graph, self._cut(graph, arranged)
        return entry[1]

    def tasks(self, graph: Graph) -> TaskGraph:
        """The tasks of a graph in which nothing depends on constants alone."""
        return partition(
            graph, Trace(), self.spec, pointwise=self._generates, unwritten=self._unwritten
        )

    def piece(self, task: Task) -> TaskPiece:
        """Of the task, whatever kernel it has; one for all that are alike."""
        nodes = task.body.nodes
        key = tuple(map(id, nodes))
        entry = self._pieces.get(key)
        if entry is None:
            text = structure_text(task.body)
            if text not in self._told:
                _room(self._told)[text] = self._piece(text, task)
            entry = _room(self._pieces)[key] = nodes, self._told[text]
        return entry[1]

    def pieces(self, tasks: TaskGraph) -> list[TaskPiece]:
        """Of all tasks. A concatenation is free only if each part of it is the whole result of a
        task, or comes from outside: a slice of something larger has its own place in memory. A
        move that only another move reads is part of that one where kernels are generated."""
        renamed = {name for node in tasks.aliases for name in node.results}
        views = renamed.union(*(node.uses for node in tasks.aliases))
        passed = _passed_on(tasks, views) if self._generates else set[str]()
        pieces: list[TaskPiece] = []
        for task, piece in zip(tasks.tasks, map(self.piece, tasks.tasks), strict=True):
            if task.name in passed:
                piece = self._part(piece)
            elif piece.free and not renamed.isdisjoint(task.reads):
                piece = self._kept(piece)
            pieces.append(piece)
        return pieces

    def _part(self, piece: TaskPiece) -> TaskPiece:
        """The same, in another task: what it takes alone says nothing of that."""
        if piece.text not in self._parts:
            text, place = piece.text + PASSED, piece.anywhere + PASSED
            part = replace(piece, text=text, anywhere=place, rough_us=0.0, free=True)
            _room(self._parts)[piece.text] = part
        return self._parts[piece.text]

    def _kept(self, piece: TaskPiece) -> TaskPiece:
        """The same, to be paid for."""
        if piece.text not in self._paid:
            _room(self._paid)[piece.text] = replace(piece, free=False)
        return self._paid[piece.text]

    def copy(self, type: TensorType) -> TaskPiece:
        """Of a value of this type to channels_last."""
        if type not in self._copied:
            inputs, node = (Input("x", type),), clone("x", type)
            body = Graph("copy", inputs, (), (node,), (Ref(node.name),))
            self._copied[type] = self.piece(Task("copy", body))
        return self._copied[type]

    def _cut(self, graph: Graph, arranged: bool) -> TaskCut:
        left = without_constants(graph)
        left = self.copies.into(left) if arranged else left
        tasks = self.tasks(left)
        makers = task_producers(tasks)
        place = {task.name: i for i, task in enumerate(tasks.tasks)}
        preds = tuple(
            frozenset(place[maker] for name in task.reads for maker in makers.get(name, ()))
            for task in tasks.tasks
        )
        return TaskCut(tuple(self.pieces(tasks)), preds, self._leaving(left) if arranged else ())

    def _leaving(self, graph: Graph) -> tuple[TaskPiece, ...]:
        makers = {result: node for node in graph.nodes for result in node.results}
        names = (ref.name for ref in graph.outputs)
        return tuple(map(self.copy, leaving(names, types(graph), makers)))

    def _piece(self, text: str, task: Task) -> TaskPiece:
        bare = Task(task.name, task.body)
        rough = self._rough.task(bare).us
        if any(map(gapped, _contracted(task))):
            rough *= GAPS
        free = self._generates and all(node.op == CAT for node in task.body.nodes)
        return TaskPiece(
            text, STRIDES.sub(_place, text), rough, tuple(_likenesses(task)), free, bare
        )

    def _unwritten(
        self, group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
    ) -> Refused | None:
        """As `why_not_written`, which does not depend on anything else."""
        produced = {name for node in group for name in node.results}
        read = tuple(facts.types[x] for node in group for x in node.uses if x not in produced)
        key = tuple(map(id, group)), read, outputs and tuple(outputs)
        entry = self._written.get(key)
        if entry is None:
            entry = _room(self._written)[key] = group, why_not_written(group, facts, outputs)
        return entry[1]


def _passed_on(tasks: TaskGraph, views: Set[str]) -> set[str]:
    """The names of moves whose results one other move reads, and nobody else."""
    readers: dict[str, list[Task]] = {}
    for task in tasks.tasks:
        for name in task.reads:
            readers.setdefault(name, []).append(task)
    kept = views | {ref.name for ref in tasks.outputs}
    kept |= {name for node in tasks.elided_concats for name in node.uses}
    return {
        task.name
        for task in tasks.tasks
        if _moves(task)
        and kept.isdisjoint(task.writes)
        and all(len(r := readers.get(name, [])) == 1 and _moves(r[0]) for name in task.writes)
    }


def _moves(task: Task) -> bool:
    """Whether it only moves numbers to other places; a concatenation has a price of its own."""
    return all(ops.kind_of(n) == "move" and n.op != CAT for n in task.body.nodes)


def _room(kept: dict[K, V]) -> dict[K, V]:
    """The same, with room for one more."""
    if len(kept) >= MOST_KEPT:
        kept.clear()
    return kept


def _likenesses(task: Task) -> Iterator[Hashable]:
    node = main_node(task)
    if node is not None:
        table = types(task.body)
        op = _label(node, table[node.uses[1]] if len(node.uses) > 1 else None)
        read = tuple(_shaped(table[name]) for name in node.uses[:2])
        yield MainOperator(op, read, tuple(map(_shaped, node.types)))
        if ops.contracts(node):
            work = ops.flops(node, table), node.type.numel
            yield MainOperator("product", ((work, node.type.dtype),), ())
        yield op, read
        yield op, read[:1]
        yield op
        yield (ops.kind_of(node),)
    yield ()


def _shaped(type: TensorType) -> Shaped:
    return type.shape, type.dtype


def _label(node: Node, weight: TensorType | None = None) -> str:
    """The operator; a convolution in groups is another one, for libraries run it otherwise, and one
    with too few channels in a group for tensor cores says little of those that have enough."""
    name = ops.packet_name(node.op)
    if node.op not in CONVOLUTIONS or ops.arguments(node)["groups"] == 1:
        return name
    small = weight is not None and weight.shape[1] < WIDE
    return f"{name} in small groups" if small else f"{name} in groups"


def _place(strides: re.Match[str]) -> str:
    """Where a value lies does not matter much, as long as its neighbours have no gaps."""
    return "" if "1" in strides[0].strip("{}").split(",") else "{gaps}"


def gapped(type: TensorType) -> bool:
    """Whether no two of its elements are neighbours in memory."""
    steps = [s for s, n in zip(type.strides, type.shape, strict=True) if n > 1]
    return bool(steps) and min(steps) > 1


def _contracted(task: Task) -> Iterator[TensorType]:
    """The types of what contractions read."""
    table = types(task.body)
    for node in task.body.nodes:
        if ops.contracts(node):
            yield from (table[name] for name in node.uses)


def without_constants(graph: Graph) -> Graph:
    """The graph as it will be when what depends on constants alone is computed ahead: such values
    are constants, which nobody has computed yet."""
    facts = ValueFacts.of(graph)
    ahead = [node for node in graph.nodes if facts.constant.issuperset(node.results)]
    if not ahead:
        return graph
    gone = {node.name for node in ahead}
    left = tuple(node for node in graph.nodes if node.name not in gone)
    read = {name for node in left for name in node.uses} | {ref.name for ref in graph.outputs}
    computed = tuple(
        Constant(name, type, name)
        for node in ahead
        for name, type in zip(node.results, node.types, strict=True)
        if name in read
    )
    held = tuple(constant for constant in graph.constants if constant.name in read)
    return replace(graph, constants=(*held, *computed), nodes=left)

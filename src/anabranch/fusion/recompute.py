r"""Again: cheap work that several groups read is done in each of them, and is no launch any more.

          h                              h
         / \                           / | \
        |   relu  1.1 us              |  |  |
        |   /  \                      |  |  |
        | d1    d2          ->        | {relu, d1}  {relu, d2}
        |                             |
       add                           add

A launch takes a microsecond however little it does, an instruction on what is read anyway takes
none. So instructions that several groups read are computed again in each, as far as it reads them,
if a template writes each of these as one kernel: in all of them or in none, for while one reads
a result from memory, somebody must write it. Nobody waits for more than before, so no circle comes
of it. Which way is faster, `merge_cuts` decides by measured times.

The norm of a single row, which a decoder has before its products, is such work as well: whoever
multiplies the row reads all of it, and sums up its squares on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from anabranch.fusion.gemm_chain import TRIED_SLOWDOWN
from anabranch.fusion.legality import (
    CHEAP,
    FusionFacts,
    body_of,
    is_depthwise,
    misread,
    why_not_written,
)
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.dag import in_launch_order, waiting
from anabranch.ir.graph import Graph, Input, Node, NodeGroup
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task, TaskGraph
from anabranch.kernels.triton.expected_time import expected_us, why_not_one
from anabranch.trace import Trace

NORMS = frozenset({"aten.rms_norm", "aten.layer_norm"})
MOST_NORMED = 1 << 13
"""Numbers of a row, at most, whose norm is computed by all who read it."""
MOST_READS = 3
"""Values that a reader may read to compute it, constants not counted: they come from memory in
place of one."""


def computed_again(tasks: TaskGraph, spec: TargetSpec, trace: Trace) -> TaskGraph:
    """The tasks without those that all who read them compute again, whose tasks have no kernel;
    the very same ones if there are none. They come in an order in which they can run, and no node
    is in two of them yet."""
    if tasks.elided_concats:
        return tasks
    search = _RecomputeSearch(tasks, spec)
    for at, group in enumerate(search.groups):
        normed = _is_row_norm(group)
        readers = search.readers(at) if normed or search.is_light(at) else set[int]()
        if len(readers) < (1 if normed else 2):
            continue
        what = " + ".join(f"%{node.name}" for node in group)
        recomputed = search.all_with(at, sorted(readers))
        if isinstance(recomputed, Refused):
            trace.add("refused", "fusion", what, recomputed.sentence)
            continue
        why = f"computed again in {len(readers)} readers: no launch of its own"
        trace.add("applied", "fusion", what, why)
        search.now.update(recomputed)
        del search.now[at]
    if len(search.now) == len(tasks.tasks):
        return tasks
    own = [_task(tasks.tasks[at], nodes, tasks, search.facts) for at, nodes in search.now.items()]
    changed = replace(tasks, tasks=tuple(own))
    if not tasks.states:
        return changed
    if waiting(changed):
        why = "a state would be read after it is written over"
        trace.add("refused", "fusion", tasks.name, why)
        return tasks
    return in_launch_order(changed)


def _task(task: Task, nodes: NodeGroup, tasks: TaskGraph, facts: FusionFacts) -> Task:
    """The task with these nodes; itself if it has them."""
    if nodes is task.body.nodes:
        return task
    results = {name for node in nodes for name in node.results}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in results)
    held = {constant.name: constant for constant in tasks.constants}
    inputs = tuple(Input(name, facts.types[name]) for name in read if name not in held)
    constants = tuple(held[name] for name in read if name in held)
    return Task(task.name, Graph(task.name, inputs, constants, nodes, task.body.outputs))


class _RecomputeSearch:
    """By number the groups as they are `now`, with what they compute again."""

    def __init__(self, tasks: TaskGraph, spec: TargetSpec) -> None:
        self.groups = [task.body.nodes for task in tasks.tasks]
        self.now = dict(enumerate(self.groups))
        self.outputs = [task.writes for task in tasks.tasks]
        self.facts, self.spec = FusionFacts.of(_whole(tasks)), spec
        self.paths = Paths.of(self.facts)
        self.home = {node.name: at for at, group in enumerate(self.groups) for node in group}

    def is_light(self, at: int) -> bool:
        """Whether the group is made of instructions alone and is as it was: one within the other,
        and so on, would tie ever more tasks into one decision."""
        return self.now[at] is self.groups[at] and all(map(_is_light, self.groups[at]))

    def readers(self, at: int) -> set[int]:
        """The groups that read what the group makes, through views or not."""
        results = (name for node in self.groups[at] for name in node.results)
        readers = (node for name in results for node in self.paths.readers.get(name, ()))
        return {self.home[node.name] for node in readers if node.name in self.home} - {at}

    def all_with(self, at: int, readers: Sequence[int]) -> dict[int, NodeGroup] | Refused:
        """These groups, each with what it reads of this one, or why not."""
        why = self._why_not_again(self.groups[at])
        groups: dict[int, NodeGroup] = {}
        for reader in readers:
            if not why:
                light = _wanted(self.groups[at], self.now[reader])
                groups[reader] = self._sorted(light, self.now[reader])
                why = self._why_not_in(light, reader, groups[reader])
        return why or groups

    def _why_not_again(self, light: NodeGroup) -> Refused | None:
        """Why somebody needs it in memory."""
        if any(node.name in self.facts.alone for node in light):
            return Refused("it writes in the place of a state")
        for name in (name for node in light for name in node.results):
            if name in self.facts.returned:
                return Refused(f"%{name} is returned")
            for node in self.facts.readers.get(name, ()):
                if ops.is_view(node, self.facts.types):
                    return Refused(f"%{node.name} is a view of it")
        return None

    def _why_not_in(self, light: NodeGroup, reader: int, nodes: NodeGroup) -> Refused | None:
        """Why a group may not compute this, or is expected to lose more than is saved."""
        results = {name for node in light for name in node.results}
        read = {name for node in light for name in node.uses} - results - {*self.facts.constants}
        if len(read) > MOST_READS:
            return Refused(f"each reader would read {len(read)} values to compute it")
        reading = [node for node in self.now[reader] if not results.isdisjoint(node.uses)]
        for node in reading:
            if node.name in self.facts.alone:
                return Refused(f"%{node.name} writes in the place of a state")
            if ops.kind_of(node) not in ("pointwise", "reduce", "contract"):
                return Refused(f"%{node.name} only moves what it reads")
        for node in light:
            if why := misread(node, [n for n in reading if node.name in n.uses]):
                return why
        outputs = self.outputs[reader]
        if _is_row_norm(light) and not all(map(ops.contracts, reading)):
            return Refused("the norm of a row is computed again by products alone")
        if _is_row_norm(light) or not any(_is_dense(node, self.facts) for node in nodes):
            return why_not_written(nodes, self.facts, outputs)
        each = (body_of(group, self.facts, outputs) for group in (nodes, self.now[reader]))
        return self._too_slow(light, *each)

    def _too_slow(self, light: NodeGroup, with_it: Graph, without: Graph) -> Refused | None:
        """Why a product does not compute it: no template does that, or tiles that suit it are not
        those that suit the product."""
        if why := why_not_one(with_it):
            return why
        what = f"%{light[-1].name}"
        us, before = (expected_us(body, self.spec) for body in (with_it, without))
        if us is None or before is None:
            return Refused(f"nobody knows what a product takes that computes {what}")
        saved = expected_us(body_of(light, self.facts), self.spec) or 0.0
        slower = us > TRIED_SLOWDOWN * (before + saved)
        return (
            Refused(f"{us:.1f} us expected with {what}, {before:.1f} without") if slower else None
        )

    def _sorted(self, *groups: NodeGroup) -> NodeGroup:
        """All their nodes once, in graph order."""
        nodes = {node.name: node for group in groups for node in group}
        return tuple(sorted(nodes.values(), key=lambda node: self.facts.position[node.name]))


def _whole(tasks: TaskGraph) -> Graph:
    """The graph that was cut into these tasks."""
    views = {name: node for node in tasks.aliases for name in node.results}
    nodes: dict[str, Node] = {}

    def add(node: Node) -> None:
        for name in node.uses:
            if name in views and views[name].name not in nodes:
                add(views[name])
        nodes[node.name] = node

    for node in (*(node for task in tasks.tasks for node in task.body.nodes), *tasks.aliases):
        if node.name not in nodes:
            add(node)
    ordered = tuple(nodes.values())
    border = tasks.name, tasks.inputs, tasks.constants
    return Graph(*border, ordered, tasks.outputs, states=tasks.states)


def _wanted(light: NodeGroup, reader: NodeGroup) -> NodeGroup:
    """The nodes of a group that another one must compute to have what it reads."""
    needed = {name for node in reader for name in node.uses}
    wanted: list[Node] = []
    for node in reversed(light):
        if not needed.isdisjoint(node.results):
            wanted.insert(0, node)
            needed.update(node.uses)
    return tuple(wanted)


def _is_light(node: Node) -> bool:
    return ops.kind_of(node) == "pointwise" and ops.packet_name(node.op) in CHEAP


def _is_row_norm(group: NodeGroup) -> bool:
    """Whether the group is the norm of a single row, and nothing else."""
    if len(group) != 1 or ops.packet_name(group[0].op) not in NORMS:
        return False
    type, normed = group[0].type, ops.arguments(group[0])["normalized_shape"]
    axes = len(normed) if isinstance(normed, tuple) else 1
    return type.numel == math.prod(type.shape[-axes:]) <= MOST_NORMED


def _is_dense(node: Node, facts: FusionFacts) -> bool:
    """Whether the node is a contraction over more than the taps of one channel."""
    return ops.contracts(node) and not is_depthwise(node, facts)

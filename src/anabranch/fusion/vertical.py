r"""Growing: vertical groups, an anchor with what follows it in the same launch.

    conv1   conv2          conv2 is the last: it takes the sum and the relu, conv1's result is its
       \    /             residual
        add          ->    {conv1}  {conv2, add, relu}
         |
        relu

By default only what a library runs in one call is grouped; `pointwise` also groups what a kernel
generator can: chains of pointwise nodes, those after a contraction, and those before and after a
reduction or a depthwise convolution, one of these a group, and sums of the rows of a contraction
(`norm_statistics`):

    x -> relu -> depthwise -> add -> relu        {relu, depthwise, add, relu}
    x -> add -> layer_norm -> gelu               {add, layer_norm, gelu}
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Container, Mapping, Sequence
from types import MappingProxyType

from anabranch.fusion.cluster import clusters, in_order
from anabranch.fusion.legality import (
    ADD,
    ADDMM,
    CONVOLUTION,
    GATHERS,
    GELU,
    LINEAR,
    RELU,
    FusionFacts,
    Unwritten,
    is_depthwise,
    why_not,
    why_not_pointwise,
    why_not_written,
)
from anabranch.fusion.norm_statistics import with_row_sums
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, NodeGroup
from anabranch.ir.refused import Refused
from anabranch.trace import Trace

EPILOGUES: dict[str, tuple[tuple[str, ...], ...]] = {
    CONVOLUTION: ((ADD, RELU), (RELU,), (ADD,)),
    LINEAR: ((RELU,), (GELU,)),
    ADDMM: ((RELU,), (GELU,)),
}
"""The nodes that libraries run after each anchor in the same call, the longest chains first."""


PAD = "aten.constant_pad_nd.default"


def grow(
    graph: Graph,
    trace: Trace,
    pointwise: bool = False,
    several: bool = False,
    unwritten: Unwritten = why_not_written,
    alone: Collection[str] = (),
    loops: Sequence[NodeGroup] = (),
    late: Mapping[str, int] = MappingProxyType({}),
) -> list[NodeGroup]:
    """Every node that is no view in exactly one group, its anchor the first contraction or else the
    first node. Groups come in an order in which they can run, nodes in graph order. `several`:
    groups with several results too, which hold the views they read through. Each node that is
    `alone` is a group of its own, and so is each of the `loops`. `late`: as in FusionFacts."""
    looped = {node.name: loop for loop in loops for node in loop}
    facts = FusionFacts.of(graph, {*alone, *looped}, late)
    nodes = [node for node in graph.nodes if not ops.is_view(node, facts.types)]
    deepest = [node for node in _by_depth(nodes, facts)[::-1] if node.name not in looped]
    home: dict[str, list[Node]] = {}
    for loop in loops:
        steps = [node for node in loop if not ops.is_view(node, facts.types)]
        home.update((node.name, steps) for node in steps)
    for anchor in deepest:
        if anchor.op in EPILOGUES and anchor.name not in home:
            group = _with_epilogue(anchor, home, facts, trace)
            home.update((node.name, group) for node in group if len(group) > 1)
    if pointwise:
        for node in deepest:
            _join_reader(node, home, facts, trace, unwritten)
    groups: list[NodeGroup] = []
    for node in nodes:
        members = home.get(node.name, [node])
        if node is members[-1]:
            groups.append(tuple(members))
    if pointwise:
        groups = with_row_sums(groups, facts, trace, unwritten)
    groups = clusters(groups, facts, trace) if several else groups
    if not loops:
        return groups
    paths = Paths.of(facts)
    read = [paths.with_views(g) if g[-1].name in looped else g for g in groups]
    return in_order(read, paths, facts)


def one_call(group: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Why these nodes are no single call of a library."""
    rest = tuple(node.op for node in group[1:])
    if rest not in EPILOGUES.get(group[0].op, ()):
        return Refused("no library has a call for these")
    follows = all(before.name in node.uses for before, node in itertools.pairwise(group))
    return why_not(group, facts) if follows else Refused("they are no chain")


def anchor_of(group: NodeGroup, views: Container[str] = ()) -> Node:
    """The node that names the group: its contraction, or its reduction, or its first node that is
    no view."""
    for kinds in (("contract",), ("reduce",), ("pointwise", "move", "factory", "opaque")):
        for node in group:
            if ops.kind_of(node) in kinds and node.name not in views:
                return node
    raise AssertionError("a group has a node that is no view")


def _by_depth(nodes: Sequence[Node], facts: FusionFacts) -> list[Node]:
    """The nodes by how many contractions and reductions lie before them at most, in an order in
    which they can run. Of several that one node reads, its launch goes to the deepest: the others
    are there by then, and nobody waits for more than before."""
    depth: dict[str, int] = {}
    for node in (facts.makers[name] for name in facts.types if name in facts.makers):
        own = ops.kind_of(node) in ("contract", "reduce")
        before = (depth[name] for name in node.uses if name in depth)
        depth.update(dict.fromkeys(node.results, max(before, default=0) + own))
    return sorted(nodes, key=lambda node: depth[node.name])


def _with_epilogue(
    anchor: Node, home: dict[str, list[Node]], facts: FusionFacts, trace: Trace
) -> list[Node]:
    """The anchor with the longest epilogue that is legal."""
    for names in EPILOGUES[anchor.op]:
        chain = _follow(anchor, names, facts)
        if chain is None:
            continue
        taken = next((node for node in chain if node.name in home), None)
        why: Refused | None
        if taken is not None:
            why = Refused(f"%{taken.name} already runs with %{home[taken.name][0].name}")
        else:
            why = why_not(chain, facts)
        if not why:
            trace.add("applied", "fusion", _said(chain), "one call of a library")
            return chain
        trace.add("refused", "fusion", _said(chain), why.sentence)
    return [anchor]


def _follow(anchor: Node, names: tuple[str, ...], facts: FusionFacts) -> list[Node] | None:
    """The anchor and readers of these operators, one after the other, if there are any."""
    chain = [anchor]
    for name in names:
        readers = facts.readers.get(chain[-1].name, ())
        reader = next((node for node in readers if node.op == name), None)
        if reader is None:
            return None
        chain.append(reader)
    return chain


def _join_reader(
    node: Node, home: dict[str, list[Node]], facts: FusionFacts, trace: Trace, unwritten: Unwritten
) -> None:
    """Puts a node, with the group it ends, into the group of its readers, if one of the two is
    pointwise and at most one node of them all is not."""
    kind = ops.kind_of(node)
    own = home.get(node.name, [node])
    readers = facts.readers.get(node.name, ())
    fusible = kind in ("pointwise", "contract", "reduce") or ops.packet_name(node.op) in GATHERS
    if not fusible or node is not own[-1] or not readers or node.name in facts.alone:
        return
    reader = readers[0]
    if reader.name in facts.alone:
        return
    group = home.get(reader.name, [reader])
    after = ops.kind_of(reader) == "pointwise"
    before = _takes_prologue(reader, facts) and (kind == "pointwise" or node.op == PAD)
    # A padding that already runs with what reads it hands on what it reads.
    through = reader.op == PAD and bool(_anchors(group)) and kind == "pointwise"
    if group is own or not (after or before or through):
        return
    ours, theirs = (_anchors(part) for part in (own, group))
    merged = sorted((*own, *group), key=lambda member: facts.position[member.name])
    why: Refused | None
    if ours and theirs:
        taken, by = (node, ours[0]) if theirs[0] is reader else (reader, theirs[0])
        why = Refused(f"%{taken.name} already runs with %{by.name}")
        if taken is by:
            why = Refused(f"%{node.name} and %{reader.name} are no pointwise nodes")
    else:
        why = why_not_pointwise(node, group, facts)
        # What a contraction runs with is decided where its kernels are written.
        if not why and any(_takes_prologue(anchor, facts) for anchor in (*ours, *theirs)):
            why = unwritten(merged, facts)
    if why:
        trace.add("refused", "fusion", _said([node, reader]), why.sentence)
        return
    home.update((member.name, merged) for member in merged)


def _anchors(group: list[Node]) -> list[Node]:
    return [node for node in group if ops.kind_of(node) in ("contract", "reduce")]


def _takes_prologue(node: Node, facts: FusionFacts) -> bool:
    return ops.kind_of(node) == "reduce" or is_depthwise(node, facts)


def _said(chain: list[Node]) -> str:
    return " + ".join(f"%{node.name}" for node in chain)

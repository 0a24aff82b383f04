r"""GEMM chains: a contraction and what it reads, in one launch, through the chip's own memory.

    x -- {conv 3x3, relu} -- {conv 1x1, add, relu} --       ->    {conv, relu, conv, add, relu}
                                  \-- r

A convolution, linear layer or pooling, with what runs with it, whose result is read by the
contraction of one other group alone, may run with that group, if a template writes both as one
kernel and its best tile is not expected to be slower than the best tiles of both: tiles of the
second one compute the first one again, so this pays where the first one's channels fit a tile.

Light work joins a contraction in the same way: what is computed of its input, element by element,
runs where it is read, and a change of layout where results are stored.

    x -- {mul, by what SE says} -- {conv 1x1, add} -- {clone, contiguous} --

Work along the steps of a sequence joins the products of all of them, where a tile holds these.

    x -- {linear} -- {sigmoid, mul, recurrence, tanh, mul} --

An attention takes in what makes its queries, its keys and its values: rotations by their places,
say. Of chains that have a group in common the one that gains most is taken, and then all are looked
at again. Which way is faster, `merge_cuts` decides by measured times.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from anabranch.fusion.cluster import MOVES
from anabranch.fusion.legality import (
    CHEAP,
    CONVOLUTION,
    MOST_PROLOGUE_READS,
    FusionFacts,
    body_of,
    differs,
    why_not_written,
)
from anabranch.ir import ops
from anabranch.ir.graph import Node, NodeGroup
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Task
from anabranch.kernels.dfg.concat_stores import CONCATS
from anabranch.kernels.dfg.scans import SCANS
from anabranch.kernels.triton.expected_time import expected_us, why_not_one
from anabranch.trace import Trace

CLONE = "aten.clone.default"
TRIED_SLOWDOWN = 1.15
"""How much slower than its groups a chain may be expected to be and still be tried: expectations
are off by 3 to 10%."""


@dataclass(frozen=True, slots=True)
class ChainOffer:
    """Two groups by number, the nodes of both, and what a launch of all is expected to take, beside
    what one for each takes."""

    first: int
    second: int
    nodes: NodeGroup
    us: float
    apart_us: float

    @property
    def more(self) -> float:
        """What one launch takes more than two: the less, the better."""
        return self.us - self.apart_us


def with_gemm_chains(
    groups: Sequence[NodeGroup], facts: FusionFacts, spec: TargetSpec, trace: Trace, rounds: int = 1
) -> list[NodeGroup]:
    """The groups, some of them joined two by two, in an order in which they can run. In further
    rounds a chain may get light work before it, and a change of layout behind."""
    current, heard, left = list(groups), trace, dict[str, tuple[Node, Node]]()
    for _ in range(rounds):
        offers = sorted(_offers(current, facts, spec, heard), key=lambda o: (o.more, o.first))
        chained, others = _chained(current, offers, trace)
        left |= others
        if len(chained) == len(current):
            break
        current, heard = chained, trace.child()
    home = {node.name: at for at, group in enumerate(current) for node in group}
    for what, (first, second) in left.items():
        if home[first.name] != home[second.name]:
            trace.add("refused", "fusion", what, "another chain of one of them gains more")
    return current


def _chained(
    groups: Sequence[NodeGroup], offers: Iterable[ChainOffer], trace: Trace
) -> tuple[list[NodeGroup], dict[str, tuple[Node, Node]]]:
    """The groups with the first of these chains, and those that have a group in common with one of
    them: what they are called, and a node of each group."""
    taken: dict[int, NodeGroup] = {}
    left: dict[str, tuple[Node, Node]] = {}
    for offer in offers:
        what = _said(groups, offer.first, offer.second)
        if taken.keys() & {offer.first, offer.second}:
            left[what] = groups[offer.first][0], groups[offer.second][0]
            continue
        said = f"{offer.us:.1f} us expected in one launch, {offer.apart_us:.1f} in two"
        trace.add("applied", "fusion", what, f"one launch: {said}")
        # What the first one makes is read in the second one alone, so it may as well run there.
        taken |= {offer.first: (), offer.second: offer.nodes}
    return [nodes for at, group in enumerate(groups) if (nodes := taken.get(at, group))], left


def _offers(
    groups: Sequence[NodeGroup], facts: FusionFacts, spec: TargetSpec, trace: Trace
) -> Iterator[ChainOffer]:
    """All chains that are legal and may pay; the others are refused with a sentence."""
    home = {node.name: at for at, group in enumerate(groups) for node in group}
    for at, group in enumerate(groups):
        others = {home.get(node.name, at) for node in _readers(group, facts)} - {at}
        others = {o for o in others if _suits(group, groups[o], facts)}
        if not others:
            continue
        other = min(others)
        nodes = _with_views(group, groups[other], facts)
        why = why_not_gemm_chain(group, groups[other], facts)
        if not why:
            us = expected_us(body_of(nodes, facts), spec)
            each = [expected_us(body_of(part, facts), spec) for part in (group, groups[other])]
            apart = sum(estimate for estimate in each if estimate is not None)
            if us is None:
                why = Refused("no tile of both products fits a multiprocessor")
            elif None in each:
                why = Refused("nobody knows what they would take apart")
            elif us <= TRIED_SLOWDOWN * apart:
                yield ChainOffer(at, other, nodes, us, apart)
                continue
            else:
                why = Refused(f"{us:.1f} us expected in one launch, {apart:.1f} in two")
        trace.add("refused", "fusion", _said(groups, at, other), why.sentence)


def _suits(first: NodeGroup, second: NodeGroup, facts: FusionFacts) -> bool:
    """Whether the two are of kinds that go together, one contraction at least among them."""
    ours, theirs = ([ops.contracts(node) for node in _anchors(group)] for group in (first, second))
    if theirs == [True]:
        product = len(ours) == 1 and not _attends(second)
        return product or (not ours and _light(first, facts))
    if any(ops.packet_name(node.op) in SCANS for node in second):
        return ours == [True]
    moved = (node for node in second if not ops.is_view(node, facts.types))
    return ours == [True] and all(node.op == CLONE for node in moved)


def _readers(group: NodeGroup, facts: FusionFacts) -> Iterator[Node]:
    """The nodes, other than views, that read the group's last value or a view of it."""
    left = [group[-1].name]
    while left:
        for node in facts.readers.get(left.pop(), ()):
            if ops.is_view(node, facts.types):
                left += node.results
            else:
                yield node


def _with_views(first: NodeGroup, second: NodeGroup, facts: FusionFacts) -> NodeGroup:
    """The nodes of both, and the views through which the second one reads the first."""
    own, nodes = {node.name for node in first}, {node.name: node for node in (*first, *second)}
    for node in second:
        for name in node.uses:
            path, maker = list[Node](), facts.makers.get(name)
            while maker is not None and maker.name not in own:
                if maker.name in nodes or not ops.is_view(maker, facts.types):
                    break
                path.append(maker)
                maker = facts.makers.get(maker.uses[0])
            else:
                nodes.update((view.name, view) for view in path if maker is not None)
    return tuple(sorted(nodes.values(), key=lambda node: facts.position[node.name]))


def why_not_gemm_chain(first: NodeGroup, second: NodeGroup, facts: FusionFacts) -> Refused | None:
    """Why two groups, of which the second one reads the first one's result, cannot be one kernel.
    Values between the two are never in memory, so nobody else may read them."""
    nodes = _with_views(first, second, facts)
    inside = {node.name for node in nodes}
    views = [node for node in nodes if node not in first and node not in second]
    for name in (name for node in _makers((*first, *views), facts) for name in node.results):
        outside = [n for n in facts.readers.get(name, ()) if n.name not in inside]
        if name in facts.returned:
            return Refused(f"%{name} is returned")
        if outside:
            return Refused(f"%{name} is also read by %{outside[0].name}")
    if not _anchors(second):
        return why_not_one(body_of(nodes, facts))
    last = {first[-1].name, *(name for node in views for name in node.results)}
    reading = [node for node in second if last.intersection(node.uses)]
    for node in reading:
        if not ops.contracts(node) or sum(map(node.uses.count, last)) > 1:
            return Refused(f"%{node.name} reads %{first[-1].name} otherwise than as its input")
    why = _waits(nodes, facts) if _anchors(first) else _again(first, reading, facts)
    return why or why_not_one(body_of(nodes, facts))


def _makers(nodes: Sequence[Node], facts: FusionFacts) -> Iterator[Node]:
    """Those that make something, or view what these make: views of other values are had for
    nothing, so who else reads one does not matter."""
    results = set[str]()
    for node in nodes:
        if not ops.is_view(node, facts.types) or results.intersection(node.uses):
            results.update(node.results)
            yield node


def why_not_one_kernel(
    group: Sequence[Node], facts: FusionFacts, outputs: Sequence[str] | None = None
) -> Refused | None:
    """Why no template writes the group, of one anchor or a chain of two. As
    `legality.why_not_written`, for which what lies before a window must be cheap."""
    anchors = _anchors(group)
    if (
        len(anchors) < 2
        or not any(map(ops.contracts, anchors))
        or any(map(_reduces_whole_axes, group))
    ):
        return why_not_written(group, facts, outputs)
    said = " and ".join(f"%{anchor.name}" for anchor in anchors)
    if len(anchors) > 2 and not _attends(tuple(group)):
        return Refused(f"a template writes two products or windows as one kernel, not {said}")
    if outputs is not None and list(outputs) != list(group[-1].results):
        return Refused(f"of {said} the last result alone is written")
    return why_not_one(body_of(group, facts))


def _reduces_whole_axes(node: Node) -> bool:
    """Whether the node reduces axes and not windows, as pooling does."""
    return ops.kind_of(node) == "reduce" and "pool" not in node.op


def _again(light: NodeGroup, reading: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Why light work is too much to be done wherever an element is read: for each tile of columns,
    and for each tap of a window."""
    results = {name for node in light for name in node.results}
    read = {name for node in light for name in node.uses} - results
    concatenates = any(ops.packet_name(node.op) in CONCATS for node in light)
    if reading[0].op == CONVOLUTION and not concatenates:  # parts may be written into their places
        places = len(reading[0].types[0].shape) - 2
        read = {name for name in read if differs(facts.types[name], places)}
    if len(read) > MOST_PROLOGUE_READS:
        return Refused(f"%{reading[0].name} would read {len(read)} values for each it multiplies")
    for anchor in reading:
        weight = facts.types[anchor.uses[1]].shape if len(anchor.uses) > 1 else ()
        costly = (n for n in light if ops.packet_name(n.op) not in CHEAP and n.op != CLONE)
        if (
            anchor.op == CONVOLUTION
            and any(n > 1 for n in weight[2:])
            and (n := next(costly, None))
        ):
            return Refused(f"%{n.name} would be computed again for each window it lies in")
    return None


def _waits(nodes: Sequence[Node], facts: FusionFacts) -> Refused | None:
    """Why the first anchor would start later: times of kernels do not show what ran beside it."""
    anchor, results = _anchors(nodes)[0], {name for node in nodes for name in node.results}
    for name in (name for node in nodes for name in node.uses):
        if name not in results and not facts.awaits(anchor, name):
            return Refused(f"%{anchor.name} would wait for %{name}, which can run beside it")
    return None


def is_gemm_chain(task: Task) -> bool:
    """Whether the task has more than one contraction or pooling."""
    return len(_anchors(task.body.nodes)) > 1


def _anchors(group: Sequence[Node]) -> list[Node]:
    """The contractions and poolings of a group."""
    return [node for node in group if ops.contracts(node) or "pool" in ops.packet_name(node.op)]


def _attends(group: NodeGroup) -> bool:
    return any(node.op == ops.ATTENTION for node in group)


def _light(group: NodeGroup, facts: FusionFacts) -> bool:
    """Whether the group computes element by element, or moves what it reads; a concatenation alone
    may cost nothing at all, which is for others to try."""
    pointwise = [ops.kind_of(node) == "pointwise" for node in group]
    moves = [ops.packet_name(n.op) in MOVES or ops.is_view(n, facts.types) for n in group]
    alone = not any(pointwise) and any(ops.packet_name(node.op) in CONCATS for node in group)
    alone = alone or any(node.name in facts.alone for node in group)
    return all(map(operator.or_, pointwise, moves)) and not alone


def _said(groups: Sequence[NodeGroup], first: int, second: int) -> str:
    """Both groups by their anchors, or by their last nodes."""
    anchors = [node for at in (first, second) for node in _anchors(groups[at]) or groups[at][-1:]]
    return " + ".join(f"%{node.name}" for node in anchors)

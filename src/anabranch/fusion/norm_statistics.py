r"""Sums of rows: what others must know of the rows that a contraction makes, it sums up itself, and
what it must know of the rows that it multiplies.

        x = linear + z                         its kernel has whole parts of x's rows in registers
       / \
      |   u, q: mean and variance of   ->     {linear, z, x, u, q}, all three are results
      |   / \  every 32 numbers of x
      |  m   |
      |  | \ |
      |  |  r                                  its kernel reads a few numbers of each row
      |  | /
      y = (linear - m s) r             ->     {m, r, linear, y}, m and r are results if others
       \                                      read them, to add the normalised rows to something
        others                                 say: they wait for the products then

Groups that compute numbers of parts of rows run with the contraction that makes the rows, and
groups that compute numbers of rows, of a few numbers in memory, with the contraction that reads
them, if a template writes both as one kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from anabranch.fusion.cluster import in_order
from anabranch.fusion.legality import FusionFacts, Unwritten
from anabranch.fusion.reachability import Reach
from anabranch.fusion.views import Paths
from anabranch.ir import ops
from anabranch.ir.dag import bits
from anabranch.ir.graph import Node, NodeGroup
from anabranch.ir.refused import Refused
from anabranch.kernels.triton.contraction_axes import MOST_SHORT
from anabranch.trace import Trace


def with_row_sums(
    groups: Sequence[NodeGroup], facts: FusionFacts, trace: Trace, unwritten: Unwritten
) -> list[NodeGroup]:
    """The groups, contractions with what they sum up, in an order in which they can run."""
    paths = Paths.of(facts)
    for find, said in (
        (_after, "summed of the rows it makes"),
        (_before, "summed with the products"),
    ):
        groups = _joined(groups, find, said, paths, trace, unwritten)
    return list(groups)


Find = Callable[[NodeGroup, Sequence[NodeGroup], Mapping[str, int], Paths], set[int]]
"""The groups, by number, that may run with this one."""


def _joined(
    groups: Sequence[NodeGroup],
    find: Find,
    said: str,
    paths: Paths,
    trace: Trace,
    unwritten: Unwritten,
) -> Sequence[NodeGroup]:
    """The groups, each with those found for it, if that can be written and waits for nobody."""
    facts = paths.facts
    home = {node.name: at for at, group in enumerate(groups) for node in group}
    joined: dict[int, NodeGroup] = {}
    reach: Reach | None = None
    for at, group in enumerate(groups):
        summed = find(group, groups, home, paths) - joined.keys()
        if not summed:
            continue
        taken = [node for other in summed for node in groups[other]]
        nodes = _with_own_views([*group, *taken], paths)
        anchor = next(node for node in group if ops.contracts(node))
        what = f"%{anchor.name} + " + " + ".join(f"%{n.name}" for n in taken if _is_reduction(n))
        reach = reach or Reach.of(paths.edges(groups))
        why = _between(groups, {at, *summed}, reach)
        why = why or unwritten(nodes, facts, paths.outputs(nodes))
        if why:
            trace.add("refused", "fusion", what, why.sentence)
            continue
        trace.add("applied", "fusion", what, said)
        joined |= {at: nodes, **dict.fromkeys(summed, ())}
        for other in summed:
            reach.merge(at, other)
    if not joined:
        return groups
    left = [nodes for at, group in enumerate(groups) if (nodes := joined.get(at, group))]
    return in_order(left, paths, facts)


def _after(
    group: NodeGroup, groups: Sequence[NodeGroup], home: Mapping[str, int], paths: Paths
) -> set[int]:
    """The groups that compute, of parts of the rows that this one makes, numbers for each part."""
    facts, at = paths.facts, home[group[-1].name]
    if len(group[-1].types) != 1 or sum(map(ops.contracts, group)) != 1:
        return set()
    *lead, length = group[-1].type.shape or (1,)
    summed: set[int] = set()
    stack, shapes = [group[-1].name], set[tuple[int, ...]]()
    while stack:
        for reader in paths.readers.get(stack.pop(), ()):
            other = home[reader.name]
            if other == at or other in summed:
                continue
            parts = [shape for name in reader.uses if len(shape := facts.types[name].shape) > 1]
            if not shapes:  # of the first who reads parts
                cut = [p for p in parts if [*p[:-2]] == lead and p[-2] * p[-1] == length != p[-1]]
                shapes |= {shape for p in cut for shape in (p, p[:-1], (*p[:-1], 1))}
            small = all(type.shape in shapes for node in groups[other] for type in node.types)
            if not small or not _sums(groups[other]):
                continue
            sources = {home[name] for node in groups[other] for name in paths.sources(node)}
            if sources <= {at, other, *summed}:
                summed.add(other)
                stack += [name for node in groups[other] for name in node.results]
    nodes = [node for other in summed for node in groups[other]]
    kept = {len(facts.types[name].shape) for name in paths.outputs(nodes)} if nodes else set()
    return summed if any(map(_is_reduction, nodes)) and kept <= {len(lead) + 1} else set()


def _before(
    group: NodeGroup, groups: Sequence[NodeGroup], home: Mapping[str, int], paths: Paths
) -> set[int]:
    """The groups that compute numbers that this one reads, for each row that it multiplies, of a
    few numbers in memory."""
    anchors = [node for node in group if ops.contracts(node)]
    if len(anchors) != 1:
        return set()
    rows, results = anchors[0].uses[0], {name for node in group for name in node.results}
    summed: set[int] = set()
    for name in {name for node in group for name in node.uses} - results - {rows}:
        chain = _chain(name, rows, groups, home, paths.facts)
        if any(_is_reduction(node) for at in chain for node in groups[at]):
            summed |= chain
    return summed


def _chain(
    name: str, rows: str, groups: Sequence[NodeGroup], home: Mapping[str, int], facts: FusionFacts
) -> set[int]:
    """The groups by which a value is computed of constants and of a few numbers for each of these
    rows that others make; none if it is not."""

    def few(value: str) -> bool:
        *lead, length = facts.types[value].shape or (1,)
        *wanted, whole = facts.types[rows].shape or (1,)
        return lead == wanted and length <= min(MOST_SHORT, whole - 1)

    chain: set[int] = set()
    stack = [name]
    while stack:
        value = stack.pop()
        maker = facts.makers.get(value)
        at = home.get(maker.name) if maker is not None else None
        if at in chain or value in facts.constants:
            continue
        group = groups[at] if at is not None else ()
        own = {result for node in group for result in node.results}
        read = {use for node in group for use in node.uses} - own
        available = all(use in facts.constants or few(use) for use in read)
        if at is not None and available and _sums(group):
            chain.add(at)
            stack += read
        elif not few(value):
            return set()
    return chain


def _with_own_views(nodes: Sequence[Node], paths: Paths) -> NodeGroup:
    """The nodes and the views through which they read each other, in graph order."""
    results = {name for node in nodes for name in node.results}
    views = [n for n in paths.with_views(nodes) if n.name in paths.views]
    own = [view for view in views if paths.root(view.name) in results and view not in nodes]
    return tuple(sorted((*nodes, *own), key=lambda node: paths.facts.position[node.name]))


def _sums(group: NodeGroup) -> bool:
    """Whether it is made of sums and arithmetic alone."""
    return bool(group) and all(_is_reduction(node) or _is_pointwise(node) for node in group)


def _between(groups: Sequence[NodeGroup], joined: Collection[int], reach: Reach) -> Refused | None:
    """The refusal where a group waits for some of these groups and is waited for by others. A group
    that was joined before, with results of several nodes, waits as a whole."""
    above = below = own = 0
    for at in joined:
        above, below, own = above | reach.above[at], below | reach.below[at], own | reach.own[at]
    stands = next(bits(above & below & ~own & reach.live), None)
    return None if stands is None else Refused(f"%{groups[stands][-1].name} stands between them")


def _is_reduction(node: Node) -> bool:
    return ops.kind_of(node) == "reduce"


def _is_pointwise(node: Node) -> bool:
    return ops.kind_of(node) == "pointwise"

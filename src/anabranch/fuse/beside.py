r"""Beside: what a contraction must know of the rows that it multiplies, it sums up itself.

        x ------------.
       / \             \
   mean   mean(x x)     linear(x, w)          the linear's kernel loads all of x's rows: it adds
       \ /              /                     them up, and their squares, beside the products
    m, r  ---- y = linear r - m r s     ->
       \                                      {mean, mean, ..., r, linear, y}, m and r are results
        others

Groups that compute a few numbers for each row of what a contraction multiplies, of that and of
constants alone, run with the contraction that reads them if a template writes both as one kernel.
Who else reads the numbers, to add the normalised rows to something, waits for the products then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anabranch.fuse.cluster import in_order
from anabranch.fuse.legal import Facts, Unwritten
from anabranch.fuse.paths import Paths
from anabranch.fuse.reach import Reach
from anabranch.ir import ops
from anabranch.ir.dag import bits
from anabranch.ir.graph import Node
from anabranch.trace import Trace

Group = tuple[Node, ...]


def beside(
    groups: Sequence[Group], facts: Facts, trace: Trace, unwritten: Unwritten
) -> list[Group]:
    """The groups, contractions with what they sum up beside their products, in an order in which
    they can run."""
    home = {node.name: at for at, group in enumerate(groups) for node in group}
    paths = Paths.of(facts)
    found: dict[int, Group] = {}
    reach: Reach | None = None
    for at, group in enumerate(groups):
        summed = _summed(group, groups, home, facts) - found.keys()
        if not summed:
            continue
        taken = [node for other in summed for node in groups[other]]
        nodes = tuple(sorted((*group, *taken), key=lambda node: facts.position[node.name]))
        anchor = next(node for node in group if _contracts(node))
        what = f"%{anchor.name} + " + " + ".join(f"%{n.name}" for n in taken if _reduces(n))
        reach = reach or Reach.of(paths.edges(groups))
        why = _between(groups, {at, *summed}, reach)
        why = why or unwritten(nodes, facts, paths.outputs(nodes))
        if why:
            trace.add("refused", "fuse", what, why)
            continue
        trace.add("applied", "fuse", what, "summed beside the products")
        found |= {at: nodes, **dict.fromkeys(summed, ())}
        for other in summed:
            reach.merge(at, other)
    if not found:
        return list(groups)
    left = [nodes for at, group in enumerate(groups) if (nodes := found.get(at, group))]
    return in_order(left, paths, facts)


def _summed(group: Group, groups: Sequence[Group], home: dict[str, int], facts: Facts) -> set[int]:
    """The groups that compute, of the rows that this one multiplies, numbers that it reads."""
    anchors = [node for node in group if ops.info(node.op).kind in ("contract", "reduce")]
    if len(anchors) != 1 or not _contracts(anchors[0]):
        return set()
    rows, made = anchors[0].uses[0], {name for node in group for name in node.results}
    found: set[int] = set()
    for name in {name for node in group for name in node.uses} - made - {rows}:
        chain = _chain(name, rows, groups, home, facts)
        if any(_reduces(node) for at in chain for node in groups[at]):
            found |= chain
    return found


def _chain(
    name: str, rows: str, groups: Sequence[Group], home: dict[str, int], facts: Facts
) -> set[int]:
    """The groups by which a value is computed of these rows and constants alone; none if it is
    not, or others than sums and arithmetic are among them."""
    found: set[int] = set()
    stack = [name]
    while stack:
        maker = facts.makers.get(stack.pop())
        at = home.get(maker.name) if maker is not None else None
        if at is None or not all(_reduces(n) or _computes(n) for n in groups[at]):
            return set()
        if at in found:
            continue
        found.add(at)
        made = {result for node in groups[at] for result in node.results}
        read = {use for node in groups[at] for use in node.uses} - made - {rows}
        stack += [use for use in read if use not in facts.constants]
    return found


def _between(groups: Sequence[Group], joined: Collection[int], reach: Reach) -> str:
    """Who waits for some of these groups and is waited for by others; "" if nobody does. A group
    that was joined before, with results of several nodes, waits as a whole."""
    above = below = own = 0
    for at in joined:
        above, below, own = above | reach.above[at], below | reach.below[at], own | 1 << at
    stands = next(bits(above & below & ~own), None)
    return "" if stands is None else f"%{groups[stands][-1].name} stands between them"


def _contracts(node: Node) -> bool:
    return ops.info(node.op).kind == "contract"


def _reduces(node: Node) -> bool:
    return ops.info(node.op).kind == "reduce"


def _computes(node: Node) -> bool:
    return ops.info(node.op).kind == "pointwise"

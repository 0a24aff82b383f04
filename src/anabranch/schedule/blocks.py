"""Blocks: a dag -> parts that can be scheduled one after another, as IOS needs them.

First cut: after every node that is before or after each other node. While it runs nothing else
can, so nothing is lost: a stage cannot profitably span it. That finds the single-tensor points of
a network, and the inside of skip connections too.

    x --> conv --+--> b --+
                 |        +--> concat --> pool        cuts after conv, concat, pool
                 +--> c --+

Second cut, which may lose concurrency, only for a block of more than `max_nodes` chains: after a
node where two values are alive at most (NASNet, whose cells read the two cells before), then
three, four; of nodes with as many values those first that the fewest others could run beside. IOS
marks these *parts* by hand, at the outputs of cells. Third: every `max_nodes` chains, from top to
bottom.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anabranch.ir.dag import Dag, bits, width
from anabranch.schedule.chains import chains, joined, levelled

MAX_NODES = 50  # IOS's max_part_size
MAX_ALIVE = 4


def blocks(dag: Dag, max_nodes: int | None = MAX_NODES, compound: bool = False) -> tuple[int, ...]:
    """The blocks as masks, in order; their union is the dag. None: no second and third cut.
    `compound`: the nodes are IOS's operators already, so none are taken together as a chain."""
    return tuple(part for block in _first(dag) for part in _second(dag, block, max_nodes, compound))


def _first(dag: Dag) -> tuple[int, ...]:
    everything = (1 << len(dag.names)) - 1
    ancestors, descendants = dag.ancestors(), dag.descendants()
    masks: list[int] = []
    done = 0
    for v in range(len(dag.names)):
        until = ancestors[v] | 1 << v
        if until | descendants[v] == everything:
            masks.append(until & ~done)
            done = until
    if done != everything:
        masks.append(everything & ~done)
    return tuple(masks)


def _second(dag: Dag, block: int, max_nodes: int | None, compound: bool) -> Iterator[int]:
    if max_nodes is None or block.bit_count() <= max_nodes:
        yield block
        return
    nodes, inside = list(bits(block)), dag.restrict(block)
    units = tuple(1 << v for v in range(len(nodes))) if compound else chains(inside)
    short = joined(inside, units)
    # What the block before has left is alive too, as long as somebody here reads it.
    reads = [any(dag.preds[nodes[v]] & ~block for v in bits(unit)) for unit in units]
    late = sum(1 << i for i, read in enumerate(reads) if read) if compound else 0
    parts = _parts(short, late, (1 << len(units)) - 1, max_nodes, alive=2)
    for part in _wide(short, parts, max_nodes) if compound else parts:
        yield sum(1 << nodes[v] for i in bits(part) for v in bits(units[i]))


def _wide(dag: Dag, parts: Iterator[int], max_nodes: int) -> Iterator[int]:
    """The parts, those of width one put before the next: a cut saved them nothing. So the first
    operator of a cell stays in it, although as few values are alive after it as before it."""
    narrow = 0
    for part in parts:
        if (narrow | part).bit_count() > max_nodes:
            yield narrow
            narrow = 0
        narrow |= part
        if width(dag.restrict(narrow)) > 1:
            yield narrow
            narrow = 0
    if narrow:
        yield narrow


def _parts(dag: Dag, late: int, block: int, max_nodes: int, alive: int) -> Iterator[int]:
    if block.bit_count() <= max_nodes:
        yield block
    elif alive > MAX_ALIVE:
        nodes = [v for v in levelled(dag) if block >> v & 1]
        for i in range(0, len(nodes), max_nodes):
            yield sum(1 << v for v in nodes[i : i + max_nodes])
    else:
        for begin, end in pairwise([0, *_cuts(dag, late, block, alive), block]):
            if end != begin:
                yield from _parts(dag, late, end & ~begin, max_nodes, alive + 1)


def _cuts(dag: Dag, late: int, block: int, alive: int) -> list[int]:
    """Nested prefixes of the block, each a node and all before it, that leave `alive` values, one
    of them for the nodes of `late`."""
    candidates: list[tuple[int, int, int]] = []
    size, ancestors = block.bit_count(), dag.ancestors()
    beside = _beside(ancestors, block)
    for v in bits(block):
        until = (ancestors[v] | 1 << v) & block
        crossing = sum(1 for u in bits(until) if dag.succs[u] & block & ~until)
        crossing += bool(late & block & ~until)
        if crossing <= alive and until.bit_count() < size:
            candidates.append((beside[v], v, until))
    kept: list[int] = []
    for _, _, until in sorted(candidates):
        if all(until & ~other == 0 or other & ~until == 0 for other in kept):
            kept.append(until)
    return sorted(kept)


def _beside(ancestors: tuple[int, ...], block: int) -> dict[int, int]:
    """For each node of the block how many others are neither before nor after it."""
    before = {v: ancestors[v] & block for v in bits(block)}
    after = dict.fromkeys(before, 0)
    for mask in before.values():
        for u in bits(mask):
            after[u] += 1
    size = block.bit_count()
    return {v: size - 1 - mask.bit_count() - after[v] for v, mask in before.items()}

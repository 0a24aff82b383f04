"""Chains: nodes that only follow each other, taken as one.

IOS's schedulable units are compound operators, made by hand: ReLU, depthwise and pointwise
convolution are one node of its RandWire and NASNet. Here a node joins its predecessor if that is
its only one and has no other successor.

    a --> b --> c --+                      abc --+
                    +--> f         ->            +--> f
    d --> e --------+                      de ---+
"""

from __future__ import annotations

from anabranch.ir.dag import Dag, bits


def chains(dag: Dag) -> tuple[int, ...]:
    """The chains as masks, by their first nodes; together they are all nodes."""
    masks: list[int] = []
    taken = 0
    for first in range(len(dag.names)):
        if taken >> first & 1:
            continue
        chain, v = 1 << first, first
        while dag.succs[v].bit_count() == 1:
            v = dag.succs[v].bit_length() - 1
            if dag.preds[v].bit_count() != 1:
                break
            chain |= 1 << v
        taken |= chain
        masks.append(chain)
    return tuple(masks)


def joined(dag: Dag, chains: tuple[int, ...]) -> Dag:
    """The dag of the chains; a chain has its first node's name and, among chains, its place."""
    chain_of = {v: i for i, chain in enumerate(chains) for v in bits(chain)}
    edges = {(chain_of[u], chain_of[v]) for u, v in dag.edges() if chain_of[u] != chain_of[v]}
    names = tuple(dag.names[(chain & -chain).bit_length() - 1] for chain in chains)
    return Dag.of(names, edges)


def levelled(dag: Dag) -> list[int]:
    """The nodes from top to bottom, where they stand between the longest paths above and below
    them: a legal order whose first half is as wide as the graph, not one branch of it."""
    above, below = [0] * len(dag.names), [0] * len(dag.names)
    for v, preds in enumerate(dag.preds):
        above[v] = max((above[u] + 1 for u in bits(preds)), default=0)
    for v in reversed(range(len(dag.names))):
        below[v] = max((below[w] + 1 for w in bits(dag.succs[v])), default=0)
    return sorted(range(len(dag.names)), key=lambda v: (above[v] - below[v], v))

"""A body as its independent parts: Graph -> graphs that no node connects.

x -- conv1 -- relu                {conv1, relu} and {pool}; both may read x
x -- pool
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from anabranch.ir.graph import Graph


def components(body: Graph) -> tuple[Graph, ...]:
    """The parts of a body that no node connects, in the order of their first nodes. They may read
    the same inputs."""
    home: dict[str, int] = {}
    groups: dict[int, list[int]] = {}
    for at, node in enumerate(body.nodes):
        met = sorted({home[name] for name in node.uses if name in home})
        own = met[0] if met else at
        groups.setdefault(own, []).append(at)
        for other in met[1:]:
            groups[own] = sorted([*groups[own], *groups.pop(other)])
            home.update({name: own for name, place in home.items() if place == other})
        home.update(dict.fromkeys(node.results, own))
    return tuple(_part(body, groups[first]) for first in sorted(groups, key=lambda k: groups[k][0]))


def _part(body: Graph, nodes: Sequence[int]) -> Graph:
    own = tuple(body.nodes[at] for at in nodes)
    read = {name for node in own for name in node.uses}
    results = {name for node in own for name in node.results}
    outputs = tuple(ref for ref in body.outputs if ref.name in results)
    return replace(
        body,
        inputs=tuple(value for value in body.inputs if value.name in read),
        constants=tuple(value for value in body.constants if value.name in read),
        nodes=own,
        outputs=outputs,
        states=tuple(
            replace(state, output=outputs.index(body.outputs[state.output]))
            for state in body.states
            if body.outputs[state.output] in outputs
        ),
    )

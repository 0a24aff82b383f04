"""Partition: a graph cut into ordered parts small enough to search, where few rules reach across.

AutoGraph (AAAI 2023) cuts a graph by minimum flow until each part has fewer than Size_L nodes, and
later lets neighbouring parts be searched together. What it leaves open, and what is chosen here:

Capacities. The paper says only that they come from the rules. Here a cut costs, in this order of
importance: each match of a rule that it severs, and each pair of nodes that will be one launch,
which counts as a few of them; each value that crosses; each reader beyond it;
its distance from the middle. A match of several roots that no edge connects counts where it
separates two of them.

Cell boundaries. A network of cells is first cut between its cells, where few values cross, and each
cell by itself: where a halving of the whole would fall depends on what stands elsewhere, and cells
that are alike would be cut at unlike places, and searched again each time (`cell_boundaries`). As
published there are flows alone.

Terminals. The first quarter of the nodes, in graph order, is on the first side and the last
quarter on the second, so that a cut is never a mere crumb and the recursion is logarithmic. Graph
order is the model's own: a cell's nodes stand together in it, as they do not by depth.

    a --> b --> c --> d     match {b, c}: b->c costs a match and a value, c->d a value
    [a | b   c     d]       source a, sink d; cut before b, or behind c: both sever nothing

Every edge goes from the first side to the second, since against an edge flow is unbounded; so the
parts in order are a topological order. Nodes that depend on constants alone cost nothing at run
time: they are not counted, and stand in the part of their first reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from anabranch.ir import ops
from anabranch.ir.graph import Graph
from anabranch.ir.rule import Rule
from anabranch.rewrite.match import matches_in
from anabranch.rewrite.match_index import MatchIndex, RuleSignature
from anabranch.search.engine.cell_cuts import cell_boundaries
from anabranch.search.engine.stitch import PartNames, Wiring

FORCED = 4
"""One in so many nodes is tied to the first side, and as many to the second."""

FUSED = 4
"""As many matches is it worth that what will be one launch is in one part: a part is priced, and
timed, as if it were all there is."""

SOURCE, SINK = -1, -2


def parts(
    graph: Graph, rules: Sequence[Rule], size_l: int, between_cells: bool = True
) -> tuple[PartNames, ...]:
    """The names of all nodes, each once, in parts of fewer than `size_l` nodes (of at least one);
    nodes that depend on constants alone come on top. One after the other they are a topological
    order. `between_cells`: cut at cell boundaries before flows cut what is left."""
    wiring = Wiring.of(graph)
    counted = [i for i, node in enumerate(graph.nodes) if wiring.counted(node)]
    network = _network(wiring, rules)
    pieces = _divided(counted, network, size_l, between_cells)
    part_of = {place: number for number, piece in enumerate(pieces) for place in piece}
    _adopt(wiring, part_of)
    part_names: list[list[str]] = [[] for _ in range(max(len(pieces), bool(part_of)))]
    for place, node in enumerate(graph.nodes):
        part_names[part_of[place]].append(node.name)
    return tuple(map(tuple, part_names))


def _adopt(wiring: Wiring, part_of: dict[int, int]) -> None:
    """Puts each node that depends on constants alone where its first reader is, one that is only
    returned into the last part."""
    last = max(part_of.values(), default=0)
    for place in reversed(range(len(wiring.graph.nodes))):
        if place not in part_of:
            node = wiring.graph.nodes[place]
            readers = [user for name in node.results for user in wiring.users.get(name, ())]
            part_of[place] = min((part_of[wiring.place[r.name]] for r in readers), default=last)


def _unsaid(what: str, why: str) -> None:
    """A refusal: the search of the parts meets it again, and tells."""


@dataclass(frozen=True, slots=True)
class FlowNetwork:
    """`crossing`: for each value its maker and readers, as places in the graph; `reads`: how many
    readers in all; `ties`: how many matches two nodes are in together."""

    crossing: tuple[tuple[int, tuple[int, ...]], ...]
    reads: int
    ties: Mapping[tuple[int, int], int]


def _network(wiring: Wiring, rules: Sequence[Rule]) -> FlowNetwork:
    graph, place = wiring.graph, wiring.place
    crossing = []
    for i, node in enumerate(graph.nodes):
        for name in node.results if wiring.counted(node) else ():
            readers = tuple(place[user.name] for user in wiring.users.get(name, ()))
            if readers:
                crossing.append((i, readers))
    ties: dict[tuple[int, int], int] = {}
    edges = {(i, reader) for i, readers in crossing for reader in readers}
    index = MatchIndex(graph)
    for rule in rules:
        for match in matches_in(index, RuleSignature.of(rule), _unsaid):
            inside = sorted(place[node.name] for node in match.nodes if wiring.counted(node))
            roots = sorted(place[node.name] for node in match.roots if wiring.counted(node))
            pairs = {(a, b) for a in inside for b in inside if (a, b) in edges}
            pairs |= set(pairwise(roots))
            for pair in pairs:
                ties[pair] = ties.get(pair, 0) + 1
    for i, (reader, *others) in crossing:
        if not others and ops.info(graph.nodes[reader].op).kind == "pointwise":
            ties[i, reader] = ties.get((i, reader), 0) + FUSED
    return FlowNetwork(tuple(crossing), len(edges), ties)


def _divided(
    places: list[int],
    network: FlowNetwork,
    size_l: int,
    between_cells: bool,
    before: frozenset[int] = frozenset(),
) -> list[list[int]]:
    """The places in pieces below the size, first to last; `before`: places of earlier pieces."""
    if len(places) < max(size_l, 2):
        return [places] if places else []
    cells = [places]
    if between_cells:
        cells = cell_boundaries(places, network.crossing, network.ties, size_l)
    if len(cells) == 1:
        first = _first_side(places, network, before)
        left = [place for place in places if place in first]
        cells = [left, [place for place in places if place not in first]]
    pieces: list[list[int]] = []
    for cell in cells:
        pieces += _divided(cell, network, size_l, between_cells, before)
        before = before.union(cell)
    return pieces


def _first_side(places: list[int], network: FlowNetwork, before: frozenset[int]) -> frozenset[int]:
    """The places before the cheapest cut. Costs are whole numbers, each kind larger than all of the
    lesser kinds together, so that no rounding decides. The crossing is counted over the whole
    graph, earlier and later pieces included, so that equal cells are cut at equal places."""
    n, forced = len(places), max(1, len(places) // FORCED)
    ends = dict.fromkeys(before.union(places[:forced]), SOURCE)
    free = dict(zip(places[forced : n - forced], places[forced : n - forced], strict=True))

    def at(place: int) -> int:
        return ends.get(place) or free.get(place, SINK)

    flow: nx.DiGraph[int] = nx.DiGraph()
    flow.add_nodes_from((SOURCE, SINK))
    for i, place in enumerate(free, forced):
        pull = 2 * i + 1 - n
        _join(flow, SOURCE, place, max(-pull, 0))
        _join(flow, place, SINK, max(pull, 0))
    read = n * n
    value = read * (network.reads + 1)
    match = value * (len(network.crossing) + 1)
    for number, (u, readers) in enumerate(network.crossing):
        if u in free or not free.keys().isdisjoint(readers):
            passage = SINK - 1 - number  # the value itself: it crosses once for all its readers
            _join(flow, at(u), passage, value)
            for v in readers:
                _join(flow, passage, at(v), None)
                _join(flow, at(u), at(v), read)
                _join(flow, at(v), at(u), None)
    for (u, v), count in network.ties.items():
        if u in free or v in free:
            _join(flow, at(u), at(v), match * count)
            _join(flow, at(v), at(u), match * count)
    _, (reached, _) = nx.minimum_cut(flow, SOURCE, SINK, flow_func=boykov_kolmogorov)
    return frozenset(place for place in places if at(place) in reached)


def _join(flow: nx.DiGraph[int], u: int, v: int, capacity: int | None) -> None:
    """An edge, its capacity added to one that is there; None is without bound. What enters the
    source or leaves the sink can never be cut."""
    if u in (v, SINK) or v == SOURCE or capacity == 0:
        return
    if not flow.has_edge(u, v):
        flow.add_edge(u, v)
        if capacity is not None:
            flow.edges[u, v]["capacity"] = capacity
    elif capacity is None:
        flow.edges[u, v].pop("capacity", None)
    elif "capacity" in flow.edges[u, v]:
        flow.edges[u, v]["capacity"] += capacity

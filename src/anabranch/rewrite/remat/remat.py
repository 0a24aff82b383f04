"""Rematerialisation: a graph, a limit of bytes, times of nodes -> the graph in which enough is
computed again.

The cheapest of the proposals (`propose`) that keep to the limit runs again; then the dearest of it
is kept after all, one by one, as long as the limit is kept. Where nothing keeps to it, what comes
nearest. Where the peak moves, the same again for the new one.

Which bytes live at once is counted in graph order (`live_bytes`): fused tasks keep fewer, streams
more. Whoever asks measures what came of it, and asks for less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.ir import ops
from anabranch.ir.graph import Graph, Node, rename
from anabranch.ir.state import settled
from anabranch.rewrite.remat.live_bytes import LiveBytes
from anabranch.rewrite.remat.propose import by_price, minimum_cut, segments

FORWARD_SUFFIX, RECOMPUTE_SUFFIX = "(forward)", "(recompute)"
"""The ending of an origin in a training step, and of nodes that run again."""
COPY_SUFFIX = "_again"
MOST_ROUNDS = 4
"""Peaks that are lowered one after another."""
MOST_KEPT_AFTER_ALL = 200
"""Values that are tried to be kept after all."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """`graph`: with what is computed again; the one that was given if that is nothing. `nbytes`:
    the most that live at once; `before`: in the graph that was given. `us`: what it takes;
    `nodes`: what is computed again; `late`: of how many borders each
    node runs behind, by name."""

    graph: Graph
    nbytes: int
    before: int
    us: float = 0.0
    nodes: tuple[str, ...] = ()
    late: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Choice:
    again: frozenset[int]
    border: int
    nbytes: int
    peak_at: int
    us: float


def remat(graph: Graph, limit_bytes: int, us: Mapping[str, float]) -> Recomputed:
    """The graph with as little computed again as keeps to the limit, or comes nearest to it. `us`:
    what each node takes, by its name; a copy takes the same."""
    before = _whole(LiveBytes.of(graph)).nbytes
    recomputed = Recomputed(graph, before, before)
    times = dict(us)
    for _ in range(MOST_ROUNDS):
        if recomputed.nbytes <= limit_bytes:
            break
        live = LiveBytes.of(recomputed.graph)
        each = [times.get(node.name, 0.0) for node in recomputed.graph.nodes]
        choice = _best(recomputed.graph, live, each, limit_bytes)
        if choice.nbytes >= recomputed.nbytes:
            break
        after, copies = _with_copies(recomputed.graph, live, choice)
        if not settled(after):
            break
        times.update({copy: times.get(name, 0.0) for copy, name in copies.items()})
        taken = recomputed.us + choice.us
        names = (*recomputed.nodes, *copies.values())
        late = _behind(recomputed, after, choice.border)
        recomputed = Recomputed(after, choice.nbytes, before, taken, names, late)
    return recomputed


def _whole(live: LiveBytes) -> _Choice:
    """Everything kept."""
    return _measured(live, frozenset(), len(live.reads) - 1, [0.0] * len(live.reads))


def _measured(live: LiveBytes, again: Collection[int], border: int, us: Sequence[float]) -> _Choice:
    chosen = frozenset(again)
    runs, renewed = live.order(chosen, border), live.renewed(chosen, border)
    most, where = live.peak(runs, renewed, border)
    taken = sum(us[i] for i, copy in runs if copy and live.roots[i] == i)
    return _Choice(chosen, border, most, runs[where][0] if runs else 0, taken)


def _best(graph: Graph, live: LiveBytes, us: Sequence[float], limit_bytes: int) -> _Choice:
    """The cheapest that keeps to the limit, else the one of fewest bytes."""
    choices = [_whole(live)]
    heavy = {i for i, node in enumerate(graph.nodes) if ops.kind_of(node) in ("contract", "opaque")}
    for border in _borders(graph, choices[0].peak_at):

        def measured(again: Collection[int], border: int = border) -> _Choice:
            return _measured(live, again, border, us)

        def fits(again: Collection[int], border: int = border) -> bool:
            return _measured(live, again, border, us).nbytes <= limit_bytes

        sets = [by_price(live, border, us, fits), minimum_cut(live, border, heavy)]
        choices += [measured(again) for again in (*sets, *segments(live, border))]
    fitting = [choice for choice in choices if choice.nbytes <= limit_bytes]
    if not fitting:
        return min(choices, key=lambda choice: (choice.nbytes, choice.us))
    return _kept_after_all(
        live, min(fitting, key=lambda choice: (choice.us, choice.nbytes)), us, limit_bytes
    )


def _borders(graph: Graph, peak_at: int) -> list[int]:
    """Behind which nodes values may be others: where most bytes live, and where the forward pass
    of a training step ends."""
    forward = [i for i, node in enumerate(graph.nodes) if node.origin.endswith(FORWARD_SUFFIX)]
    return sorted({peak_at, *forward[-1:]})


def _kept_after_all(
    live: LiveBytes, choice: _Choice, us: Sequence[float], limit_bytes: int
) -> _Choice:
    dearest = sorted(choice.again, key=lambda i: (-us[i], i))
    for i in dearest[:MOST_KEPT_AFTER_ALL]:
        kept = _measured(live, choice.again - {i}, choice.border, us)
        if kept.nbytes <= limit_bytes and kept.us <= choice.us:
            choice = kept
    return choice


def _with_copies(graph: Graph, live: LiveBytes, choice: _Choice) -> tuple[Graph, dict[str, str]]:
    """The graph with what runs again where it runs, and of each copy what it is of."""
    taken = {node.name for node in graph.nodes} | {value.name for value in graph.inputs}
    taken |= {constant.name for constant in graph.constants}
    other: dict[str, str] = {}
    nodes, copies = list[Node](), dict[str, str]()
    for i, again in live.order(choice.again, choice.border):
        node = graph.nodes[i]
        if not again and i <= choice.border:
            nodes.append(node)
            continue
        args = tuple(rename(arg, other) for arg in node.args)
        kwargs = tuple((key, rename(arg, other)) for key, arg in node.kwargs)
        name = _free(node.name + COPY_SUFFIX, taken) if again else node.name
        origin = node.origin
        if again and origin.endswith(FORWARD_SUFFIX):
            origin = origin.removesuffix(FORWARD_SUFFIX) + RECOMPUTE_SUFFIX
        renamed = Node(name, node.op, args, kwargs, node.types, origin, node.strict)
        nodes.append(renamed)
        if again:
            taken.add(name)
            other.update(zip(node.results, renamed.results, strict=True))
            if live.roots[i] == i:
                copies[name] = node.name
    return replace(graph, nodes=tuple(nodes)), copies


def _behind(before: Recomputed, graph: Graph, border: int) -> dict[str, int]:
    """Of how many borders each node runs behind; a copy as what it is made for, which follows."""
    number = {node.name: i for i, node in enumerate(before.graph.nodes)}
    late, following = dict[str, int](), 0
    for node in reversed(graph.nodes):
        if node.name in number:
            following = before.late.get(node.name, 0) + (number[node.name] > border)
        late[node.name] = following
    return late


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name

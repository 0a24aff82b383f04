"""Accounts: what the beginning of a network would take, carried on part by part.

    settled                        | open            | new        leaves
    {conv, relu} --> {conv, add} --> {conv} --> {relu} --> {conv} -->
    in the sum, with its end       | cut into tasks each time

A search prices thousands of beginnings of a network. Only tasks near the edge can change when nodes
are added behind it: those that make what nobody inside reads yet, and those before them, for a
group that grows may leave others what it had. They stay open, as nodes; all before them are
settled: their times are known, and who waits for whom. So to price a beginning only what is new of
it is cut into tasks, however long it is.

The price of the whole differs from this one in little: nodes that are settled and then not needed
any more are counted, and a residual that is settled makes nobody wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from anabranch.costs.alpha_cost import mixed_price
from anabranch.ir.calibration import Calibration
from anabranch.ir.graph import Constant, Graph, Input, Node, Ref
from anabranch.ir.price import Price
from anabranch.ir.rule import computable
from anabranch.ir.task import Task, TaskGraph, alias_roots
from anabranch.ir.types import TensorType
from anabranch.rewrite.build import drop_dead
from anabranch.search.cost.layout_copies import leaving
from anabranch.search.cost.task_cuts import TaskCutter, TaskPiece


@dataclass(frozen=True, slots=True)
class Values:
    """What is known of the values of a beginning. `nodes`, `constants`: how many of the network's
    it has; `types`: of all values; `ahead`: those that depend on constants alone; `makers`: of
    those that are made at run time; `copies`: of these, the names of copies to another layout."""

    nodes: int
    constants: int
    types: Mapping[str, TensorType]
    ahead: frozenset[str]
    makers: Mapping[str, Node]
    copies: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class IncrementalPrice:
    """`price`: of the beginning. `open`: the nodes that are not settled. `times`: what each
    settled task takes; `preds`: those that each of them waits for, by number; `makers`: the number
    of the one that makes a value."""

    price: Price
    values: Values
    open: tuple[Node, ...] = ()
    times: tuple[float, ...] = ()
    preds: tuple[frozenset[int], ...] = ()
    makers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Terms:
    """By what accounts are made: how graphs are cut, what a piece takes, what the longest path
    weighs, what it costs to run side by side, and whether copies to another layout count."""

    cuts: TaskCutter
    us: Callable[[TaskPiece], float]
    alpha: float
    machine: Calibration
    arranged: bool


def carried(before: IncrementalPrice | None, whole: Graph, terms: Terms) -> IncrementalPrice:
    """The account of a beginning that goes on from another one. `whole`: its nodes and constants
    begin with those of the other; dead ones may be among them."""
    old = before or IncrementalPrice(Price(0.0, terms.alpha), _declared(whole))
    values, fresh = _extended(old.values, whole, terms)
    outputs = [values.copies.get(ref.name, ref.name) for ref in whole.outputs]
    edge = _edge((*old.open, *fresh), values, outputs)
    tasks = terms.cuts.tasks(edge)
    times = (*old.times, *map(terms.us, terms.cuts.pieces(tasks)))
    roots, first = alias_roots(tasks), len(old.times)
    preds = _preds(tasks, roots, first)
    waits = [
        *old.preds,
        *(_settled(t, old.makers) | p for t, p in zip(tasks.tasks, preds, strict=True)),
    ]
    still = _still(tasks, preds, roots, edge, first)
    kept = [*range(first), *(i for i in range(first, len(times)) if i not in still)]
    number = {i: place for place, i in enumerate(kept)}
    makers = dict(old.makers)
    for i in kept[first:]:
        makers.update(dict.fromkeys(tasks.tasks[i - first].writes, number[i]))
    makers.update((alias, makers[base]) for alias, base in roots.items() if base in makers)
    held = {node.name for i in still for node in tasks.tasks[i - first].body.nodes}
    held.update(node.name for node in tasks.aliases if node.name not in makers)
    behind = _leaving_us(values, outputs, terms)
    return IncrementalPrice(
        mixed_price(times, waits, terms.alpha, terms.machine, behind),
        values,
        tuple(node for node in edge.nodes if node.name in held),
        tuple(times[i] for i in kept),
        tuple(frozenset(number[p] for p in waits[i]) for i in kept),
        makers,
    )


def _declared(whole: Graph) -> Values:
    types = {value.name: value.type for value in whole.inputs}
    return Values(0, 0, types, frozenset(), {}, {})


def _extended(old: Values, whole: Graph, terms: Terms) -> tuple[Values, tuple[Node, ...]]:
    """With those of the constants and nodes that are new in the whole; and of these nodes those
    that run, copies among them."""
    types, ahead, makers = dict(old.types), set(old.ahead), dict(old.makers)
    for constant in whole.constants[old.constants :]:
        types[constant.name] = constant.type
        ahead.add(constant.name)
    running: list[Node] = []
    for node in whole.nodes[old.nodes :]:
        types.update(zip(node.results, node.types, strict=True))
        if computable(node) and ahead.issuperset(node.uses):
            ahead.update(node.results)
        else:
            makers.update(dict.fromkeys(node.results, node))
            running.append(node)
    fresh, copies = tuple(running), old.copies
    if terms.arranged:
        fresh, copies = terms.cuts.copies.among(fresh, types, makers, copies)
        for name in copies.keys() - old.copies.keys():
            copy = terms.cuts.copies.clone(name, types[name])
            types[copy.name], makers[copy.name] = copy.type, copy
    counts = len(whole.nodes), len(whole.constants)
    return Values(*counts, types, frozenset(ahead), makers, copies), fresh


def _edge(nodes: tuple[Node, ...], values: Values, leaving: Iterable[str]) -> Graph:
    """The nodes as a graph: what they read from elsewhere is given."""
    produced = {name for node in nodes for name in node.results}
    read = [x for x in dict.fromkeys(x for node in nodes for x in node.uses) if x not in produced]
    return drop_dead(
        Graph(
            "edge",
            tuple(Input(name, values.types[name]) for name in read if name not in values.ahead),
            tuple(Constant(x, values.types[x], x) for x in read if x in values.ahead),
            nodes,
            tuple(Ref(name) for name in leaving if name in produced),
        )
    )


def _preds(tasks: TaskGraph, roots: Mapping[str, str], first: int) -> list[frozenset[int]]:
    """For each task those of these tasks that it waits for; they are numbered from `first`."""
    maker = {name: i for i, task in enumerate(tasks.tasks, first) for name in task.writes}
    based = ([roots.get(name, name) for name in task.reads] for task in tasks.tasks)
    return [frozenset(maker[name] for name in names if name in maker) for names in based]


def _settled(task: Task, makers: Mapping[str, int]) -> frozenset[int]:
    """The settled tasks that it waits for."""
    return frozenset(makers[name] for name in task.reads if name in makers)


def _still(
    tasks: TaskGraph,
    preds: Sequence[Set[int]],
    roots: Mapping[str, str],
    edge: Graph,
    first: int,
) -> set[int]:
    """The tasks that may change, or wait for such: what makes values that leave and that nobody
    here reads, and what these wait for."""
    read = {name for node in edge.nodes for name in node.uses}
    ends = {roots.get(ref.name, ref.name) for ref in edge.outputs if ref.name not in read}
    last = [i for i, task in enumerate(tasks.tasks) if not ends.isdisjoint(task.writes)]
    affected = {first + i for i in last}.union(*(preds[i] for i in last))
    for i, before in enumerate(preds, first):
        if not affected.isdisjoint(before):
            affected.add(i)
    return affected


def _leaving_us(values: Values, outputs: Iterable[str], terms: Terms) -> float:
    """What copies to another layout take of what leaves."""
    if not terms.arranged:
        return 0.0
    types = leaving(outputs, values.types, values.makers)
    return sum(terms.us(terms.cuts.copy(type)) for type in types)

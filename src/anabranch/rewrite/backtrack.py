"""Backtracking: the cheapest graphs that rules lead to, from one graph, by best-first search.

AutoGraph's search of a part (AAAI 2023), after MetaFlow and TASO: every rule is applied at every
match of the cheapest graph not looked at yet, and what that gives is kept while it costs less than
`threshold` times the best so far. A threshold above one lets the search pass through graphs that
are a little dearer on its way to cheaper ones.

    price   10 --rule--> 10.2 --rule--> 8         best 10, threshold 1.05: 10.2 is kept
               --rule--> 12                       and leads to 8; 12 is not

The budget counts graphs looked at, not seconds, and ties go to what was found first: the same
graph, rules and budget give the same answer. A deadline is a safety stop only.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from anabranch.ir.graph import Graph
from anabranch.ir.rule import Known, Match, Rule
from anabranch.rewrite.apply import apply
from anabranch.rewrite.expressions import Expressions, repeated
from anabranch.rewrite.match import Refuse, matches, matches_at
from anabranch.rewrite.passes.cse import cse
from anabranch.trace import Trace

Price = Callable[[Graph], float]
"""What a graph costs, in microseconds or in whatever is to be least."""

GROWTH, ROOM = 2, 8
"""A graph may have fewer than GROWTH times the nodes of the first, as in TASO, and ROOM more: a
part may have only two nodes, and two that become one leave slices and joined weights behind."""
QUEUE = 500
"""Graphs that wait at most; twice as many and the dearer half is dropped. A budget of pops far
below never gets to them."""


@dataclass(frozen=True, slots=True)
class Step:
    """One rule applied: its name, the names of the matched nodes, the roots first, and the price
    of the searched graph before and after."""

    rule: str
    nodes: tuple[str, ...]
    before_us: float
    after_us: float


@dataclass(frozen=True, slots=True)
class Found:
    """A graph equal to the first, its price, and the steps that lead to it."""

    graph: Graph
    cost: float
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """`threshold`: how much dearer than the best a graph may be and still be followed; `pops`: how
    many graphs are looked at, `patience`: and how many in a row that lead to none better; `width`:
    how many rules' matches are applied to each; `looks`: how many in all; `keep`: how many are
    answered."""

    threshold: float
    pops: int
    keep: int
    patience: int
    width: int
    looks: int


def backtrack(
    graph: Graph,
    rules: Sequence[Rule],
    price: Price,
    budget: Budget,
    refuse: Refuse | None = None,
    until: float | None = None,
) -> tuple[Found, ...]:
    """The `keep` cheapest graphs found, best first, of equal ones that of fewer steps; the graph
    itself is always among them, if need be as one more. It is taken to have no dead or repeated
    nodes, as after `simplify`; what rules leave of these is taken away. `until`: a moment of
    `time.monotonic`."""
    start = Found(graph, price(graph))
    expressions = Expressions()
    seen, found, best = {expressions.of(graph)}, [start], start.cost
    queue = [(start.cost, 0, start)]
    most = GROWTH * len(graph.nodes) + ROOM
    since, looks = 0, budget.looks
    for _ in range(budget.pops):
        if not queue or queue[0][0] > budget.threshold * best or late(until):
            break  # the rest of the queue is dearer still
        if since >= budget.patience or looks <= 0:
            break
        _, _, parent = heapq.heappop(queue)
        before = best
        neighbours = _neighbours(parent.graph, rules, refuse)
        for rule, match, after in islice(neighbours, min(budget.width, looks)):
            looks -= 1
            keys = expressions.keys(after)
            key = expressions.of(after, keys)
            if len(after.nodes) >= most or key in seen:
                continue
            seen.add(key)
            after = cse(after, Trace()) if repeated(after, keys) else after
            cost = price(after)
            if cost < budget.threshold * best:
                names = tuple(node.name for node in match.nodes)
                step = Step(rule.name, names, parent.cost, cost)
                child = Found(after, cost, (*parent.steps, step))
                found.append(child)
                best = min(best, cost)
                heapq.heappush(queue, (cost, len(found), child))
            if late(until):
                break
        since = 0 if best < before else since + 1
        if len(queue) > 2 * QUEUE:
            queue = heapq.nsmallest(QUEUE, queue)
    return best_of(found, budget.keep)


def best_of(found: Sequence[Found], keep: int) -> tuple[Found, ...]:
    """The cheapest, best first, and the first of the given even if it is dearer."""
    ranked = sorted(found, key=lambda one: (one.cost, len(one.steps)))
    kept = ranked[:keep]
    return tuple(kept if any(one is found[0] for one in kept) else [*kept, found[0]])


def late(until: float | None) -> bool:
    return until is not None and time.monotonic() > until


def _neighbours(
    graph: Graph, rules: Sequence[Rule], refuse: Refuse | None
) -> Iterator[tuple[Rule, Match, Graph]]:
    """Each rule applied at each of its matches; what cannot be built is refused."""
    for rule, match in _all_matches(graph, rules, refuse):
        try:
            after = apply(graph, rule, match)
        except ValueError as refused:
            if refuse is not None:
                where = f"{rule.name} at " + " and ".join(f"%{r.name}" for r in match.roots)
                refuse(where, str(refused).removeprefix(where).lstrip(": "))
        else:
            yield rule, match, after


def _all_matches(
    graph: Graph, rules: Sequence[Rule], refuse: Refuse | None
) -> Iterator[tuple[Rule, Match]]:
    """The first match of each rule, then the second of each, and so on: who takes only some hears
    of all rules. As `matches` for each rule, but what is known of the graph is found out once."""
    known = Known.of(graph)
    present = {node.op for node in graph.nodes}
    able = (rule for rule in rules if present.issuperset(root.op for root in rule.roots))
    running = [(rule, _matches_of(graph, rule, known, refuse)) for rule in able]
    while running:
        left = []
        for rule, found in running:
            match = next(found, None)
            if match is not None:
                left.append((rule, found))
                yield rule, match
        running = left


def _matches_of(graph: Graph, rule: Rule, known: Known, refuse: Refuse | None) -> Iterator[Match]:
    if len(rule.roots) > 1:
        yield from matches(graph, rule, refuse)
        return
    for node in graph.nodes:
        if node.op == rule.roots[0].op:
            yield from matches_at(node, rule, known, refuse)

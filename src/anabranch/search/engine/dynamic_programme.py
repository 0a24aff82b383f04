"""Search: equal graphs that may run faster, over a whole network. AutoGraph (AAAI 2023).

The graph is cut into ordered parts (`partition`); every run of neighbouring parts that is not too
large is searched by backtracking; and a dynamic programme puts the answers together:

    parts           p1   p2   p3              best[j]: the cheapest graphs of p1 to pj
    intervals      [1]  [2]  [3]              best[2] = best[0] + [1 2]
                   [1    2]                           or best[1] + [2]
                        [2    3]

    best[0]: nothing --> best[1] --> best[2] --> best[3]: the answers

A price with a critical path in it is no sum over parts. So continuations are ranked by what their
parts gain, and the first few of them are stitched and priced as one graph, from the network's
start to the end of part j; several are kept, for the cheapest beginning need not have the
cheapest end. The paper leaves its programme to an appendix; this one is our own.

Parts that are alike are searched once. The graph itself is always among the answers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from anabranch.deadline import ENDLESS, Deadline
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.graph import Graph, Ref
from anabranch.ir.price import Gain
from anabranch.ir.rule import Rule
from anabranch.rewrite.build import drop_dead, retyped
from anabranch.rewrite.match import Refuse
from anabranch.rewrite.output_layout import as_promised
from anabranch.rewrite.passes.cse import cse
from anabranch.rewrite.refuse import Tally
from anabranch.search.engine.backtracking import (
    Budget,
    EqualGraph,
    Exchange,
    RewriteStep,
    best_of,
    price_key,
)
from anabranch.search.engine.intervals import Solver, Survey, Trail, gain, trail
from anabranch.search.engine.min_cut import parts
from anabranch.search.engine.neighbours import Neighbours
from anabranch.search.engine.pricing import PrefixPrice, Pricer
from anabranch.search.engine.stitch import Sewn, Wiring, extracted, sew, sewn_graph
from anabranch.search.engine.value_numbers import Expressions, Keys, declared
from anabranch.trace import Trace

SHORTLIST = 3
"""Times `keep`: so many continuations are stitched and priced as one graph at every part. The sums
that rank them are wrong only by what is off the critical path."""

PartProgress = Callable[[int, int, str], None]
"""Hears how many of how many parts are done, and what was just searched."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How wide to search; the paper's own values are not known.

    `size_l`: a part has fewer nodes. `size_u`: so has what is searched at once. `threshold`, `pops`
    and `keep`: the budget of each search, and how many graphs are kept all along; `prices`: how
    many graphs are priced in all searches together. `dp`: also search parts together; `partition`:
    cut at all; `between_cells`: between cells first; `distinct`: of graphs of one price one is
    kept. `seed`: in which order rules are tried, 0 as given.
    """

    # About half a cell of NASNet or a module of Inception: what rules see fits, and a graph looked
    # at has tens of matches and not hundreds.
    size_l: int = 16
    # Two to four neighbouring parts, so that every cut lies well inside some interval.
    size_u: int = 40
    # A step may cost a twentieth before the next one pays; at 1.0 one that costs nothing is not
    # followed either.
    threshold: float = 1.05
    # A part is done after a few steps, and each graph looked at costs a price for every match.
    pops: int = 12
    # For the whole network: ten to twenty seconds, at a millisecond to rewrite and one to price.
    # Twice as many brought NASNet-A, under seventy rules, a twelfth more of the gain.
    prices: int = 8000
    # As many as can be measured afterwards in a few seconds each.
    keep: int = 4
    dp: bool = True
    partition: bool = True
    between_cells: bool = True
    distinct: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The first parts put together in one way. `gain`: by how much it is cheaper than those parts
    unchanged, as far as is known. `keys`: of its values, to tell it from others. `account`: of it,
    or of what it goes on from while it is not priced itself. `exchanges`: what was put for what."""

    sewn: Sewn
    gain: Gain
    steps: tuple[RewriteStep, ...]
    keys: Keys = field(repr=False)
    account: PrefixPrice | None = None
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True)
class PrefixExtension:
    """A beginning with one interval more: as it was, and what stands for it."""

    gain: Gain
    head: Head
    before: Graph
    form: EqualGraph


def search(
    graph: Graph,
    rules: Sequence[Rule],
    price: Pricer,
    settings: Settings | None = None,
    refuse: Refuse | None = None,
    progress: PartProgress | None = None,
    until: Deadline = ENDLESS,
    survey: Survey | None = None,
) -> tuple[EqualGraph, ...]:
    """Equal graphs, best first, none dearer than the graph itself (simplified, please), which is
    always among them. Steps have the prices of the part in which they were found.
    `until`: when it is over, what is found by then is the answer; without it the same
    arguments give the same answer. `survey`: of the graph under these rules and settings, if an
    earlier search had one."""
    settings = settings or Settings()
    tally = Tally()
    # All that is made lives on in the survey: looking for garbage took a third of the time.
    with uncollected():
        survey = survey or surveyed(graph, rules, settings)
        run = _PrefixSearch(survey, price, settings, tally.hear, until)
        forms = run.run(progress or (lambda done, total, what: None))
    if refuse is not None:
        tally.tell(refuse)
    return forms


def surveyed(graph: Graph, rules: Sequence[Rule], settings: Settings) -> Survey:
    """What a search can know before it has a price."""
    shuffled = list(rules)
    if settings.seed:
        random.Random(settings.seed).shuffle(shuffled)
    if settings.partition:
        cut = parts(graph, shuffled, settings.size_l, settings.between_cells)
    else:
        cut = (tuple(node.name for node in graph.nodes),) if graph.nodes else ()
    size_u = settings.size_u if settings.dp else 0
    return Survey(Wiring.of(graph), cut, size_u, Neighbours(shuffled))


class _PrefixSearch:
    """One search: what all its steps need."""

    def __init__(
        self,
        survey: Survey,
        price: Pricer,
        settings: Settings,
        refuse: Refuse,
        until: Deadline,
    ) -> None:
        self._survey, self._wiring, self._price = survey, survey.wiring, price
        self._settings, self._refuse, self._until = settings, refuse, until
        self._expressions = Expressions()

    def run(self, progress: PartProgress) -> tuple[EqualGraph, ...]:
        graph = self._wiring.graph
        cut, s = self._survey.parts, self._settings
        budget = Budget(s.threshold, s.pops, s.prices, s.keep, distinct=s.distinct)
        solver = Solver(self._survey, self._price, budget, self._refuse, self._until)
        price = self._price(graph)
        heads: list[list[Head]] = [[Head(Sewn(), price - price, (), declared(graph))]]
        done: list[str] = []
        for j, part in enumerate(cut):
            done += part
            ways = [
                PrefixExtension(head.gain + gain(forms, form), head, interval.graph, form)
                for interval, forms in solver.ending(j)
                for head in heads[interval.span[0]]
                for form in forms
            ]
            ways.sort(key=lambda way: (bool(way.head.steps or way.form.steps), -way.gain.us))
            last = j == len(cut) - 1
            outputs = graph.outputs if last else extracted(self._wiring, done).outputs
            heads.append(self._best(ways, outputs))
            progress(j + 1, len(cut), part[0])
        return self._answers(EqualGraph(graph, price), heads[-1])

    def _best(self, ways: Sequence[PrefixExtension], outputs: Sequence[Ref]) -> list[Head]:
        """The beginnings to go on with: the unchanged one first, and the `keep` cheapest others."""
        heads = self._distinct(ways, outputs)
        if self._until.over():
            return heads[: self._settings.keep + 1]
        accounts = [
            self._price.carried(head.account, sewn_graph(self._wiring, head.sewn, outputs))
            for head in heads
        ]
        priced = [
            replace(head, gain=accounts[0].price - account.price, account=account)
            for head, account in zip(heads, accounts, strict=True)
        ]
        ranked = sorted(priced[1:], key=lambda head: (-head.gain.us, len(head.steps)))
        if self._settings.distinct:
            ranked = list({price_key(h.gain.us): h for h in reversed(ranked)}.values())[::-1]
        return [priced[0], *ranked[: self._settings.keep]]

    def _distinct(self, ways: Sequence[PrefixExtension], outputs: Sequence[Ref]) -> list[Head]:
        """The first SHORTLIST times `keep` ways, and the unchanged one, each as a beginning; of
        those that compute the same in the same way the first."""
        heads: dict[str, Head] = {}
        trails: set[Trail] = set()
        for way in ways:
            steps = trail((*way.head.steps, *way.form.steps))
            if steps in trails:
                continue
            trails.add(steps)
            head = self._sewn(way)
            names = (head.sewn.names.get(ref.name, ref.name) for ref in outputs)
            heads.setdefault(" ".join(head.keys[name] for name in names), head)
            if len(heads) > SHORTLIST * self._settings.keep:
                break
        return list(heads.values())

    def _sewn(self, way: PrefixExtension) -> Head:
        before, head = way.before, way.head
        sewn = sew(self._wiring, head.sewn, before, way.form.graph)
        fresh = sewn.constants[len(head.sewn.constants) :]
        keys: Keys = {**head.keys, **declared(Graph("", (), fresh, (), ()))}
        keys = self._expressions.extended(keys, sewn.nodes[len(head.sewn.nodes) :])
        steps, exchanges = (*head.steps, *way.form.steps), head.exchanges
        if way.form.steps:
            done = Exchange(before, way.form.graph, len(way.form.steps))
            exchanges = (*exchanges, done)
        return Head(sewn, way.gain, steps, keys, head.account, exchanges)

    def _answers(self, unchanged: EqualGraph, heads: Sequence[Head]) -> tuple[EqualGraph, ...]:
        forms = [unchanged]
        for head in heads:
            if head.steps:
                try:
                    whole = put_together(self._wiring, head.sewn)
                except ValueError as why:
                    self._refuse(" and ".join(step.rule for step in head.steps), str(why))
                    continue
                forms.append(EqualGraph(whole, self._price(whole), head.steps, head.exchanges))
        cheap = [form for form in forms if form.price.us <= unchanged.price.us]
        return best_of(cheap, self._settings.keep, self._settings.distinct)


def put_together(wiring: Wiring, sewn: Sewn) -> Graph:
    """All parts of a graph as one again. ValueError if an operator does not take what another part
    gives it now."""
    graph, names = wiring.graph, sewn.names
    was = {names.get(name, name): type for name, type in wiring.types.items()}
    whole = drop_dead(sewn_graph(wiring, sewn, graph.outputs))
    # Two parts may compute the same only now that both are rewritten.
    return as_promised(cse(retyped(whole, was), Trace()), graph)

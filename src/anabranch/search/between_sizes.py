"""Between sizes: what searches of two sizes found alike is done to those between, unsearched.

    tokens 256: linear, linear, linear -> slices of one linear, at 12 places     measured there
    tokens 1024: the same                                                        measured there
    tokens 600: the same, at 12 places, if it has as many                        verified, not raced

Of many sizes of one model a search for each takes longer than all else. Where the searches beside a
size ended differently, or this graph has other places, it is searched like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from anabranch.cache import Table
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Graph
from anabranch.ir.price import Price
from anabranch.ir.protocols import Cost
from anabranch.search import path_cache
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.finders import USUAL
from anabranch.search.published import SEARCH_KINDS
from anabranch.search.result import Allowed, Path, Round
from anabranch.tuning.job import Job


@dataclass(frozen=True, slots=True)
class RuleAtPlaces:
    """A rule, and at how many places it was applied."""

    rule: str
    places: int


@dataclass(frozen=True, slots=True)
class SizeSearched:
    """How the search of a size ended: the rules in their order, none where nothing was faster, and
    what the graph took before and after, side by side."""

    rules: tuple[RuleAtPlaces, ...]
    before: Cost | None = None
    after: Cost | None = None


SEARCHED: Table[SizeSearched] = Table("graphs", "searched size 1", nouns(SizeSearched))
NOTHING_YET = Price(0.0)


def keep(job: Job, graph: Graph, path: Path) -> None:
    """Keep how the search of this size ended, for sizes beside it; nothing of one that ended before
    it had tried anything, or that others told."""
    if job.among is None or not job.among.own or not _at_once(job) or path.cut_short == "stop":
        return
    if path.beside or (path.unfinished and not path.rounds and not path.ran):
        return
    names = [step.rule for step in path.steps]
    rules = tuple(RuleAtPlaces(name, names.count(name)) for name in dict.fromkeys(names))
    took = (path.rounds[0].before, path.rounds[-1].after) if path.rounds else ()
    SEARCHED.put(job.cache, _key(job, graph, job.among.amount), SizeSearched(rules, *took))


def told_by_neighbours(job: Job, graph: Graph) -> Path | None:
    """The path of a size between two that are searched, if both ended alike and it can be gone
    here; None where this size is to be searched itself."""
    among = job.among
    if among is None or not job.between or not _at_once(job):
        return None
    keys = {amount: _key(job, graph, amount) for amount in (among.below, among.above)}
    searches = SEARCHED.get_many(job.cache, keys)
    if len(searches) < len(keys):
        return None
    ended, above = searches[among.below], searches[among.above]
    if ended.rules != above.rules:
        return None
    steps, after = list[RewriteStep](), graph
    for asked in ended.rules:
        more, after = _applied(job, after, asked)
        if len(more) != asked.places:
            return None
        steps += more
    rounds: tuple[Round, ...] = ()
    if steps and ended.before is not None and ended.after is not None:
        rounds = (Round(tuple(steps), ended.before, ended.after, after),)
    allowed = Allowed(job.options.budget, job.options.search_seconds)
    return Path(graph, after, rounds, allowed=allowed, beside=(among.below, among.above))


def _applied(job: Job, graph: Graph, asked: RuleAtPlaces) -> tuple[list[RewriteStep], Graph]:
    """The rule at all places that there are, and the graph then."""
    rules = [rule for rule in SEARCH_KINDS[job.options.search].rules if rule.name == asked.rule]
    if not rules:
        return [], graph
    kinds = list(USUAL.kinds(graph, rules, rules[0].scope))
    form = USUAL.applied_globally(graph, kinds, lambda _: NOTHING_YET)
    return list(form.steps), form.graph


def _at_once(job: Job) -> bool:
    """Whether its search tries rules at all of their places: what has no other places elsewhere."""
    kind = SEARCH_KINDS.get(job.options.search)
    return kind is not None and bool(kind.at_once)


def _key(job: Job, graph: Graph, amount: int) -> str:
    """All that a size shares with those beside it: operators and what they read, by name, and the
    shapes of the model's parameters; not those of values, nor the numbers that operators are given,
    nor constants, of which some are as long as the size."""
    nodes = (f"{' '.join(node.results)} = {node.op} {' '.join(node.uses)}" for node in graph.nodes)
    names = [value.name for value in graph.inputs] + [c.name for c in graph.constants]
    asked, model = path_cache.asked(job.options, job.target), job.model
    held = model.named_parameters() if isinstance(model, nn.Module) else ()
    weights = [f"{name} {tuple(weight.shape)} {weight.dtype}" for name, weight in held]
    texts = " ".join(names), "\n".join(nodes), "\n".join(weights), str(amount)
    return SEARCHED.key(*asked, *texts)

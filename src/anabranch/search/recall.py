"""Improved graphs, kept between processes: graph and settings -> the graph that was found, and how.

A stored graph names its constants; they are bound anew to those at hand, so it is as right for
other weights as it was for the first, as long as the same of them are equal to each other: a search
may have used that. Whatever is recalled is still verified like everything else. What a search found
before it was cut short is kept, too: as an answer, or as where the next one begins (`goes_on`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pydantic import BaseModel, ValidationError

from anabranch.cache import Cache
from anabranch.costs import name_of
from anabranch.deadline import CutShort
from anabranch.errors import VerifyError
from anabranch.ir.graph import Constant, Graph, types
from anabranch.ir.protocols import Cost, Target
from anabranch.ir.schedule import Source
from anabranch.ir.text import parse_graph, text_graph
from anabranch.ir.verify import verify_graph
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.search.engine.backtracking import Ran, RewriteStep
from anabranch.search.result import Path, Round

SCHEME = "search 7"
NOT_ASKED = {"cache_dir", "debug", "dump", "check", "outputs", "batch", "system"}
APART = {
    *("scheduler", "max_streams", "max_group_size", "max_groups", "abreast", "overlap"),
    *("search_alpha", "search_overheads", "search_waists"),
}
"""What a search does not depend on that goes by the sum, and tries its graphs one kernel after
another."""


class _Cost(BaseModel):
    us: float
    source: Source
    spread: float


class _Ran(BaseModel):
    before: _Cost
    after: _Cost
    steps: int


class _Step(BaseModel):
    rule: str
    nodes: list[str]
    before: float
    after: float
    alpha: float | None
    ran: _Ran | None


class _Round(BaseModel):
    """`graph`: after it, None if that is where the path ends."""

    steps: list[_Step]
    before: _Cost
    after: _Cost
    graph: str | None


class _Stored(BaseModel):
    graph: str
    rounds: list[_Round]
    cut_short: CutShort
    undone: float
    goes_on: bool


def remember(cache: Cache | None, key: str, path: Path) -> None:
    """Store what was found under the key."""
    if cache is not None:
        rounds = [
            _Round(
                steps=list(map(_packed, r.steps)),
                before=_price(r.before),
                after=_price(r.after),
                graph=None if r.graph == path.graph else text_graph(r.graph),
            )
            for r in path.rounds
        ]
        stored = _Stored(
            graph=text_graph(path.graph),
            rounds=rounds,
            cut_short=path.cut_short,
            undone=path.undone,
            goes_on=path.goes_on,
        )
        cache.put("graphs", key, stored.model_dump_json())


def recall(cache: Cache | None, key: str, graph: Graph) -> Path | None:
    """What was found for this graph; None if nothing was, or nothing that fits."""
    text = cache.get("graphs", key) if cache is not None else None
    if text is None:
        return None
    held = {constant.name: constant for constant in graph.constants}
    try:
        stored = _Stored.model_validate_json(text)
        bound = _bound(stored.graph, graph, held)
        between = [
            bound if r.graph is None else _bound(r.graph, graph, held) for r in stored.rounds
        ]
    except (ValidationError, ValueError, KeyError, VerifyError):
        return None
    rounds = (
        Round(tuple(map(_opened, r.steps)), _cost(r.before), _cost(r.after), then)
        for r, then in zip(stored.rounds, between, strict=True)
    )
    ended = stored.cut_short, stored.undone
    return Path(graph, bound, tuple(rounds), *ended, goes_on=stored.goes_on)


def _bound(text: str, graph: Graph, held: Mapping[str, Constant]) -> Graph:
    """The stored graph with the constants at hand; an error if it does not fit."""
    read = parse_graph(text)
    constants = tuple(held[constant.name] for constant in read.constants)
    bound = replace(read, inputs=graph.inputs, constants=constants, conditions=graph.conditions)
    verify_graph(bound)
    if read.inputs != graph.inputs or _results(bound) != _results(graph):
        raise ValueError("it is of another graph")
    return bound


def _results(graph: Graph) -> list[tuple[object, ...]]:
    known = types(graph)
    return [(known[ref.name].shape, known[ref.name].dtype) for ref in graph.outputs]


def _packed(step: RewriteStep) -> _Step:
    return _Step(
        rule=step.rule,
        nodes=list(step.nodes),
        before=step.before_us,
        after=step.after_us,
        alpha=step.alpha,
        ran=_packed_run(step.ran),
    )


def _packed_run(ran: Ran | None) -> _Ran | None:
    if ran is None:
        return None
    return _Ran(before=_price(ran.before), after=_price(ran.after), steps=ran.steps)


def _opened(step: _Step) -> RewriteStep:
    ran, kept = step.ran, None
    if ran is not None:
        kept = Ran(_cost(ran.before), _cost(ran.after), ran.steps)
    return RewriteStep(step.rule, tuple(step.nodes), step.before, step.after, step.alpha, kept)


def _price(cost: Cost) -> _Cost:
    return _Cost(us=cost.us, source=cost.source, spread=cost.spread)


def _cost(cost: _Cost) -> Cost:
    return Cost(cost.us, cost.source, cost.spread)


def question(graph: Graph, options: Options, target: Target) -> str:
    """All that the outcome of a search depends on: the graph with its names, which of its constants
    are equal, our own files (rules are in them), the machine, and the options, the time that it may
    take among them."""
    digests = dict.fromkeys(constant.digest for constant in graph.constants)
    place = {digest: i for i, digest in enumerate(digests)}
    constants = tuple(Constant(c.name, c.type, str(place[c.digest])) for c in graph.constants)
    named = Graph(graph.name, graph.inputs, constants, graph.nodes, graph.outputs)
    apart = APART if options.search == "taso-paper" else set[str]()
    asked = options.model_dump_json(exclude=NOT_ASKED | apart)
    machine = f"{target.spec.fingerprint} {name_of(target)}"
    ours = sources.digest(sources.ALL_ROOMS)
    return "\n".join([SCHEME, machine, asked, ours, text_graph(named, origins=False)])

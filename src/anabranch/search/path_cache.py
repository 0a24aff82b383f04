"""Improved graphs, kept between processes: graph and settings -> the graph that was found, and how.

A stored graph names its constants; they are bound anew to those at hand, so it is as right for
other weights as it was for the first, as long as the same of them are equal to each other: a search
may have used that. Whatever is recalled is still verified like everything else. What a search found
before it was cut short is kept, too: the answer to who has no more time than it had, and where the
search of all others begins (`driver.goes_on`).
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.cache import Cache, Table
from anabranch.costs import name_of
from anabranch.ir.codec import UNTOLD, Beside, nouns
from anabranch.ir.graph import Constant, Graph, result_types
from anabranch.ir.protocols import Target
from anabranch.ir.text import text_graph
from anabranch.ir.verify import verify_graph
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.search.published import SEARCH_KINDS
from anabranch.search.result import Path

PATHS: Table[Path] = Table("graphs", "search 11", nouns(Path))
NOT_ASKED = {"cache_dir", "debug", "dump", "check", "outputs", "batch", "system", "workers"}


def store(cache: Cache | None, key: str, path: Path) -> None:
    """Keep what was found under the key."""
    rounds = (
        replace(r, steps=tuple(replace(step, place=None) for step in r.steps)) for r in path.rounds
    )
    told = replace(path, begin=UNTOLD, rounds=tuple(rounds), ran=0)
    PATHS.put(cache, key, told, Beside.of(path.begin))


def find(cache: Cache | None, key: str, graph: Graph) -> Path | None:
    """What was found for this graph; None if nothing was, or nothing that fits."""

    def bound(path: Path) -> Path:
        rounds = (replace(r, graph=_bound(r.graph, graph)) for r in path.rounds)
        return replace(path, begin=graph, graph=_bound(path.graph, graph), rounds=tuple(rounds))

    return PATHS.find(cache, key, bound, Beside.of(graph))


def _bound(read: Graph, graph: Graph) -> Graph:
    """A stored graph with the inputs, the constants and the conditions at hand; an error if it does
    not fit."""
    held = {constant.name: constant for constant in graph.constants}
    constants = tuple(held[constant.name] for constant in read.constants)
    bound = replace(read, constants=constants, conditions=graph.conditions)
    verify_graph(bound)
    same = (read.inputs, read.states) == (graph.inputs, graph.states)
    if not same or result_types(bound) != result_types(graph):
        raise ValueError("it is of another graph")
    return replace(bound, inputs=graph.inputs, states=graph.states)


def key(graph: Graph, options: Options, target: Target) -> str:
    """All that the outcome of a search depends on: the graph with its names, which of its constants
    are equal, our own files (rules are in them), the machine, and the options."""
    digests = dict.fromkeys(constant.digest for constant in graph.constants)
    place = {digest: i for i, digest in enumerate(digests)}
    constants = tuple(Constant(c.name, c.type, str(place[c.digest])) for c in graph.constants)
    named = replace(graph, constants=constants)
    return PATHS.key(*asked(options, target), text_graph(named, origins=False))


def asked(options: Options, target: Target) -> tuple[str, ...]:
    """The machine, the options that a search depends on, and our own files."""
    ignored = NOT_ASKED | SEARCH_KINDS[options.search].ignores
    machine = f"{target.spec.fingerprint} {name_of(target)}"
    return machine, options.model_dump_json(exclude=ignored), sources.digest(sources.ALL_ROOMS)

"""Simplified graphs, kept between processes: a warm start need not run the passes again.

    graph, options, our own files --> cache --> simplified graph, steps that its constants take

The graph that passes made of another is found by one key, which says the whole graph, the content
of its weights too: passes may look at them (a mask that hides all, a weight that is one already).
So the digests of constants are known, and only their values are computed anew, by the steps that
the passes took (`derive`), of the weights at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from anabranch.cache import Cache, Codec, Table
from anabranch.ir import derive
from anabranch.ir.codec import nouns
from anabranch.ir.graph import Condition, Graph, result_types
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.text import text_graph
from anabranch.ir.verify import verify_graph
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.rewrite.simplify import simplify
from anabranch.trace import Event

OPTIONS = ("folding", "exact", "kernels", "channels_last", "tf32")
"""What of the options passes depend on."""


@dataclass(frozen=True, slots=True)
class _StoredSimplification:
    """`conditions`: of constants that the steps make, too, by names of their own."""

    graph: Graph
    steps: derive.Steps
    conditions: tuple[Condition, ...]
    events: tuple[Event, ...]


SIMPLIFIED: Table[_StoredSimplification] = Table(
    "graphs", "simplified 3", nouns(_StoredSimplification)
)
GRAPHS: Codec[Graph] = nouns(Graph)


def simplify_or_known(
    graph: Graph,
    stepper: Stepper,
    options: Options,
    kind: str,
    cache: Cache | None,
    unknown: Callable[[], object] = lambda: None,
    anew: bool = False,
) -> Graph:
    """As `simplify`, from the cache where that was done before; else `unknown` is called first. Who
    looks at single passes, or counts them, has them run. `anew`: what is stored is replaced."""
    if cache is None or stepper.check or stepper.fuel is not None or stepper.dump is not None:
        unknown()
        return simplify(graph, stepper, options, kind)
    key, trace = _key(graph, options, kind), stepper.trace
    cached = None if anew else _recalled(cache, key, graph)
    if cached is None:
        unknown()
        told = len(trace.events)
        simple = simplify(graph, stepper, options, kind)
        _store(cache, key, graph, simple, trace.events[told:])
        return simple
    simple, events = cached
    trace.recalled("rewrite", graph.name, events)
    return simple


def _store(cache: Cache, key: str, graph: Graph, simple: Graph, events: Sequence[Event]) -> None:
    """Store what was made of the graph; not where a constant does not say how it came to be."""
    conditions = tuple(
        replace(c, constant=replace(c.constant, name=_name(i)))
        for i, c in enumerate(simple.conditions)
    )
    bare = replace(simple, conditions=())
    try:
        relied = [condition.constant for condition in conditions]
        steps = derive.write(graph.constants, (*simple.constants, *relied))
        back = GRAPHS.read(GRAPHS.write(bare, None), None)
    except ValueError:
        return
    if back == simple and [n.origin for n in back.nodes] == [n.origin for n in simple.nodes]:
        told = tuple(replace(event, seconds=0.0) for event in events)
        SIMPLIFIED.put(cache, key, _StoredSimplification(bare, steps, conditions, told))


def _name(number: int) -> str:
    """What stands for the constant of a condition: no value of a graph has such a name."""
    return f"?{number}"


def _recalled(cache: Cache, key: str, graph: Graph) -> tuple[Graph, tuple[Event, ...]] | None:
    """The graph stored under the key, with values computed of the graph's, and what was told of it;
    None if nothing is, or nothing that fits."""
    held = {c.name: c.value for c in graph.constants if c.value is not None}
    device = next((value.device for value in held.values()), torch.device("cpu"))

    def computed(stored: _StoredSimplification) -> tuple[Graph, tuple[Event, ...]] | None:
        read = stored.graph
        values = derive.read(stored.steps, held, device)
        constants = tuple(replace(c, value=values[c.name]) for c in read.constants)
        relied = [condition.constant for condition in stored.conditions]
        told = derive.told(stored.steps, (*constants, *relied), graph.constants)
        conditions = (
            replace(condition, constant=constant)
            for constant, condition in zip(told[len(constants) :], stored.conditions, strict=True)
        )
        simple = replace(
            read,
            constants=told[: len(constants)],
            conditions=tuple(dict.fromkeys((*graph.conditions, *conditions))),
            states=graph.states,
        )
        verify_graph(simple)
        same = simple.inputs == graph.inputs and read.states == graph.states
        same = same and result_types(simple) == result_types(graph)
        return (simple, stored.events) if same else None

    return SIMPLIFIED.find(cache, key, computed)


def _key(graph: Graph, options: Options, kind: str) -> str:
    said = " ".join(f"{name}={getattr(options, name)}" for name in OPTIONS)
    ours = sources.digest(sources.ALL_ROOMS)
    return SIMPLIFIED.key(ours, torch.__version__, f"{kind} {said}", text_graph(graph))

"""Simplified graphs, kept between processes: a warm start need not run the passes again.

    graph, options, our own files --> cache --> simplified graph, steps that its constants take

What passes made of a graph is found by one key, which says the whole graph, the content of its
weights too: passes may look at them (a mask that hides all, a weight that is one already). So the
digests of constants are known, and only their values are computed anew, by the steps that the
passes took (`derive`), of the weights at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from pydantic import BaseModel

from anabranch.cache import Cache
from anabranch.errors import VerifyError
from anabranch.ir import derive
from anabranch.ir.graph import Condition, Constant, Graph, types
from anabranch.ir.pass_runner import Stepper
from anabranch.ir.text import parse_graph, parse_type, text_graph
from anabranch.ir.verify import verify_graph
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.rewrite.simplify import simplify
from anabranch.trace import RECALLED, Event, Told

SCHEME = "simplified 2"
OPTIONS = ("folding", "exact", "kernels", "channels_last", "tf32")
"""What of the options passes depend on."""


class _Condition(BaseModel):
    """Of a constant that the steps make, too, by a name of its own."""

    type: str
    digest: str
    kind: str
    numbers: list[int | float]


class _Stored(BaseModel):
    graph: str
    steps: derive.Steps
    conditions: list[_Condition]
    events: list[Told]


def simplify_or_recall(
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
    found = None if anew else recall(cache, key, graph)
    if found is None:
        unknown()
        told = len(trace.events)
        simple = simplify(graph, stepper, options, kind)
        keep(cache, key, graph, simple, trace.events[told:])
        return simple
    simple, events = found
    trace.add("applied", "rewrite", graph.name, RECALLED)
    for event in events:
        trace.add(event.kind, event.where, event.what, event.why, **dict(event.data))
    return simple


def keep(cache: Cache, key: str, graph: Graph, simple: Graph, events: Sequence[Event]) -> None:
    """Store what was made of the graph; not where a constant does not say how it came to be."""
    told = [Told.of(event) for event in events]
    try:
        relied = [replace(c.constant, name=_name(i)) for i, c in enumerate(simple.conditions)]
        steps = derive.write(graph.constants, (*simple.constants, *relied))
        text = text_graph(simple)
        back = parse_graph(text)
    except ValueError:
        return
    if back == simple and [n.origin for n in back.nodes] == [n.origin for n in simple.nodes]:
        conditions = [
            _Condition(
                type=c.constant.type.text,
                digest=c.constant.digest,
                kind=c.kind,
                numbers=list(c.numbers),
            )
            for c in simple.conditions
        ]
        stored = _Stored(graph=text, steps=steps, conditions=conditions, events=told)
        cache.put("graphs", key, stored.model_dump_json())


def _name(number: int) -> str:
    """What stands for the constant of a condition: no value of a graph has such a name."""
    return f"?{number}"


def recall(cache: Cache, key: str, graph: Graph) -> tuple[Graph, list[Event]] | None:
    """What is stored under the key, with values computed of the graph's; None if nothing is, or
    nothing that fits."""
    text = cache.get("graphs", key)
    held = {c.name: c.value for c in graph.constants if c.value is not None}
    if text is None:
        return None
    device = next((value.device for value in held.values()), torch.device("cpu"))
    try:
        stored = _Stored.model_validate_json(text)
        read = parse_graph(stored.graph)
        values = derive.read(stored.steps, held, device)
        constants = tuple(replace(c, value=values[c.name]) for c in read.constants)
        relied = [
            Constant(_name(i), parse_type(c.type), c.digest)
            for i, c in enumerate(stored.conditions)
        ]
        told = derive.told(stored.steps, (*constants, *relied), graph.constants)
        conditions = (
            Condition(constant, c.kind, tuple(c.numbers))
            for constant, c in zip(told[len(constants) :], stored.conditions, strict=True)
        )
        simple = replace(
            read,
            constants=told[: len(constants)],
            conditions=tuple(dict.fromkeys((*graph.conditions, *conditions))),
        )
        verify_graph(simple)
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError, VerifyError):
        return None
    if simple.inputs != graph.inputs or _results(simple) != _results(graph):
        return None
    return simple, [one.event for one in stored.events]


def _results(graph: Graph) -> list[tuple[object, ...]]:
    known = types(graph)
    return [(known[ref.name].shape, known[ref.name].dtype) for ref in graph.outputs]


def _key(graph: Graph, options: Options, kind: str) -> str:
    said = " ".join(f"{name}={getattr(options, name)}" for name in OPTIONS)
    ours = sources.digest(sources.ALL_ROOMS)
    return "\n".join([SCHEME, ours, torch.__version__, f"{kind} {said}", text_graph(graph)])

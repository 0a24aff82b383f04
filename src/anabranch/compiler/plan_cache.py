"""Outcome: all that was decided of a rewritten graph, kept between processes as one thing.

    graph, target, options, our own files --> cache --> tasks, kernels, schedule, places: the plan

Deciding anew from what is known of every part (`tuning.recall`, timings, `schedule.recall`) takes
seconds for a thousand nodes: each candidate's key is a text. An outcome is found by one key, which
says the whole graph but the content of its weights, and every file of this package. The plan is
read beside the graph at hand, so that its weights are those of the model at hand, and proved like a
new one. What might be decided otherwise another day (time ran out, memory was short) is not kept:
the next run finds all that was measured so far, and goes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import BaseModel, ValidationError

from anabranch.artifact import compact
from anabranch.cache import Cache
from anabranch.costs import name_of
from anabranch.deadline import CutShort
from anabranch.errors import NumericsError
from anabranch.ir.graph import Graph
from anabranch.ir.key import digest_text
from anabranch.ir.plan import Footprint, Plan, Signature
from anabranch.ir.protocols import Cost, Provider, Target
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.ir.task import Kernel
from anabranch.ir.text import text_graph
from anabranch.ir.tolerances import Errors
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.trace import RECALLED, Event, Kind, Told, Trace
from anabranch.tuning.recall import Candidate
from anabranch.tuning.select import Selection

SCHEME = "outcome 6"
OPTIONS = (
    "scheduler",
    "kernels",
    "fusion",
    "max_streams",
    "max_group_size",
    "max_groups",
    "abreast",
    "overlap",
    "cuda_graph",
)
"""What of the options decides, beside what shows in the graph and in the target. The budget does
not: what it cut short is not kept."""
NOT_REFUTED = {
    *("cache_dir", "debug", "dump", "check", "strict", "outputs", "batch", "budget"),
}
"""Options that change nothing about what is computed; less time finds less that may be wrong."""
TOLD_ANEW: tuple[Kind, ...] = ("stage", "progress", "time")
"""Events of a run, and not of what it found."""


class KnownError(NumericsError):
    """What an earlier compilation found wrong."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the stages from fuse to pack made of `graph`. `schedules`: all that were compared, best
    first, each kernel waiting for all before it; `cost`: that of the plan, as its kernels are
    launched (`overlap`). `settled`: nothing was left out that might run another day;
    `cut_short`: why searching and measuring ended before they were done, "" if they were. `kept`:
    names it in the cache, "" while it is not there."""

    graph: Graph
    selection: Selection
    schedules: tuple[tuple[Schedule, Cost], ...]
    timeline: Timeline
    sequential: Footprint
    plan: Plan
    cost: Cost
    settled: bool = True
    cut_short: CutShort = ""
    kept: str = ""


class _Candidate(BaseModel):
    provider: str
    name: str
    variant: str
    writes_out: bool
    cost: Cost | None
    chosen: bool
    refused: str


class _Group(BaseModel):
    """Tasks, by number, that were decided together, and what was tried for them."""

    tasks: list[int]
    tried: list[_Candidate]


class _Stored(BaseModel):
    plan: compact.Brief
    groups: list[_Group]
    schedules: list[tuple[Schedule, Cost]]
    timeline: Timeline
    sequential: Footprint
    cost: Cost
    events: list[Told]


def question(
    graph: Graph,
    signature: Signature,
    target: Target,
    options: Options,
    providers: Sequence[Provider],
) -> str:
    """The whole text of what an outcome depends on."""
    bare = tuple(replace(constant, digest="-") for constant in graph.constants)
    spec = target.spec
    return "\n".join([
        SCHEME,
        sources.digest(sources.ALL_ROOMS),
        spec.fingerprint,
        f"{name_of(target)} {spec.simulated} {spec.calibration}",
        *(f"{provider.name} {provider.version}" for provider in providers),
        *(f"{name} {getattr(options, name)}" for name in OPTIONS),
        repr(signature),
        text_graph(replace(graph, constants=bare)),
    ])  # fmt: skip


def refute(
    cache: Cache | None, graph: Graph, options: Options, target: Target, wrong: NumericsError
) -> None:
    """Remember that what these options make of the captured graph computes something else."""
    if cache is not None:
        told = json.dumps([wrong.what, wrong.why, wrong.next])
        cache.put("plans", _refuted(graph, options, target), told)


def refuted(
    cache: Cache | None, graph: Graph, options: Options, target: Target
) -> KnownError | None:
    """What an earlier compilation found wrong, None if nothing. Who looks for what is wrong, or
    asks for an error, compiles again."""
    if cache is None or options.strict or options.check or options.dump is not None:
        return None
    told = cache.get("plans", _refuted(graph, options, target))
    return None if told is None else KnownError(*json.loads(told))


def _refuted(graph: Graph, options: Options, target: Target) -> str:
    """The question, with the content of the weights: others may be rounded less."""
    asked = options.model_dump_json(exclude=NOT_REFUTED)
    ours = sources.digest(sources.ALL_ROOMS)
    machine = f"{target.spec.fingerprint} {name_of(target)}"
    return "\n".join([SCHEME, "refuted", ours, machine, asked, _content(graph)])


def recall(
    cache: Cache,
    asked: str,
    graph: Graph,
    signature: Signature,
    target: Target,
    trace: Trace,
) -> Outcome | None:
    """The outcome for this question, its events told anew; None where there is none."""
    text = cache.get("plans", asked)
    if text is None:
        return None
    try:
        stored = _Stored.model_validate_json(text)
        plan = compact.read(stored.plan, graph, target.spec, signature)
        selection = Selection(plan.tasks, dict(_candidates(stored.groups, plan)))
    except (ValidationError, ValueError, IndexError):
        return None
    trace.add("applied", "recall", graph.name, RECALLED)
    for event in stored.events:
        trace.add(event.kind, event.where, event.what, event.why, **event.data)
    schedules = tuple(stored.schedules)
    return Outcome(
        graph,
        selection,
        schedules,
        stored.timeline,
        stored.sequential,
        plan,
        stored.cost,
        kept=_named(asked, text),
    )


def keep(cache: Cache, asked: str, outcome: Outcome, events: Sequence[Event]) -> str:
    """Store an outcome that is settled, with the events that led to it, and give what names it
    there. One that cannot be told beside its graph is not stored, nor one that time or somebody cut
    short: the next run goes on."""
    if not outcome.settled or outcome.cut_short:
        return ""
    try:
        told = compact.write(outcome.plan, outcome.graph)
    except ValueError:
        return ""
    stored = _Stored(
        plan=told,
        groups=list(_groups(outcome)),
        schedules=list(outcome.schedules),
        timeline=outcome.timeline,
        sequential=outcome.sequential,
        cost=outcome.cost,
        events=[Told.of(event) for event in events if event.kind not in TOLD_ANEW],
    )
    text = stored.model_dump_json()
    cache.put("plans", asked, text)
    return _named(asked, text)


def accept(cache: Cache | None, kept: str, graph: Graph, seed: int, errors: Errors) -> None:
    """Remember by how much the outcome of this name was off with the captured graph's weights, on
    inputs that were drawn with this seed."""
    if cache is not None and kept:
        cache.put("plans", _accepted(kept, graph, seed), json.dumps(errors))


def accepted(cache: Cache | None, kept: str, graph: Graph, options: Options) -> Errors | None:
    """By how much it was off, and how much was allowed, None if nobody has looked: with other
    weights it may be more. Who looks for what is wrong looks anew."""
    if cache is None or not kept or options.strict or options.check:
        return None
    told = cache.get("plans", _accepted(kept, graph, options.seed))
    return None if told is None else tuple((error, allowed) for error, allowed in json.loads(told))


def _accepted(kept: str, graph: Graph, seed: int) -> str:
    return "\n".join([SCHEME, "accepted", kept, str(seed), _content(graph)])


def _content(graph: Graph) -> str:
    """Names the graph, the content of its weights included. A captured graph has the same names in
    every process, so these need not be made alike."""
    return digest_text(text_graph(graph, origins=False))


def _named(asked: str, text: str) -> str:
    return digest_text(f"{asked}\n{text}")


def _groups(outcome: Outcome) -> Iterator[_Group]:
    """Candidates as they are shared: tasks of equal structure have one tuple of them."""
    candidates, shared = outcome.selection.candidates, dict[int, list[int]]()
    for i, task in enumerate(outcome.plan.tasks.tasks):
        shared.setdefault(id(candidates[task.name]), []).append(i)
    for numbers in shared.values():
        tried = candidates[outcome.plan.tasks.tasks[numbers[0]].name]
        yield _Group(tasks=numbers, tried=[_told(one) for one in tried])


def _told(one: Candidate) -> _Candidate:
    return _Candidate(
        provider=one.kernel.provider,
        name=one.kernel.name,
        variant=one.kernel.variant,
        writes_out=one.kernel.writes_out,
        cost=one.cost,
        chosen=one.chosen,
        refused=one.refused,
    )


def _candidates(
    groups: Sequence[_Group], plan: Plan
) -> Iterator[tuple[str, tuple[Candidate, ...]]]:
    """By task name what was tried, as sketches."""
    tasks = plan.tasks.tasks
    for group in groups:
        body = tasks[group.tasks[0]].body
        tried = tuple(
            Candidate(
                Kernel(one.provider, one.name, body, one.variant, one.writes_out),
                one.cost,
                one.chosen,
                one.refused,
                sketch=True,
            )
            for one in group.tried
        )
        for number in group.tasks:
            yield tasks[number].name, tried

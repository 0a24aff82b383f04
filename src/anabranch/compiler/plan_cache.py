"""The plan cache: all that was decided of a rewritten graph, kept between processes as one thing.

    graph, target, options, our own files --> cache --> tasks, kernels, schedule, places: the plan

Deciding anew from what is known of every part (`tuning.decisions`, timings, schedules) takes
seconds for a thousand nodes: each candidate's key is a text. An outcome is found by one key, which
says the whole graph but the content of its weights, and every file of this package. The plan is
read beside the graph at hand, so that its weights are those of the model at hand, and proved like a
new one. An outcome that a budget cut short answers callers with no longer budget; with more time,
the next run finds all that was measured so far, and goes on. So it does where somebody stopped it,
or where it might be decided otherwise another day, as when memory was short: that is not kept.

It remembers verdicts, too: what these options make of a captured graph is wrong (`mark_wrong`), or
by how much an outcome is off with these weights (`mark_verified`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.artifact import compact
from anabranch.cache import Cache, Table
from anabranch.costs import name_of
from anabranch.deadline import CutShort
from anabranch.errors import NumericsError
from anabranch.ir.codec import Beside, nouns
from anabranch.ir.graph import Graph
from anabranch.ir.key import digest_text
from anabranch.ir.plan import Footprint, Plan, Signature
from anabranch.ir.protocols import Cost, Provider, Target
from anabranch.ir.schedule import Schedule, Timeline
from anabranch.ir.text import text_graph
from anabranch.ir.tolerances import Errors
from anabranch.kernels import sources
from anabranch.options import Options
from anabranch.trace import Event, EventKind, Trace
from anabranch.tuning.decisions import Candidate, sketches
from anabranch.tuning.select import Selection

OPTIONS = (
    "effort",
    "scheduler",
    "kernels",
    "deterministic",
    "memory_limit",
    "fusion",
    "max_streams",
    "max_group_size",
    "max_groups",
    "arena_ratio",
    "horizontal_fusion",
    "pdl",
    "cuda_graph",
)
"""The options that decide, beside those that show in the graph and in the target. The budget does
not: what it cut short is kept with it."""
NOT_OF_VALUES = {
    *("cache_dir", "debug", "dump", "check", "strict", "outputs", "batch", "budget"),
    *("buckets", "unseen", "memory_limit", "fullgraph", "workers"),
}
"""Options that change nothing about what is computed; less time finds less that may be wrong."""
TOLD_ANEW: tuple[EventKind, ...] = ("stage", "progress", "time")
"""Events of a run, and not of what it found."""


class KnownError(NumericsError):
    """What an earlier compilation found wrong."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """What the stages from fusion to memory made of `graph`. `schedules`: those compared, best
    first, each kernel waiting for all before it; `cost`: that of the plan, as its kernels are
    launched (`pdl`). `settled`: nothing was left out that might run another day;
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


@dataclass(frozen=True, slots=True)
class _Group:
    """Tasks, by number, that were decided together, and what was tried for them."""

    tasks: tuple[int, ...]
    tried: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    """An outcome beside its graph. `name`: of this one outcome, which another may replace;
    `budget`: the seconds that cut it short, None if none did."""

    plan: compact.Brief
    groups: tuple[_Group, ...]
    schedules: tuple[tuple[Schedule, Cost], ...]
    timeline: Timeline
    sequential: Footprint
    cost: Cost
    events: tuple[Event, ...]
    name: str = ""
    budget: float | None = None


OUTCOMES: Table[_StoredPlan] = Table("plans", "outcome 9", nouns(_StoredPlan))
LATEST: Table[dict[str, str]] = Table("plans", "latest 1", nouns(dict[str, str]))
"""Digests of what an outcome depends on."""
WRONG: Table[tuple[str, str, str]] = Table("plans", "wrong 7", nouns(tuple[str, str, str]))
VERIFIED: Table[Errors] = Table("plans", "verified 7", nouns(Errors))


@dataclass(frozen=True, slots=True)
class PlanCache:
    """The outcomes of compilations for this target with these options, and whether they were
    right."""

    cache: Cache | None
    target: Target
    options: Options

    def key(self, graph: Graph, signature: Signature, providers: Sequence[Provider]) -> str:
        """The whole text of what an outcome depends on."""
        return key_of(self.parts(graph, signature, providers))

    def parts(
        self, graph: Graph, signature: Signature, providers: Sequence[Provider]
    ) -> dict[str, str]:
        """What an outcome depends on, by what a person calls it."""
        bare = tuple(replace(constant, digest="-") for constant in graph.constants)
        spec = self.target.spec
        return {
            "this package": sources.digest(sources.ALL_ROOMS),
            "the machine": spec.fingerprint,
            "the target": f"{name_of(self.target)} {spec.simulated} {spec.calibration}",
            **{f"provider {provider.name}": provider.version for provider in providers},
            **{f"option {name}": str(getattr(self.options, name)) for name in OPTIONS},
            "the signature": repr(signature),
            "the graph": text_graph(replace(graph, constants=bare)),
        }

    def say_why_unknown(self, graph: Graph, parts: Mapping[str, str], trace: Trace) -> None:
        """An event that says what differs from the latest outcome that was kept under this name of
        a graph, if there is one: why a start decides anew that was to find everything."""
        latest = LATEST.get(self.cache, self._latest_key(graph))
        if latest is None:
            return
        now = _digests(parts)
        names = [name for name in {**latest, **now} if latest.get(name) != now.get(name)]
        why = f"what differs from the plan kept last: {', '.join(names)}"
        if not names:
            why = "the plan that was kept does not fit, or is no longer there"
        trace.add("refused", "recall", graph.name, f"decided anew: {why}")

    def name_latest(self, graph: Graph, parts: Mapping[str, str]) -> None:
        """Remember what the outcome depends on that was kept last under this name of a graph."""
        LATEST.put(self.cache, self._latest_key(graph), _digests(parts))

    def _latest_key(self, graph: Graph) -> str:
        return LATEST.key(graph.name, self.target.spec.kind, str(self.target.spec.simulated))

    def find(
        self, key: str, graph: Graph, signature: Signature, trace: Trace
    ) -> CompiledGraph | None:
        """The outcome under this key, its events told anew; None where there is none, or where it
        was cut short and there is more time now."""

        def whole(stored: _StoredPlan) -> tuple[CompiledGraph, _StoredPlan]:
            plan = compact.read(stored.plan, graph, self.target.spec, signature)
            compiled = CompiledGraph(
                graph,
                Selection(plan.tasks, dict(_candidates(stored.groups, plan))),
                stored.schedules,
                stored.timeline,
                stored.sequential,
                plan,
                stored.cost,
                cut_short="" if stored.budget is None else "budget",
                kept=stored.name,
            )
            return compiled, stored

        outcome = OUTCOMES.find(self.cache, key, whole, Beside.of(graph))
        if outcome is None:
            return None
        recalled, stored = outcome
        if stored.budget is not None:
            now = self.options.budget
            if now is None or now > stored.budget:
                return None
            why = f"a budget of {stored.budget:g} s cut it short: a longer one goes on"
            trace.add("refused", "recall", graph.name, why)
        trace.recalled("recall", graph.name, stored.events)
        return recalled

    def store(self, key: str, outcome: CompiledGraph, events: Sequence[Event], trace: Trace) -> str:
        """Keep an outcome that is settled, with the events that led to it, and give what names it
        in the cache, "" if it is not kept: one that cannot be told beside its graph, that somebody
        stopped, or that might be another one another day. An event says why."""
        if self.cache is None:
            return ""
        late, why = outcome.cut_short == "budget", ""
        if outcome.cut_short == "stop":
            why = "somebody stopped it"
        elif not (outcome.settled or late):
            why = "something was left out for want of time or memory, which another start may try"
        try:
            told = compact.write(outcome.plan, outcome.graph) if not why else None
        except ValueError as unlike:
            told, why = None, str(unlike)
        if told is None:
            trace.add("refused", "recall", outcome.graph.name, f"not kept for later starts: {why}")
            return ""
        stored = _StoredPlan(
            told,
            tuple(_groups(outcome)),
            outcome.schedules,
            outcome.timeline,
            outcome.sequential,
            outcome.cost,
            tuple(replace(event, seconds=0.0) for event in events if event.kind not in TOLD_ANEW),
            budget=self.options.budget if late else None,
        )
        beside = Beside.of(outcome.graph)
        name = digest_text(f"{key}\n{OUTCOMES.codec.write(stored, beside).decode()}")
        OUTCOMES.put(self.cache, key, replace(stored, name=name), beside)
        return name

    def mark_wrong(self, captured: Graph, wrong: NumericsError) -> None:
        """Remember that what these options make of the captured graph computes something else."""
        WRONG.put(self.cache, self._wrong_key(captured), (wrong.what, wrong.why, wrong.next))

    def known_wrong(self, captured: Graph) -> KnownError | None:
        """What an earlier compilation found wrong, None if nothing. A user who looks for what is
        wrong (`check`, `dump`), or asks for an error (`strict`), compiles again."""
        options = self.options
        if self.cache is None or options.strict or options.check or options.dump is not None:
            return None
        return WRONG.find(self.cache, self._wrong_key(captured), lambda told: KnownError(*told))

    def mark_verified(self, name: str, captured: Graph, errors: Errors) -> None:
        """Remember by how much the outcome of this name was off with the captured graph's weights,
        on inputs of these options' seed."""
        if self.cache is not None and name:
            VERIFIED.put(self.cache, self._verified_key(name, captured), errors)

    def verified(self, name: str, captured: Graph) -> Errors | None:
        """By how much it was off, and how much was allowed, None if nobody has looked: with other
        weights it may be more. Who looks for what is wrong looks anew."""
        if self.cache is None or not name or self.options.strict or self.options.check:
            return None
        return VERIFIED.get(self.cache, self._verified_key(name, captured))

    def _wrong_key(self, captured: Graph) -> str:
        """With the content of the weights: others may be rounded less."""
        asked = self.options.model_dump_json(exclude=NOT_OF_VALUES)
        ours = sources.digest(sources.ALL_ROOMS)
        machine = f"{self.target.spec.fingerprint} {name_of(self.target)}"
        return WRONG.key(ours, machine, asked, _content(captured))

    def _verified_key(self, name: str, captured: Graph) -> str:
        return VERIFIED.key(name, str(self.options.seed), _content(captured))


def key_of(parts: Mapping[str, str]) -> str:
    """The whole key of an outcome that depends on these."""
    return OUTCOMES.key(*(f"{name} {part}" for name, part in parts.items()))


def _digests(parts: Mapping[str, str]) -> dict[str, str]:
    return {name: digest_text(part) for name, part in parts.items()}


def _content(graph: Graph) -> str:
    """Names the graph, the content of its weights included. A captured graph has the same names in
    every process, so these need not be made alike."""
    return digest_text(text_graph(graph, origins=False))


def _groups(outcome: CompiledGraph) -> Iterator[_Group]:
    """Candidates as they are shared: tasks of equal structure have one tuple of them."""
    candidates, shared = outcome.selection.candidates, dict[int, list[int]]()
    for i, task in enumerate(outcome.plan.tasks.tasks):
        shared.setdefault(id(candidates[task.name]), []).append(i)
    for numbers in shared.values():
        tried = candidates[outcome.plan.tasks.tasks[numbers[0]].name]
        yield _Group(tuple(numbers), sketches(tried))


def _candidates(
    groups: Sequence[_Group], plan: Plan
) -> Iterator[tuple[str, tuple[Candidate, ...]]]:
    """By task name what was tried, as sketches."""
    tasks = plan.tasks.tasks
    for group in groups:
        tried = sketches(group.tried, tasks[group.tasks[0]].body)
        for number in group.tasks:
            yield tasks[number].name, tried

"""The selector: for every task the fastest of all kernels it could have, by measurement.

Tasks of equal structure are decided once. Candidates of all structures are tried in one batch, so
that they are measured side by side; the winner must also compute what the task's body computes,
else the next one is taken. What was decided before is not tried again (`decisions`).

DeepCuts, section on the code selector: generated kernels compete with the library's, and the
library wins where it is faster.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from anabranch.costs import Roofline
from anabranch.errors import TargetError
from anabranch.ir.determinism import any_order
from anabranch.ir.gc_pause import uncollected
from anabranch.ir.key import structure_text
from anabranch.ir.protocols import Cost, KernelOffer, Provider
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import IN_ORDER, PLAIN_VARIANT, Kernel, Task, TaskGraph, runs_body
from anabranch.ir.text import text_kernel
from anabranch.trace import Trace
from anabranch.tuning.decisions import NOWHERE, Candidate, Decision, Memory, kept_decisions, store
from anabranch.tuning.halving import TrialTimer
from anabranch.tuning.shortlist import Offers, Shortlist, all_offers
from anabranch.tuning.verdict import Verdict

Check = Callable[[Task], Refused | None]
"""Why a task's kernel computes something else than its body, if it does."""

MOST_KERNELS, FEWEST_KERNELS = 1100, 4
"""Generated kernels that are tried at once, and of one structure as long as all may have as many. A
network of hundreds of different layers tries fewer for each: compiling them is what a first
compilation mostly does. Where not even so many of each fit, those that matter get most
(`allotted`)."""
SAME = 0.02
"""Candidates within 2% of the fastest, or within the spreads, are taken for equally fast; then a
kernel that writes where it is told wins, then the earlier provider: the same times give the same
plan."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The task graph with a kernel for each task, and by task name what it was chosen from.
    `settled`: whether all that failed would fail again."""

    tasks: TaskGraph
    candidates: dict[str, tuple[Candidate, ...]]
    settled: bool = True


@dataclass(frozen=True, slots=True)
class SelectionConfig:
    """How kernels are chosen: for which machine, of whose offers, who times and who checks them,
    what is remembered, how many generated ones are tried in all, and which of a task's offers."""

    spec: TargetSpec
    providers: Sequence[Provider]
    trial: TrialTimer
    check: Check
    memory: Memory = NOWHERE
    most: int = MOST_KERNELS
    shortlist: Shortlist = all_offers


def select(tasks: TaskGraph, config: SelectionConfig, trace: Trace) -> Selection:
    """Choose a kernel for every task. TargetError if a task has none that runs."""
    return select_all([tasks], config, trace)[0]


def decide(tasks: Sequence[Task], config: SelectionConfig, trace: Trace) -> dict[str, Decision]:
    """What is decided of each structure, by its text; nothing of one that no kernel runs."""
    return _decisions({structure_text(task.body): task for task in tasks}, config, trace)


def winner(task: Task, decision: Decision, config: SelectionConfig) -> Kernel:
    """The chosen kernel, with the names of this task."""
    won, maker = decision.tried[decision.winner].kernel, decision.makers[decision.winner]
    return config.providers[maker].kernel(task, config.spec, won.name, won.variant)


def select_known(
    tasks: TaskGraph, decisions: Mapping[str, Decision], config: SelectionConfig, trace: Trace
) -> Selection:
    """As `select`, where something is decided already: that is not tried again."""
    alike = _alike(tasks)
    fresh = {key: task for key, task in _firsts([alike]).items() if key not in decisions}
    decisions = {**decisions, **_decisions(fresh, config, trace, strict=True)}
    return _selected(tasks, alike, decisions, config, trace)


def select_some(tasks: TaskGraph, config: SelectionConfig, trace: Trace) -> Selection:
    """As `select`, without the tasks that no kernel runs."""
    alike = _alike(tasks)
    decisions = _decisions(_firsts([alike]), config, trace)
    left = {key: group for key, group in alike.items() if key in decisions}
    names = {task.name for group in left.values() for task in group}
    kept = replace(tasks, tasks=tuple(task for task in tasks.tasks if task.name in names))
    return _selected(kept, left, decisions, config, trace)


def select_all(cuts: Sequence[TaskGraph], config: SelectionConfig, trace: Trace) -> list[Selection]:
    """As `select` for each of several cuts of a graph, the candidates of all of them in one batch:
    whoever compiles or measures it has work for all its hands until it ends."""
    groups = [_alike(cut) for cut in cuts]
    decisions = _decisions(_firsts(groups), config, trace, strict=True, counts=_counts(groups))
    return [
        _selected(cut, alike, decisions, config, trace)
        for cut, alike in zip(cuts, groups, strict=True)
    ]


def candidates(
    cuts: Sequence[TaskGraph],
    spec: TargetSpec,
    providers: Sequence[Provider],
    most: int = MOST_KERNELS,
    shortlist: Shortlist = all_offers,
) -> list[Kernel]:
    """All kernels that `select_all` would try for these cuts if it knew nothing."""
    groups = [_alike(cut) for cut in cuts]
    first = _firsts(groups)
    every = shortlist(first, {key: _offers(task, spec, providers) for key, task in first.items()})
    offers = within(every, most, partial(_importance, first, _counts(groups), spec))
    return [kernel.write() for offer in offers.values() for _, kernel in offer]


def _firsts(groups: Sequence[Mapping[str, Sequence[Task]]]) -> dict[str, Task]:
    """A task of each structure, by its text."""
    return {key: group[0] for alike in groups for key, group in alike.items()}


def _counts(groups: Sequence[Mapping[str, Sequence[Task]]]) -> dict[str, int]:
    """How many tasks of each structure one cut has, at most."""
    counts: dict[str, int] = {}
    for alike in groups:
        for key, group in alike.items():
            counts[key] = max(len(group), counts.get(key, 0))
    return counts


def _importance(
    first: Mapping[str, Task], counts: Mapping[str, int], spec: TargetSpec
) -> dict[str, float]:
    """Microseconds that the tasks of each structure are expected to take together."""
    roofline = Roofline(spec)
    return {key: roofline.task(task).us * counts.get(key, 1) for key, task in first.items()}


def _decisions(
    first: Mapping[str, Task],
    config: SelectionConfig,
    trace: Trace,
    strict: bool = False,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Decision]:
    """What is known or now decided of these structures. `counts`: tasks of each."""
    bodies = {key: task.body for key, task in first.items()}
    old = kept_decisions(bodies, config.spec, config.providers, config.memory)
    fresh = {key: task for key, task in first.items() if key not in old}
    decided = _decided(fresh, config, trace, strict, counts)
    store(decided, config.spec, config.providers, config.memory)
    return old | decided


def _alike(tasks: TaskGraph) -> dict[str, list[Task]]:
    """Tasks of equal structure, by its text."""
    alike: dict[str, list[Task]] = {}
    for task in tasks.tasks:
        alike.setdefault(structure_text(task.body), []).append(task)
    return alike


def _selected(
    tasks: TaskGraph,
    alike: Mapping[str, Sequence[Task]],
    decisions: Mapping[str, Decision],
    config: SelectionConfig,
    trace: Trace,
) -> Selection:
    """What was decided, for each task in its own names."""
    chosen: dict[str, Task] = {}
    candidates: dict[str, tuple[Candidate, ...]] = {}
    for key, group in alike.items():
        decision = decisions[key]
        for task in group:
            chosen[task.name] = replace(task, kernel=winner(task, decision, config))
            candidates[task.name] = decision.tried
        _tell(trace, group, decision.tried, decision.tried[decision.winner])
    ordered = tuple(chosen[task.name] for task in tasks.tasks)
    return Selection(replace(tasks, tasks=ordered), candidates)


def _decided(
    fresh: Mapping[str, Task],
    config: SelectionConfig,
    trace: Trace,
    strict: bool,
    counts: Mapping[str, int],
) -> dict[str, Decision]:
    """Decisions for these structures, by trying all candidates in one batch. What nothing runs has
    none; if `strict`, that is an error."""
    with trace.stage("tuning.write"), uncollected():  # a third of the time
        offers = _written(fresh, config, counts)
    flat = [
        replace(fresh[key], kernel=kernel) for key, offer in offers.items() for _, kernel in offer
    ]
    costs = iter(config.trial(flat) if flat else ())
    with trace.stage("tuning.check"):
        return _checked(fresh, offers, costs, config, trace, strict)


def _checked(
    fresh: Mapping[str, Task],
    offers: Mapping[str, Sequence[tuple[int, Kernel]]],
    costs: Iterator[Cost | None],
    config: SelectionConfig,
    trace: Trace,
    strict: bool,
) -> dict[str, Decision]:
    """Of each structure the fastest kernel that is right; `costs`: of all of `offers` in order."""
    decided: dict[str, Decision] = {}
    for key, offer in offers.items():
        offered = [Candidate(kernel, _heard(next(costs))) for _, kernel in offer]
        tried = _decide(fresh[key], _comparable(offered), config.check)
        makers = tuple(maker for maker, _ in offer)
        if not any(candidate.verdict.chosen for candidate in tried):
            tried, makers = _at_last(fresh[key], offered, tried, makers, config, trace)
        if not any(candidate.verdict.chosen for candidate in tried):
            if strict:
                raise _nothing_runs(fresh[key], tried, config.spec, trace)
            continue
        decided[key] = Decision(tuple(tried), makers)
    return decided


def _written(
    fresh: Mapping[str, Task], config: SelectionConfig, counts: Mapping[str, int]
) -> dict[str, list[tuple[int, Kernel]]]:
    """What is tried for these structures, each with the position of its provider. Texts are written
    of no more than that: of a large network two thirds of what is offered are not kept."""
    offers = {key: _offers(task, config.spec, config.providers) for key, task in fresh.items()}
    every = config.shortlist(fresh, offers)
    kept = within(every, config.most, partial(_importance, fresh, counts, config.spec))
    return {key: [(maker, offer.write()) for maker, offer in few] for key, few in kept.items()}


def within(
    offers: Mapping[str, Offers],
    most: int = MOST_KERNELS,
    importance: Callable[[], Mapping[str, float]] = dict,
) -> dict[str, Offers]:
    """No more than `most` generated kernels in all, in the order in which they are offered, as many
    of each structure as fit; all others. `importance`: of each structure, asked where they differ
    in how many they may try."""
    written = {key: sum(map(_generated, offer)) for key, offer in offers.items()}
    limit = max(written.values(), default=0)
    while limit > FEWEST_KERNELS and sum(min(count, limit) for count in written.values()) > most:
        limit -= 1
    limits = {key: min(count, limit) for key, count in written.items()}
    if sum(limits.values()) > most:
        limits = allotted(written, most, importance())
    return {key: _first(offer, limits[key]) for key, offer in offers.items()}


def allotted(
    written: Mapping[str, int], most: int, importance: Mapping[str, float]
) -> dict[str, int]:
    """How many of each structure are tried: one of each, and of the others as many as its share of
    the importance of all, as seats are given to parties (d'Hondt), as long as there are any."""
    limits = {key: min(1, count) for key, count in written.items()}
    left = most - sum(limits.values())
    waiting = [(-importance.get(key, 0.0) / 2, key) for key, count in written.items() if count > 1]
    heapq.heapify(waiting)
    while waiting and left > 0:
        _, key = heapq.heappop(waiting)
        limits[key] += 1
        left -= 1
        if limits[key] < written[key]:
            heapq.heappush(waiting, (-importance.get(key, 0.0) / (limits[key] + 1), key))
    return limits


def _first(offers: Offers, limit: int) -> Offers:
    written = itertools.count()
    return [offer for offer in offers if not _generated(offer) or next(written) < limit]


def _generated(offer: tuple[int, KernelOffer]) -> bool:
    return offer[1].generated


def _offers(task: Task, spec: TargetSpec, providers: Sequence[Provider]) -> Offers:
    """All candidates, each with the position of its provider."""
    return [
        (maker, offer)
        for maker, provider in enumerate(providers)
        for offer in provider.kernel_offers(task, spec)
    ]


def _heard(cost: Cost | None) -> Verdict:
    """Of a trial."""
    return Verdict("tried") if cost is None else Verdict("ran", cost)


def _comparable(tried: list[Candidate]) -> list[Candidate]:
    """Where a time is known, one that is only estimated is not compared with it."""
    sources = {
        candidate.verdict.cost.source for candidate in tried if candidate.verdict.cost is not None
    }
    if sources <= {"estimated"}:
        return tried
    unknown = Verdict("tried", refused=Refused("only estimated, where others are known"))
    return [
        replace(candidate, verdict=unknown)
        if candidate.verdict.cost and candidate.verdict.cost.source == "estimated"
        else candidate
        for candidate in tried
    ]


def _decide(task: Task, tried: list[Candidate], check: Check) -> list[Candidate]:
    """Mark the winner: candidates in order of preference until one passes the check."""
    while (best := _preferred(tried)) is not None:
        verdict, kernel = tried[best].verdict, tried[best].kernel
        wrong = check(replace(task, kernel=kernel))
        verdict = replace(verdict, refused=wrong) if wrong else replace(verdict, reached="chosen")
        tried[best] = Candidate(kernel, verdict)
        if verdict.chosen:
            break
    return tried


def check_ahead(tasks: Sequence[Task], costs: Sequence[Cost | None], check: Check) -> None:
    """Check the kernel that will be preferred of these, all ways to run one body."""
    tried = [
        Candidate(task.kernel, _heard(cost))
        for task, cost in zip(tasks, costs, strict=True)
        if task.kernel is not None
    ]
    best = _preferred(_comparable(tried))
    if best is not None:
        check(tasks[best])


def _at_last(
    task: Task,
    offered: Sequence[Candidate],
    tried: list[Candidate],
    makers: tuple[int, ...],
    config: SelectionConfig,
    trace: Trace,
) -> tuple[list[Candidate], tuple[int, ...]]:
    """Where no kernel passed: the library's, operator by operator, each with memory of its own, for
    that is what eager runs. The whole plan is compared with the model all the same."""
    for at, (before, maker) in enumerate(zip(offered, makers, strict=True)):
        ordered = before.kernel.variant == IN_ORDER
        if task.overwrites or ordered or not runs_body(replace(task, kernel=before.kernel)):
            continue
        plain = config.providers[maker].kernel(task, config.spec, before.kernel.name, PLAIN_VARIANT)
        us = config.spec.launch_us * max(1, plain.launches)
        cost = before.verdict.cost or Cost(us, "estimated")
        why = f"nothing else passed: {tried[at].verdict.refused or 'it was not measured'}"
        trace.add("warning", "tuning", task.name, f"run as eager runs it; {why}")
        return [*tried, Candidate(plain, Verdict("chosen", cost))], (*makers, maker)
    return tried, makers


def _preferred(tried: Sequence[Candidate]) -> int | None:
    """The position of the next to be chosen, None if none is left."""
    left = {
        i: cost
        for i, candidate in enumerate(tried)
        if (cost := candidate.verdict.usable) is not None
    }
    if not left:
        return None
    most_us = as_fast(min(left.values(), key=lambda cost: cost.us))
    tied = [i for i, cost in left.items() if cost.us <= most_us]
    return min(tied, key=lambda i: (not tried[i].kernel.writes_out, i))


def as_fast(fastest: Cost) -> float:
    """Microseconds up to which a kernel is taken for as fast as the fastest."""
    return fastest.us + max(SAME * fastest.us, min(fastest.spread, 0.1 * fastest.us))


def _nothing_runs(
    task: Task, tried: Sequence[Candidate], spec: TargetSpec, trace: Trace
) -> TargetError:
    """`trace`: has heard from whoever tried them what went wrong, though not with which."""
    unordered = any_order(task.body, spec.kind)
    if unordered and not any(
        runs_body(replace(task, kernel=candidate.kernel)) for candidate in tried
    ):
        return TargetError(
            f"no kernel of task {task.name} gives the same bits in each run",
            f"{unordered}, torch has no deterministic kernel for it, and none was generated",
            "compile without deterministic=True, or write that line of the model otherwise",
            task.origin,
        )
    said = (e.why for e in trace.events if e.kind == "refused" and e.what == task.name)
    refusals = [f"{text_kernel(c.kernel)}: {c.verdict.refused or 'failed'}" for c in tried]
    refusals += dict.fromkeys(said)
    return TargetError(
        f"no kernel runs task {task.name}",
        "; ".join(refusals) or "no provider has one",
        "report the model's operator, or compile for another target",
        task.origin,
    )


def _tell(trace: Trace, group: Sequence[Task], tried: Sequence[Candidate], won: Candidate) -> None:
    cost = won.verdict.cost
    assert cost is not None
    each = ((text_kernel(c.kernel), c.verdict.cost) for c in tried if c is not won)
    others = [f"{name} {took.us:.2f}" if took else f"{name} failed" for name, took in each]
    trace.add(
        "chosen",
        "tuning",
        ", ".join(task.name for task in group),
        f"{text_kernel(won.kernel)} {cost.us:.2f} us ({cost.source})"
        + (f"; others: {', '.join(others)}" if others else ""),
        us=cost.us,
    )
    for candidate in tried:
        if candidate.verdict.refused:
            what = f"{group[0].name} by {text_kernel(candidate.kernel)}"
            trace.add("refused", "tuning", what, str(candidate.verdict.refused))

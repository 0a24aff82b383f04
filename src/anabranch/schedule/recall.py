"""Schedulers' answers, kept between processes: the candidates of a known task graph, with costs.

Keyed by the whole text of the question: tasks with kernels and what they take of the machine, the
schedulers asked, their limits, the machine. Recalled schedules are verified like new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from anabranch.cache import Cache
from anabranch.errors import VerifyError
from anabranch.ir.dag import dag_of
from anabranch.ir.key import task_text
from anabranch.ir.protocols import Cost, Costs, Limits
from anabranch.ir.schedule import Schedule, Source, parse_schedule, text_schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.verify import verify_schedule
from anabranch.schedule.best import Choice, best

SCHEME = "choice 5"
RECALLED = "recalled from the cache"
"""Why a schedule is chosen that took no time."""


class _Candidate(BaseModel):
    schedule: str
    us: float
    source: Source
    spread: float


class _Stored(BaseModel):
    candidates: list[_Candidate]


def best_or_recall(
    tasks: TaskGraph, costs: Costs, names: Sequence[str], limits: Limits, cache: Cache | None
) -> Choice:
    """As `best`, unless the cache holds the same question's answer, as measured."""
    if cache is None:
        return best(tasks, costs, names, limits.trace, limits)
    key = _key(tasks, names, limits)
    found = _recalled(cache.get("plans", key), tasks)
    if found is not None:
        limits.trace.add("chosen", "schedule", found.schedule.scheduler, RECALLED)
        return found
    choice = best(tasks, costs, names, limits.trace, limits)
    if limits.deadline.over():  # another day there is more time
        return choice
    found_by_measuring = [pair for pair in choice.candidates if pair[1].source == "measured"]
    if choice.candidates[0] in found_by_measuring:
        stored = [
            _Candidate(
                schedule=text_schedule(schedule), us=cost.us, source=cost.source, spread=cost.spread
            )
            for schedule, cost in found_by_measuring
        ]
        cache.put("plans", key, _Stored(candidates=stored).model_dump_json())
    return choice


def _key(tasks: TaskGraph, names: Sequence[str], limits: Limits) -> str:
    """`deadline` is left out: what it cut short is not kept."""
    lines = [SCHEME, limits.spec.fingerprint, " ".join(names)]
    lines += [f"{limits.max_streams} {limits.max_group_size} {limits.max_groups}"]
    for task in tasks.tasks:
        resources = task.kernel.resources if task.kernel else None
        lines.append(f"{task.name} {task.reads} {task.writes} {resources}\n{task_text(task)}")
    lines += [f"{node.name} {node.op} {node.uses}" for node in (*tasks.aliases, *tasks.joins)]
    return "\n".join(lines)


def _recalled(text: str | None, tasks: TaskGraph) -> Choice | None:
    if text is None:
        return None
    try:
        stored = _Stored.model_validate_json(text)
        found: list[tuple[Schedule, Cost]] = []
        dag = dag_of(tasks)
        for item in stored.candidates:
            schedule = parse_schedule(item.schedule)
            verify_schedule(schedule, dag)
            found.append((schedule, Cost(item.us, item.source, item.spread)))
    except (ValidationError, ValueError, KeyError, VerifyError):
        return None
    return Choice(found[0][0], tuple(found)) if found else None

"""What the page's script draws, as one JSON object: rows, candidates, sources, timelines, memory.

A network of 1,500 tasks has a few hundred different ones, and tasks of equal structure share their
candidates; so candidates and sources are written once and named by number. Sources are the only
part that can grow without bound: beyond `SOURCES` characters they are left out, those of kernels
in use last. All text is data here, escaped so that no name or source can end the script element.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.ir.graph import Graph
from anabranch.ir.text import text_graph, text_kernel
from anabranch.report.flow import Flow, busy, critical_chain
from anabranch.report.headline import headline
from anabranch.report.kernel import limit_facts, why_not
from anabranch.report.modules import module_of, modules
from anabranch.report.occupancy import fullest, occupancy
from anabranch.report.parts import ReportParts
from anabranch.report.task_rows import TaskRow, is_chosen, reads, runs, writes
from anabranch.tuning.decisions import Candidate

SOURCES = 1_000_000
LEFT_OUT = -2
"""Stands for the number of a source that had no room; -1 for a kernel that has none."""
MEANINGS = {
    "measured": "The plan or the kernel ran on this machine, now or in an earlier compilation "
    "whose times are kept.",
    "launched": "The plan or the kernel ran on this machine launch by launch, for its graph could "
    "not be had: the host's time is in it, and it says nothing beside times of graphs.",
    "recorded": "A profile of the machine has the time: it was measured there before, and nothing "
    "ran now.",
    "estimated": "Computed from what kernels read, write and multiply, and from what a launch "
    "costs: nothing ran.",
}
"""What is meant where a number is said to be so."""
UNSAFE = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def content(parts: ReportParts, rows: Sequence[TaskRow], flow: Flow) -> dict[str, Any]:
    """Everything the script draws; short keys, for there are many rows."""
    sources = _sources(rows)
    groups: dict[str, int] = {}
    limits = _limits(parts, rows)
    position = {row.task.name: i for i, row in enumerate(rows)}
    return {
        "tasks": [_task(i, row, flow, sources, limits, groups) for i, row in enumerate(rows)],
        "candidates": [json.loads(group) for group in groups],
        "sources": list(sources),
        "timelines": _timelines(parts, flow, position),
        "memory": _memory(parts, len(rows)),
        "streams": sorted({row.launch.stream for row in rows}),
        "modules": [[module.path, module.tasks, _rounded(module.us)] for module in modules(rows)],
        "meanings": MEANINGS,
        "name": parts["name"],
        "machine": headline(parts).machine,
    }


def dump(value: Any) -> str:
    """JSON that may stand inside a script element; numbers that JSON lacks become their names."""
    text = json.dumps(_plain(value), separators=(",", ":"), allow_nan=False, default=str)
    return text.translate(UNSAFE)


def _plain(value: Any) -> Any:
    if isinstance(value, str):  # half a surrogate pair is no text, and browsers may die of it
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _sources(rows: Sequence[TaskRow]) -> dict[str, int]:
    """The sources that have room, with their numbers: of kernels in use, the slowest task's first,
    then of the others in the same order."""
    by_time = sorted(rows, key=lambda row: -(row.us or 0.0))
    number_of: dict[str, int] = {}
    room = SOURCES
    for used in (True, False):
        for row in by_time:
            for candidate in row.candidates:
                source = candidate.kernel.source
                if is_chosen(row.task, candidate) is not used or not source or source in number_of:
                    continue
                if len(source) <= room:
                    number_of[source] = len(number_of)
                    room -= len(source)
    return number_of


def _limits(
    parts: ReportParts, rows: Sequence[TaskRow]
) -> dict[int, list[list[float | None] | None]]:
    """By the identity of candidates, which tasks of equal structure share: of each candidate the
    upper limit, its four terms and its time, None where there is none."""
    spec = parts["plan"].spec
    limits: dict[int, list[list[float | None] | None]] = {}
    for row in rows:
        if id(row.candidates) not in limits:
            kernels = (candidate.kernel for candidate in row.candidates)
            facts = (limit_facts(row.task.body, kernel, spec) for kernel in kernels)
            limits[id(row.candidates)] = [_numbers(limit) if limit else None for limit in facts]
    return limits


def _numbers(limit: Mapping[str, Any]) -> list[float | None]:
    names = ("part_of_peak", "memory", "shared", "tail", "fits", "us")
    values = (limit[name] for name in names)
    return [None if value is None else float(f"{value:.3g}") for value in values]


def _task(
    i: int,
    row: TaskRow,
    flow: Flow,
    sources: Mapping[str, int],
    limits: Mapping[int, list[list[float | None] | None]],
    groups: dict[str, int],
) -> dict[str, Any]:
    task, kernel = row.task, row.task.kernel
    resources = kernel.resources if kernel else None
    of_each = zip(row.candidates, limits[id(row.candidates)], strict=True)
    tried = json.dumps([_candidate(c, row, limit, sources) for c, limit in of_each])
    chosen = (k for k, c in enumerate(row.candidates) if is_chosen(task, c))
    return {
        "name": task.name,
        "kind": row.kind,
        "ops": row.ops,
        "reads": reads(task),
        "writes": writes(task),
        "kernel": row.kernel,
        "us": _rounded(row.us),
        "source": row.source,
        "launch": _launch(resources),
        "launches": kernel.launches if kernel else 1,
        "workspace": kernel.workspace if kernel else 0,
        "stream": row.launch.stream,
        "after": flow.reads[i],
        "waits": flow.waits[i],
        "row": flow.row[i],
        "column": flow.column[i],
        "origin": task.origin,
        "module": module_of(row),
        "place": row.place,
        "body": text_graph(task.body),
        "runs": runs(task),
        "candidates": groups.setdefault(tried, len(groups)),
        "chosen": next(chosen, -1),
    }


def _candidate(
    candidate: Candidate, row: TaskRow, limit: list[float | None] | None, sources: Mapping[str, int]
) -> list[Any]:
    kernel, cost, refused = candidate.kernel, candidate.verdict.cost, candidate.verdict.refused
    number = sources.get(kernel.source, LEFT_OUT) if kernel.source else -1
    name, spread = text_kernel(kernel), _rounded(cost.spread) if cost else None
    launch = _launch(kernel.resources)
    us, source = (_rounded(cost.us), cost.source) if cost else (None, "")
    why = str(why_not(row.task, candidate, row.candidates) or "")
    return [name, us, spread, source, str(refused or ""), number, launch, why, limit]


def _launch(resources: Any) -> list[int] | None:
    if resources is None:
        return None
    estimated = [1] * resources.estimated
    return [resources.ctas, resources.threads, resources.registers, resources.shared, *estimated]


def _timelines(parts: ReportParts, flow: Flow, position: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "source": timeline.source,
            "latency": _rounded(timeline.latency),
            "spans": [
                [position[span.task], span.stream, _rounded(span.start), _rounded(span.end)]
                for span in timeline.spans
                if span.task in position
            ],
            "busy": {str(stream): round(part, 4) for stream, part in busy(timeline).items()},
            "critical": critical_chain(timeline, flow, position),
        }
        for name, timeline in parts["timelines"]
    ]


def _memory(parts: ReportParts, launches: int) -> dict[str, Any]:
    plan, held = parts["plan"], occupancy(parts["plan"])
    at, most = fullest(held, launches)
    return {
        "arena": plan.arena_bytes,
        "sequential": headline(parts).peak_sequential,
        "launches": launches,
        "fullest": [at, most],
        "items": [
            [h.value, h.task, h.first, h.last, h.offset, h.nbytes, int(h.workspace)] for h in held
        ],
    }


def graph_text(graph: Graph, most: int = 600_000) -> str:
    """The graph's text; of a very long one the middle is left out, and said so."""
    text = text_graph(graph)
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[-most // 2 :]
    head, tail = head[: head.rfind("\n") + 1], tail[tail.find("\n") + 1 :]
    missing = text.count("\n") - head.count("\n") - tail.count("\n")
    return f"{head}\n  ... {missing:,} lines left out of this page ...\n\n{tail}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)

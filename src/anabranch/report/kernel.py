"""All that is known of one task and its kernel: Plan, candidates, events -> facts -> text.

convolution on NVIDIA H200, simulated: convolution, relu
  2.68 us estimated, launch 1 of 22 on stream 0
  net.py:7 in forward (features.0)
Computes ...
Kernel: triton.contraction contraction:16x64x64.k1.w2.s4
  at most 0.15% of peak (memory 0.03, shared 0.14, tail 0.40, fits 1), about 2.0 us
Candidates: 21, 20 with a time (* chosen)
  * 2.68 us estimated   triton.contraction contraction:16x64x64.k1.w2.s4
        at most 0.15% of peak ...
    6.58 us estimated   aten.aten
        lost: 146% slower than the chosen one
Source ...

Facts are ready for JSON, and the text says what they say.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.errors import OptionError
from anabranch.ir.graph import Graph
from anabranch.ir.plan import Plan
from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task
from anabranch.ir.text import text_graph, text_kernel
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.codegen import program
from anabranch.kernels.triton.limits import upper_limit
from anabranch.report.lines import cut, printable, wrapped
from anabranch.report.task_rows import is_chosen, kind_of, ops_text, reads, runs, writes
from anabranch.report.units import count, duration, size
from anabranch.trace import Event
from anabranch.tuning.decisions import Candidate
from anabranch.tuning.why_lost import why_lost

NAMED = 19
"""Characters of a task's name in the list of the slowest, whose cut names mean the task too."""
ROOMS = ("fusion", "horizontal_fusion", "pdl", "l1_carveout", "merge", "retarget")
"""Whose events tell why the task is what it is."""
MOST_EVENTS = 24
WARP = 32
GONE = "not in the file, which holds the plan alone; compile the model again to see them"
REPLACED = "chosen alone; the plan was given another kernel afterwards"


def task_named(plan: Plan, name: str) -> Task:
    """The task of this name, as lists show it. OptionError with near names for any other."""
    tasks = plan.tasks.tasks
    name = str(name)  # of what is no text there is no task, either
    matches = [task for task in tasks if task.name == name]
    matches = matches or [task for task in tasks if cut(task.name, NAMED) == name]
    if len(matches) == 1:
        return matches[0]
    near = [task.name for task in matches]
    near = near or difflib.get_close_matches(name, [task.name for task in tasks], 5, 0.5)
    examples = ", ".join(task.name for task in tasks[:5])
    raise OptionError(
        f"there is no task {name!r}" if not matches else f"{name!r} means several tasks",
        f"the plan has {count(len(tasks), 'task')}",
        f"did you mean {' or '.join(near)}?"
        if near
        else f"explain lists them, for example {examples}",
    )


def kernel_facts(
    plan: Plan,
    name: str,
    candidates: Mapping[str, Sequence[Candidate]] | None,
    events: Sequence[Event] = (),
) -> dict[str, Any]:
    """What is known of the task of this name. `candidates`: by task name, None where the history of
    the plan is not there."""
    task = task_named(plan, name)
    tried = None if candidates is None else candidates.get(task.name, ())
    launches = plan.schedule.launches
    at = next(i for i, launch in enumerate(launches) if launch.task == task.name)
    cost = next((c.verdict.cost for c in tried or () if is_chosen(task, c)), None)
    spec = plan.spec
    return {
        "task": task.name,
        "device": f"{spec.name}, simulated" if spec.simulated else spec.name,
        "kind": kind_of(task.body),
        "ops": ops_text(node.op for node in task.body.nodes),
        "us": cost.us if cost else None,
        "source": cost.source if cost else None,
        "launch": at + 1,
        "launches": len(launches),
        "stream": launches[at].stream,
        "waits": list(launches[at].waits),
        "origins": list(dict.fromkeys(n.origin for n in task.body.nodes if n.origin)),
        "reads": reads(task),
        "writes": writes(task),
        "body": text_graph(task.body),
        "kernel": _kernel(task, spec),
        "candidates": None if tried is None else [_candidate(c, task, tried, spec) for c in tried],
        "decided": _decided(task, events),
    }


def limit_facts(body: Graph, kernel: Kernel, spec: TargetSpec) -> dict[str, Any] | None:
    """The performance upper limit of a kernel with its terms, None where its template has none."""
    variant = kernel.variant
    bound = upper_limit(body, variant, spec) if isinstance(variant, Variant) else None
    if bound is None:
        return None
    terms = {name: getattr(bound, name) for name in ("memory", "shared", "tail", "fits")}
    us = bound.us if math.isfinite(bound.us) else None
    return {"part_of_peak": bound.limit, **terms, "us": us, "text": bound.text}


def _kernel(task: Task, spec: TargetSpec) -> dict[str, Any] | None:
    kernel = task.kernel
    if kernel is None:
        return None
    ctas, threads = _launch(task, kernel)
    resources = kernel.resources
    return {
        "name": text_kernel(kernel),
        "launches": kernel.launches,
        "ctas": ctas,
        "threads": threads,
        "registers": resources.registers if resources else None,
        "shared_bytes": resources.shared if resources else None,
        "resources_estimated": resources.estimated if resources else None,
        "workspace_bytes": kernel.workspace,
        "temporary_bytes": kernel.temporary,
        "writes_out": kernel.writes_out,
        "limit": limit_facts(task.body, kernel, spec),
        "runs": runs(task),
        "text": kernel.source,
    }


def _launch(task: Task, kernel: Kernel) -> tuple[int | None, int | None]:
    """CTAs and threads of each: as a run has told, or as the text of a generated kernel says."""
    if kernel.resources is not None:
        return kernel.resources.ctas, kernel.resources.threads
    if not isinstance(kernel.variant, Variant):
        return None, None
    try:
        written = program(task.body, kernel.variant)
    except ValueError:  # of a file that another version wrote
        return None, None
    return written.ctas, written.warps * WARP


def _candidate(
    candidate: Candidate, task: Task, tried: Sequence[Candidate], spec: TargetSpec
) -> dict[str, Any]:
    cost, refused = candidate.verdict.cost, candidate.verdict.refused
    return {
        "kernel": text_kernel(candidate.kernel),
        "us": cost.us if cost else None,
        "spread_us": cost.spread if cost else None,
        "source": cost.source if cost else None,
        "chosen": is_chosen(task, candidate),
        "refused": bool(refused) or cost is None,
        "why_not": str(why_not(task, candidate, tried) or ""),
        "limit": limit_facts(task.body, candidate.kernel, spec),
    }


def why_not(task: Task, candidate: Candidate, tried: Sequence[Candidate]) -> Refused | None:
    """Why the plan does not run the task by this candidate; None if it does."""
    if is_chosen(task, candidate):
        return None
    return Refused(REPLACED) if candidate.verdict.chosen else why_lost(candidate, tried)


def _decided(task: Task, events: Sequence[Event]) -> list[dict[str, str]]:
    """The events of the task and the nodes in it, each once."""
    names = {task.name, *(node.name for node in task.body.nodes)}
    said = dict.fromkeys(
        (event.kind, event.where, event.what, event.why)
        for event in events
        if event.where in ROOMS
        and event.kind in ("applied", "refused", "chosen")
        and names.intersection(word.lstrip("%") for word in re.split(r"[\s,+]+", event.what))
    )
    return [dict(zip(("kind", "where", "what", "why"), values, strict=True)) for values in said]


def kernel_text(facts: Mapping[str, Any]) -> str:
    """The facts as text, in lines of 100 columns but for graphs and source, which stay whole."""
    sections = (
        _head(facts),
        ["Computes", *map(printable, facts["body"].splitlines())],
        _kernel_lines(facts),
        _candidate_lines(facts["candidates"]),
        _decided_lines(facts["decided"]),
        _source_lines(facts["kernel"]),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def _head(facts: Mapping[str, Any]) -> list[str]:
    time = f"{duration(facts['us'])} {facts['source']}, " if facts["us"] is not None else ""
    where = f"launch {facts['launch']} of {facts['launches']} on stream {facts['stream']}"
    waits = f" after {', '.join(facts['waits'])}" if facts["waits"] else ""
    first = f"{facts['task']} on {facts['device']}: {facts['ops']}"
    origins = facts["origins"] or ["no line of the model is known for it"]
    lines = [*wrapped(first, "", "  "), *wrapped(f"{time}{where}{waits}")]
    return lines + [line for origin in origins for line in wrapped(origin)]


def _kernel_lines(facts: Mapping[str, Any]) -> list[str]:
    kernel = facts["kernel"]
    if kernel is None:
        return ["Kernel: none"]
    parts = [count(kernel["launches"], "launch")]
    if kernel["ctas"] is not None:
        parts[0] += f" of {count(kernel['ctas'], 'CTA')} x {count(kernel['threads'], 'thread')}"
    if kernel["registers"] is not None:
        parts.append(f"{count(kernel['registers'], 'register')} a thread")
        guess = ", both estimated" if kernel["resources_estimated"] else ""
        parts.append(f"{size(kernel['shared_bytes'])} of shared memory a CTA{guess}")
    else:
        parts.append("registers and shared memory are known where it has run")
    if kernel["workspace_bytes"]:
        parts.append(f"workspace of {size(kernel['workspace_bytes'])}")
    if kernel["temporary_bytes"]:
        parts.append(f"{size(kernel['temporary_bytes'])} of its own while it runs")
    parts.append("writes where the plan says" if kernel["writes_out"] else "allocates its result")
    lines = [f"Kernel: {kernel['name']}", *wrapped("; ".join(parts))]
    lines += wrapped(kernel["limit"]["text"]) if kernel["limit"] else []
    if kernel["runs"]:
        lines += ["  runs", *(f"    {printable(line)}" for line in kernel["runs"].splitlines())]
    return lines


def _candidate_lines(tried: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if tried is None:
        return [f"Candidates: {GONE}"]
    if not tried:
        return ["Candidates: none, its kernel was not chosen among several"]
    timed = sum(candidate["us"] is not None for candidate in tried)
    lines = [f"Candidates: {len(tried)}, {timed} with a time (* chosen)"]
    last = float("inf")
    for candidate in sorted(tried, key=lambda row: (not row["chosen"], row["us"] or last)):
        mark = "*" if candidate["chosen"] else " "
        time = (
            f"{duration(candidate['us'])} {candidate['source']}"
            if candidate["us"] is not None
            else "no time"
        )
        lines += wrapped(f"{time:<18}  {candidate['kernel']}", f"  {mark} ", " " * 8)
        said = [f"{'refused' if candidate['refused'] else 'lost'}: {candidate['why_not']}"] * bool(
            candidate["why_not"]
        )
        said += [candidate["limit"]["text"]] if candidate["limit"] else []
        lines += [line for each in said for line in wrapped(each, " " * 8, " " * 10)]
    return lines


def _decided_lines(decided: Sequence[Mapping[str, str]]) -> list[str]:
    if not decided:
        return []
    lines = ["Decided of it and its nodes"]
    for event in decided[:MOST_EVENTS]:
        lines += wrapped(f"{event['where']}, {event['kind']}: {event['what']}: {event['why']}")
    rest = len(decided) - MOST_EVENTS
    return [*lines, f"  and {rest} more"] if rest > 0 else lines


def _source_lines(kernel: Mapping[str, Any] | None) -> list[str]:
    if kernel is None:
        return []
    if not kernel["text"]:
        return ["Source: none, the kernel is the library's"]
    return ["Source", *map(printable, kernel["text"].splitlines())]

"""When tasks and kernels run, as CUPTI sees it through torch.profiler.

    timeline       tasks, issued outside the graph, each inside a named range
    kernel_spans   kernels of one replay of the graph, with what each takes of the machine

A kernel belongs to the range that holds its launch. Those of a replay have one launch for all of
them, and are known again by name, grid and block: the first of a sort is that of the first task
that launched one outside the graph. Times of single kernels come from here, latencies never do:
profiling perturbs. And CUPTI stays attached (pytorch #144455), by which launches take up to 20
times as long, so nothing is profiled that nobody asked to see.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from anabranch.costs.work import computes
from anabranch.ir.protocols import KernelSpan
from anabranch.ir.schedule import Span, Timeline
from anabranch.ir.task import Resources
from anabranch.targets.cuda.capture import CudaExecutable

PREFIX = "anabranch::"
ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")
IN_A_REPLAY = "CUPTI's activity records of one replay of the graph"
REPLAYS = 3
"""Looked at under the profiler."""


def timeline(run: CudaExecutable) -> Timeline:
    """When each task ran in one ungraphed multi-stream run. Gaps between tasks are the host's,
    wider than in the graph; the order and the overlaps are the schedule's."""
    kernels = _outside(run)
    start = min((e["ts"] for events in kernels.values() for e in events), default=0.0)
    spans = []
    for launch in run.plan.schedule.launches:
        events = kernels.get(launch.task, [])
        if events:
            begin = min(e["ts"] for e in events) - start
            end = max(e["ts"] + e["dur"] for e in events) - start
            spans.append(Span(launch.task, launch.stream, begin, end))
    return Timeline(tuple(spans), max((s.end for s in spans), default=0.0), "measured")


def kernel_spans(run: CudaExecutable) -> tuple[str, tuple[KernelSpan, ...]]:
    """How kernels were seen, and those of one replay: of a few, the one of which most are seen.
    None where it is less than half of what runs outside the graph: of some graphs CUPTI shows
    little (of Inception-v3's in fp32 on an H100, where it shows all of SqueezeNet's)."""
    by_task = _outside(run)
    run.replay()
    torch.cuda.synchronize()
    replays: dict[Hashable, list[dict[str, Any]]] = {}
    for event in _trace(lambda: _several(run)):
        if event.get("cat") in ACTIVITIES:
            replays.setdefault(event["args"].get("correlation"), []).append(event)
    seen = max(reversed(replays.values()), key=len, default=[])
    all_of_them = sum(map(len, by_task.values()))
    if len(seen) * 2 < all_of_them:
        return f"CUPTI shows {len(seen)} of {all_of_them} kernels of a replay", ()
    left: dict[Hashable, deque[str]] = {}
    for task, events in by_task.items():
        for event in events:
            left.setdefault(_sort(event), deque()).append(task)
    seen.sort(key=lambda e: float(e["ts"]))
    matched = [(e, q.popleft() if (q := left.get(_sort(e))) else "") for e in seen]
    return IN_A_REPLAY, _spans(matched, run)


def _several(run: CudaExecutable) -> None:
    for _ in range(REPLAYS):
        run.replay()
        torch.cuda.synchronize()


def _outside(run: CudaExecutable) -> dict[str, list[dict[str, Any]]]:
    """By task, in the order of launches, what ran for it outside the graph."""

    def marked(name: str, call: Callable[[], None]) -> None:
        with record_function(PREFIX + name):
            call()

    run.launch_all()
    torch.cuda.synchronize()
    return _kernels_by_task(_trace(lambda: run.launch_all(marked)))


def _spans(
    events: Sequence[tuple[dict[str, Any], str]], run: CudaExecutable
) -> tuple[KernelSpan, ...]:
    """Of events with the tasks that they belong to; replays of a plan that is repeated are one
    after another."""
    tasks = {task.name: task for task in run.plan.tasks.tasks}
    begin = min((float(e["ts"]) for e, _ in events), default=0.0)
    spans = []
    for event, name in events:
        start = float(event["ts"]) - begin
        kind = computes(tasks[name]) if name in tasks else None
        spans.append(KernelSpan(name, start, start + float(event["dur"]), _taken(event), kind))
    return tuple(sorted(spans, key=lambda span: span.start))


def _sort(event: dict[str, Any]) -> Hashable:
    """What kernels of one sort have in common."""
    args = event["args"]
    return event["name"], tuple(args.get("grid", ())), tuple(args.get("block", ()))


def _taken(event: dict[str, Any]) -> Resources | None:
    args = event["args"]
    if "grid" not in args or "block" not in args:
        return None
    return Resources(
        ctas=math.prod(args["grid"]),
        threads=math.prod(args["block"]),
        registers=int(args.get("registers per thread", 0)),
        shared=int(args.get("shared memory", 0)),
    )


def _trace(run: Callable[[], None]) -> list[dict[str, Any]]:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as prof:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        prof.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


def _kernels_by_task(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Kernels, copies and fills by the task whose host range holds the call that launched them."""
    ranges = [
        (e["ts"], e["ts"] + e["dur"], e["name"].removeprefix(PREFIX))
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith(PREFIX)
    ]
    launched: dict[int, float] = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    table: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") not in ACTIVITIES:
            continue
        at = launched.get(event["args"].get("correlation", -1))
        for start, end, name in ranges:
            if at is not None and start <= at <= end:
                table.setdefault(name, []).append(event)
                break
    return table

"""When tasks run, as CUPTI sees it through torch.profiler.

Tasks are issued outside the graph, each inside a named range; a kernel belongs to the range that
holds its start. Times of single kernels come from here, latencies never do: profiling perturbs. And
CUPTI stays attached (pytorch #144455), by which launches take up to 20 times as long, so nothing is
profiled that nobody asked to see.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from anabranch.ir.schedule import Span, Timeline
from anabranch.targets.cuda.capture import CudaExecutable

PREFIX = "anabranch::"


def timeline(run: CudaExecutable) -> Timeline:
    """When each task ran in one ungraphed multi-stream run. Gaps between tasks are the host's,
    wider than in the graph; the order and the overlaps are the schedule's."""

    def marked(name: str, call: Callable[[], None]) -> None:
        with record_function(PREFIX + name):
            call()

    run.launch_all()
    torch.cuda.synchronize()
    kernels = _kernels_by_task(_trace(lambda: run.launch_all(marked)))
    start = min((e["ts"] for events in kernels.values() for e in events), default=0.0)
    spans = []
    for launch in run.plan.schedule.launches:
        events = kernels.get(launch.task, [])
        if events:
            begin = min(e["ts"] for e in events) - start
            end = max(e["ts"] + e["dur"] for e in events) - start
            spans.append(Span(launch.task, launch.stream, begin, end))
    return Timeline(tuple(spans), max((s.end for s in spans), default=0.0), "measured")


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
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        at = launched.get(event["args"].get("correlation", -1))
        for start, end, name in ranges:
            if at is not None and start <= at <= end:
                table.setdefault(name, []).append(event)
                break
    return table

"""Facts: what is known of a compilation, ready for JSON, for the command line and reports.

| key | meaning |
|---|---|
| compiled_at, made_with | when, in UTC; versions of Python, torch and Anabranch in that process |
| versions | of what the target runs with: a recorded machine's own, where it is simulated |
| latency_ms, latency_source | of the chosen plan: measured, recorded or estimated |
| forecast | of a simulated GPU: low_ms and high_ms, between which eight of ten should lie; |
| forecast | recorded, the part of tasks' time that was; dominant: what it is uncertain by, |
| forecast | each a task, how many are alike, us, source and part of the variance of kernels |
| baselines | in ms: sequential (the plan on one stream), eager (calls of the model), |
| baselines | and, on a GPU, eager_graph (the model in one CUDA graph) |
| as_captured | the plan is the eager model, operator by operator, because that is faster |
| schedules | every candidate, before kernels overlap: name, latency_ms, source, streams, waits |
| kernels | launches of the plan; tasks: how many of them |
| modes | generated kernels of the plan by how they overlap the one before ("none": not at all) |
| carveout | percent of a multiprocessor's L1 that its kernels want as shared memory; None: no GPU |
| cut_short | why searching ended before it was done: "", budget, stop |
| stages_s | seconds of the compilation by stage, and of parts of stages ("search.build") |
| peak_bytes, peak_bytes_sequential | intermediate values of this plan and of the sequential one |
| states | what calls read and write, in the model's words, with types |
| weights_bytes | constants that the plan owns: copies, apart from the model's own weights |
| max_relative_error | per output, against a higher-precision reference |
| search | each round of the search that paid: rules, us without and with them, steps |
| search: steps | rule, nodes, change of the price, alpha of that, us of the part they stand in |

`anabranch compile` adds its `command`, and with --rivals what `bench/rival_timing` finds: called_ms
and called_beside, which rivals were timed as our calls were, and not_measured, why others were not.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from anabranch.artifact.owned_constants import owned_bytes
from anabranch.compiler.compilation import Compilation
from anabranch.costs.forecast_interval import interval_of
from anabranch.costs.recorded import Recorded
from anabranch.costs.source import costs_of
from anabranch.deadline import TIME
from anabranch.frontend.observe import own_inputs, unchanged
from anabranch.ir.protocols import Cost
from anabranch.ir.schedule import Schedule
from anabranch.ir.task import TaskGraph
from anabranch.ir.types import DTYPE_NAMES, TensorType
from anabranch.ir.variant import Variant
from anabranch.kernels.triton.l1_carveout import carveout_of
from anabranch.rewrite.rules import ALL, PUBLISHED
from anabranch.search.engine.backtracking import RewriteStep
from anabranch.search.result import rules_of
from anabranch.targets.places import kept, repeatable
from anabranch.trace import stage_seconds
from anabranch.tuning.job import Job
from anabranch.tuning.launch.pdl import generated

NAMED = frozenset(rule.name for rule in (*ALL, *PUBLISHED) if rule.special)
"""Rules that change what NaN, an infinity or the sign of a zero gives."""


def facts_of(
    job: Job, compilation: Compilation, moment: datetime, eager: bool = True
) -> dict[str, Any]:
    """The facts of one compilation, which ended at that moment; times the model itself where it can
    run, if `eager`."""
    tasks, plan, cost = compilation.plan.tasks, compilation.plan, compilation.cost
    run = compilation.run
    return {
        "model": tasks.name,
        "target": job.target.spec.kind if run is not None else f"simulated {job.target.spec.kind}",
        "device": job.target.spec.name,
        "dtype": _dtype(job, compilation),
        "inputs": [f"{value.name}: {value.type.text}" for value in tasks.call_inputs],
        "states": [f"{path}: {type.text}" for path, type in _states(tasks)],
        "latency_ms": cost.us / 1e3,
        "latency_spread_ms": cost.spread / 1e3,
        "latency_source": cost.source,
        "forecast": _forecast(job, compilation),
        "baselines": _baselines(job, compilation, eager),
        "as_captured": compilation.as_captured,
        "scheduler": plan.schedule.scheduler,
        "schedules": [
            _schedule(schedule, cost) for schedule, cost in compilation.compiled.schedules
        ],
        "tasks": len(tasks.tasks),
        "kernels": sum(task.kernel.launches for task in tasks.tasks if task.kernel),
        "modes": _modes(tasks),
        "carveout": carveout_of(tasks) if job.target.spec.kind == "cuda" else None,
        "streams": plan.schedule.streams,
        "event_waits": plan.schedule.waits,
        "peak_bytes": run.peak_bytes() if run is not None else plan.peak_bytes,
        "arena_bytes": plan.arena_bytes,
        "peak_bytes_planned": plan.peak_bytes,
        "peak_bytes_sequential": compilation.compiled.sequential.peak_bytes,
        "weights_bytes": owned_bytes(plan),
        "search_s": compilation.seconds,
        "search": _searched(compilation),
        "cut_short": compilation.compiled.cut_short,
        "stages_s": stage_seconds(job.trace.events),
        "max_relative_error": [error for error, _ in compilation.errors],
        "allowed_relative_error": [allowed for _, allowed in compilation.errors],
        "compiled_at": moment.astimezone(UTC).isoformat(timespec="seconds"),
        "made_with": _versions(),
        "versions": dict(job.target.spec.versions),
        "options": job.options.model_dump(
            mode="json", exclude_defaults=True, exclude={"fullgraph", "workers"}
        ),
    }


def _forecast(job: Job, compilation: Compilation) -> dict[str, Any] | None:
    """What a forecast rests on, None for what was measured."""
    if compilation.run is not None or not job.target.spec.simulated:
        return None
    costs = costs_of(job.target, lambda tasks, schedule: compilation.plan)
    if not isinstance(costs, Recorded):
        return None
    forecast_interval = interval_of(compilation.cost.us, compilation.plan.tasks, costs)
    return {
        "low_ms": forecast_interval.low / 1e3,
        "high_ms": forecast_interval.high / 1e3,
        "recorded": forecast_interval.recorded,
        "dominant": [asdict(kernel) for kernel in forecast_interval.dominant],
    }


def _states(tasks: TaskGraph) -> Iterator[tuple[str, TensorType]]:
    types = {value.name: value.type for value in tasks.inputs}
    return ((state.path, types[state.name]) for state in tasks.states)


def _versions() -> dict[str, str]:
    """Of Python, and of those of these packages that are installed and not only lie there."""
    version_of = {"python": platform.python_version()}
    for name in ("anabranch", "torch", "triton"):
        with suppress(PackageNotFoundError):
            version_of[name] = version(name)
    return version_of


def _modes(tasks: TaskGraph) -> dict[str, int]:
    kernels = [task.kernel for task in tasks.tasks if generated(task)]
    variants = [kernel.variant for kernel in kernels if kernel]
    modes = (variant.pdl for variant in variants if isinstance(variant, Variant))
    return dict(Counter(str(mode or "none") for mode in modes))


def _dtype(job: Job, compilation: Compilation) -> str:
    """The floating-point type of the weights, "tf32" where fp32 contractions may use it."""
    held = [c.type for c in compilation.captured.graph.constants if c.type.dtype.is_floating_point]
    held += [value.type for value in compilation.captured.graph.inputs]
    dtype = held[0].dtype if held else torch.float32
    return "tf32" if job.options.tf32 and dtype == torch.float32 else DTYPE_NAMES[dtype]


def _searched(compilation: Compilation) -> list[dict[str, Any]]:
    path = compilation.path
    rounds = path.rounds if path is not None else ()
    sizes = {"measured_at": path.beside[0]} if path is not None and path.beside else {}
    return [
        {
            **sizes,
            "rules": rules_of(r.steps),
            "us_before": r.before.us,
            "us_after": r.after.us,
            "steps": list(map(_step, r.steps)),
        }
        for r in rounds
    ]


def _step(step: RewriteStep) -> dict[str, Any]:
    """`price`: what it was predicted to change, under what weight of the path; `part`: what the
    part that it stands in took, with how many steps in it."""
    told: dict[str, Any] = {"rule": step.rule, "nodes": list(step.nodes)}
    told |= {"special": True} if step.rule in NAMED else {}
    told |= {"price": step.after.us - step.before.us, "alpha": step.before.alpha}
    if step.ran is not None:
        ran = step.ran
        told["part"] = {"us_before": ran.before.us, "us_after": ran.after.us, "steps": ran.steps}
    return told


def _baselines(job: Job, compilation: Compilation, asked: bool) -> dict[str, float]:
    # A scheduler that was named may have found one stream itself: then that is the sequential plan.
    schedules = compilation.compiled.schedules
    plain = [cost for schedule, cost in schedules if schedule.scheduler == "sequential"]
    plain = plain or [cost for schedule, cost in schedules if schedule.streams == 1]
    baselines = {"sequential": plain[0].us / 1e3} if plain else {}
    if compilation.model is not None and job.target.spec.kind == "cuda":
        baselines["eager_graph"] = compilation.model.us / 1e3
    held = [state.value for state in compilation.plan.tasks.states if state.value is not None]
    asked = asked and repeatable(compilation.plan.tasks)
    if asked and compilation.run is not None and callable(job.model):
        args, kwargs = own_inputs(job.args, job.kwargs)

        def eager() -> None:
            with torch.set_grad_enabled(compilation.captured.takes_gradients):
                job.model(*args, **kwargs)

        with (
            unchanged(job.model, args, kwargs),
            job.surroundings.restored(),
            job.target.own_precision(),  # fp32 products as the plan has them
            kept(held),
        ):
            baselines["eager"] = job.target.time_call(eager, TIME.eager_report_s).us / 1e3
    return baselines


def _schedule(schedule: Schedule, cost: Cost) -> dict[str, Any]:
    return {
        "name": schedule.scheduler,
        "latency_ms": cost.us / 1e3,
        "spread_ms": cost.spread / 1e3,
        "source": cost.source,
        "streams": schedule.streams,
        "waits": schedule.waits,
    }

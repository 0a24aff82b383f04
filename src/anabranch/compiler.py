"""The pipeline: from a model to a loaded plan, one line per stage, in order.

    capture -> rewrite -> fuse -> kernels -> probe -> schedule -> pack -> load -> verify

This is the only file that knows the order. `stop_after` takes any stage's name and returns its
noun. Every stage is timed; what it applied, chose and refused are events of the trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from anabranch.cache import Cache
from anabranch.costs import costs_of
from anabranch.errors import NumericsError, OptionError, TargetError
from anabranch.frontend.captured import Captured
from anabranch.frontend.fingerprint import fingerprint
from anabranch.frontend.from_torch import capture
from anabranch.frontend.recall import recall, remember
from anabranch.frontend.structure import flatten_call
from anabranch.fuse import partition
from anabranch.ir import numbers
from anabranch.ir.dag import dag_of
from anabranch.ir.eval import eval_graph
from anabranch.ir.graph import Graph
from anabranch.ir.key import task_text
from anabranch.ir.plan import Leaf, Plan, Signature, text_plan
from anabranch.ir.protocols import Cost, Costs, Executable, Limits, Target
from anabranch.ir.schedule import Schedule, Timeline, sequential_launches, text_schedule
from anabranch.ir.step import Stepper, random_tensor
from anabranch.ir.task import Task, TaskGraph
from anabranch.ir.text import text_graph, text_tasks
from anabranch.ir.types import type_of
from anabranch.kernels import PROVIDERS, select
from anabranch.kernels.select import Selection
from anabranch.options import Options
from anabranch.pack import pack
from anabranch.pack.recall import pack_or_recall
from anabranch.rewrite import simplify
from anabranch.schedule import BEST
from anabranch.schedule.best import Choice
from anabranch.schedule.recall import best_or_recall
from anabranch.trace import Trace

STAGES = ("capture", "rewrite", "fuse", "kernels", "probe", "schedule", "pack", "load", "verify")
MEMORY_LIMIT = 1.25
"""A parallel plan may take this much of the sequential plan's arena; waits are added to keep it."""
EAGER_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 2e-2,
    torch.float16: 5e-2,
    torch.bfloat16: 2e-1,
}
"""A wrong capture is off by far more; rounding in a deep network, tf32 included, by less."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be compiled, for what, and where to look things up and say what happened."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    options: Options
    cache: Cache | None
    trace: Trace
    captured: Captured | None = None


@dataclass(frozen=True, slots=True)
class Compilation:
    """What each stage made. `errors`: per output the error against the higher-precision reference
    and the error allowed; empty where nothing could run. `run` is None on a simulated target."""

    captured: Captured
    graph: Graph
    selection: Selection
    candidates: tuple[tuple[Schedule, Cost], ...]
    timeline: Timeline | None
    sequential: Plan
    plan: Plan
    run: Executable | None
    errors: tuple[tuple[float, float], ...]
    seconds: float = field(compare=False, default=0.0)

    @property
    def cost(self) -> Cost:
        """The latency of the plan's schedule."""
        name = self.plan.schedule.scheduler
        return next(cost for schedule, cost in self.candidates if schedule.scheduler == name)


def compile_model(job: Job, stop_after: str | None = None) -> Any:
    """The Compilation, or the noun of the stage to stop after."""
    if stop_after is not None and stop_after not in STAGES:
        raise OptionError(
            f"unknown stage {stop_after!r}", "no stage has this name", f"one of {', '.join(STAGES)}"
        )
    for number, (stage, noun) in enumerate(_stages(job)):
        if job.options.dump is not None:
            _dump(job.options.dump, f"{number:02}_{stage}.txt", noun)
        if stage == stop_after:
            return noun
    return noun


def _stages(job: Job) -> Iterator[tuple[str, Any]]:
    start, trace, options, target = time.perf_counter(), job.trace, job.options, job.target
    spec = target.spec
    with trace.stage("capture"):
        captured = job.captured or _capture(job)
    yield "capture", captured
    with trace.stage("rewrite"):
        stepper = Stepper(trace, options.check, options.fuel, options.dump)
        graph = simplify(captured.graph, stepper, options, spec.kind)
        signature = _renamed(captured, graph)
    yield "rewrite", graph
    with trace.stage("fuse"):
        tasks = partition(graph, trace, spec)
    yield "fuse", tasks
    costs = costs_of(target, partial(pack, spec=spec), job.cache, trace, options.budget)
    with trace.stage("kernels"):
        selection = select(tasks, spec, PROVIDERS, costs.trial, _checker(job), trace)
    yield "kernels", selection
    with trace.stage("probe"):
        tasks = _with_probes(selection.tasks, costs)
        selection = replace(selection, tasks=tasks)
    yield "probe", tasks
    plain = Schedule("sequential", sequential_launches(dag_of(tasks)))
    sequential = pack_or_recall(tasks, plain, spec, signature, Trace(), None, job.cache)
    limit = int(MEMORY_LIMIT * sequential.arena_bytes)
    costs = costs_of(
        target, partial(pack, spec=spec, limit_bytes=limit), job.cache, trace, options.budget
    )
    with trace.stage("schedule"):
        limits = _limits(job, start)
        choice = best_or_recall(tasks, costs, _schedulers(options), limits, job.cache)
    yield "schedule", choice
    with trace.stage("pack"):
        plan = pack_or_recall(tasks, choice.schedule, spec, signature, trace, limit, job.cache)
    yield "pack", plan
    with trace.stage("load"):
        target.prepare([task.kernel for task in plan.tasks.tasks if task.kernel], job.cache)
        run = None if spec.simulated else target.load(plan)
    yield "load", run
    with trace.stage("verify"):
        errors = _verified(job, captured, run) if run is not None and options.verify else ()
    seconds = time.perf_counter() - start
    yield (
        "verify",
        Compilation(
            captured,
            graph,
            selection,
            choice.candidates,
            costs.timeline(tasks, plan.schedule),
            sequential,
            plan,
            run,
            errors,
            seconds,
        ),
    )


def _dump(folder: Path, name: str, noun: Any) -> None:
    """Write the text form of a stage's noun, where it has one."""
    match noun:
        case Captured():
            text = text_graph(noun.graph)
        case Graph():
            text = text_graph(noun)
        case Selection():
            text = text_tasks(noun.tasks)
        case TaskGraph():
            text = text_tasks(noun)
        case Choice():
            text = "\n".join(
                f"{cost.us:.2f} us {cost.source}\n{text_schedule(schedule)}"
                for schedule, cost in noun.candidates
            )
        case Plan():
            text = text_plan(noun)
        case _:
            return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def _capture(job: Job) -> Captured:
    """From the cache where the model is known there, else by export."""
    if not isinstance(job.model, nn.Module) or job.cache is None:
        return capture(job.model, job.args, job.kwargs, job.trace)
    name = fingerprint(job.model, job.args, job.kwargs)
    if name is None:
        return capture(job.model, job.args, job.kwargs, job.trace)
    found = recall(job.cache, name, job.model)
    if found is not None:
        job.trace.add("applied", "capture", found.graph.name, "recalled from the cache")
        return found
    captured = capture(job.model, job.args, job.kwargs, job.trace)
    remember(job.cache, name, captured)
    return captured


def _renamed(captured: Captured, graph: Graph) -> Signature:
    """The signature with results named as the rewritten graph names them; what the model returns
    of its inputs stays the input."""
    pairs = zip(captured.graph.outputs, graph.outputs, strict=True)
    names = {old.name: new for old, new in pairs}
    for value in captured.graph.inputs:
        names.pop(value.name, None)
    was = captured.signature
    outputs = (
        leaf if leaf.ref is None else Leaf(names.get(leaf.ref.name, leaf.ref))
        for leaf in was.outputs
    )
    mutations = ((name, names.get(ref.name, ref)) for name, ref in was.mutations)
    return replace(was, outputs=tuple(outputs), mutations=tuple(mutations))


def _schedulers(options: Options) -> Sequence[str]:
    return BEST if options.scheduler == "best" else (options.scheduler,)


def _limits(job: Job, start: float) -> Limits:
    options = job.options
    left = None
    if options.budget is not None:
        left = max(1.0, options.budget - (time.perf_counter() - start))
    return Limits(
        max_streams=options.max_streams,
        max_group_size=options.max_group_size,
        max_groups=options.max_groups,
        deadline=left,
        spec=job.target.spec,
        trace=job.trace,
    )


def _with_probes(tasks: TaskGraph, costs: Costs) -> TaskGraph:
    """The tasks with what a run told of their kernels: resources, workspaces, launches."""
    probes = costs.probe(tasks)
    probed = []
    for task in tasks.tasks:
        probe = probes.get(task.name)
        if probe is not None and task.kernel is not None:
            kernel = replace(
                task.kernel,
                workspace=probe.workspace,
                temporary=probe.temporary,
                launches=probe.launches or task.kernel.launches,
                resources=probe.resources,
            )
            task = replace(task, kernel=kernel)
        probed.append(task)
    return replace(tasks, tasks=tuple(probed))


def _checker(job: Job) -> Callable[[Task], str]:
    """Compares a task's kernel with its body on fresh random inputs; "" or what differs. What
    passed once on this machine is not run again: the whole plan always is."""
    target, spec, cache = job.target, job.target.spec, job.cache

    def check(task: Task) -> str:
        if spec.simulated:
            return ""
        key = f"check 1\n{spec.fingerprint}\n{task_text(task)}"
        if cache is not None and cache.get("kernels", key) == "passed":
            return ""
        verdict = compared(task)
        if cache is not None and not verdict:
            cache.put("kernels", key, "passed")
        return verdict

    def compared(task: Task) -> str:
        single = TaskGraph(
            task.name, task.body.inputs, task.body.constants, (task,), (), task.body.outputs
        )
        plan = pack(single, Schedule("single", sequential_launches(dag_of(single))), spec)
        inputs = [
            random_tensor(value.type, seed=i, device=target.device)
            for i, value in enumerate(single.inputs)
        ]
        try:
            outs = target.load(plan)(inputs)
        except (TargetError, RuntimeError) as failed:
            return f"failed: {str(failed).splitlines()[0]}"
        own, reference = _eager_and_reference(task.body, inputs, target)
        for error, allowed in numbers.compare(outs, own, reference, spec.tf32):
            if not error <= allowed:
                return f"error {error:.2e} where {allowed:.2e} is allowed"
        return ""

    return check


def _eager_and_reference(
    graph: Graph, inputs: Sequence[Tensor], target: Target
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The graph op by op in its own precision, and in a higher one: fp64 for fp32, fp32 for half
    types (whose products are exact there)."""
    dtypes = {value.dtype for value in inputs} | {c.type.dtype for c in graph.constants}
    wide = bool(dtypes & {torch.float32, torch.float64})
    own = eval_graph(graph, inputs, target.device)
    with target.full_precision():
        precision = torch.float64 if wide else torch.float32
        return own, eval_graph(graph, inputs, target.device, precision)


def _verified(job: Job, captured: Captured, run: Executable) -> tuple[tuple[float, float], ...]:
    """Compare the loaded plan with the model on the example inputs and on fresh ones.

    The captured graph in higher precision is the reference; the model itself must be near it, or
    the capture is wrong. NumericsError if the plan is farther from it than its dtype allows.
    """
    graph, target = captured.graph, job.target
    example = flatten_call(
        captured.signature, graph.inputs, job.args, job.kwargs, captured.trees[0]
    )
    example = [tensor.to(target.device) for tensor in example]
    worst: list[tuple[float, float]] = [(0.0, 0.0)] * len(graph.outputs)
    for inputs in (example, _fresh(example, job.options.seed)):
        outs = [out.clone() for out in run(inputs)]
        own, reference = _eager_and_reference(graph, inputs, target)
        pairs = numbers.compare(outs, own, reference, target.spec.tf32)
        worst = [max(old, new) for old, new in zip(worst, pairs, strict=True)]
    for i, (error, allowed) in enumerate(worst):
        if not error <= allowed:
            raise NumericsError(
                f"output {i} has relative error {error:.2e}",
                f"its dtype and the model's own rounding allow {allowed:.2e}",
                "set ANABRANCH_CHECK=2 to find the pass that did it, and report the model",
            )
    _verify_capture(job, example, run)
    return tuple(worst)


def _verify_capture(job: Job, example: Sequence[Tensor], run: Executable) -> None:
    """The model itself, called as the user calls it, against the plan."""
    if not callable(job.model):
        return
    args, kwargs = own_inputs(job)
    with torch.no_grad():
        returned = job.model(*args, **kwargs)
    eager = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, Tensor)]
    outs = {ref.name: out for ref, out in zip(run.plan.tasks.outputs, run(example), strict=True)}
    signature = run.plan.signature
    assert signature is not None
    own = {value.name: t for value, t in zip(run.plan.tasks.inputs, example, strict=True)}
    ours = [{**outs, **own}[leaf.ref.name] for leaf in signature.outputs if leaf.ref is not None]
    for i, (want, out) in enumerate(zip(eager, ours, strict=True)):
        error = numbers.relative_error(out, want.to(out.device))
        if error > EAGER_TOLERANCE.get(out.dtype, 0.0):
            raise NumericsError(
                f"output {i} differs from the model's own by {error:.2e}",
                "the captured graph does not compute what the model computes",
                "report the model; it may depend on state that capture cannot see",
            )


def own_inputs(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The example inputs, copied where the model would write to the user's."""
    given: tuple[tuple[Any, ...], dict[str, Any]] = (job.args, dict(job.kwargs))
    copied = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), given)
    return copied[0], copied[1]


def _fresh(example: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Inputs of the same kind: floats redrawn with the example's mean and deviation."""
    fresh = []
    for i, tensor in enumerate(example):
        if tensor.dtype.is_floating_point and tensor.numel() > 1:
            noise = random_tensor(type_of(tensor), seed + i, tensor.device)
            deviation, mean = torch.std_mean(tensor.float())
            tensor = (noise.float() * deviation + mean).to(tensor.dtype)
        fresh.append(tensor)
    return fresh

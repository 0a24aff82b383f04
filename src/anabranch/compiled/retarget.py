"""A saved plan on another machine than it was made on: another GPU, torch or driver.

    kernels that run the task's body as it is   stay: they are this machine's own operators
    others, compared with their body here       stay where they are right
    the rest                                    are chosen anew, by time, of all that a compilation
                                                would try for the task; in want of time or of any,
                                                the library's, operator by operator

Generated kernels are compiled for the GPU at hand in any case. What runs stays, though another may
be faster here; so do streams, order and which operators share a task: these are found with the
model, which is what compiling again is for. `explain(task)` says of each task that was changed what
it had, why that gave way, and what it has now.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from anabranch.artifact.owned_constants import Shared, owned
from anabranch.cache import Cache
from anabranch.compiled import arguments, saved_sizes
from anabranch.compiled.entry import Entry
from anabranch.costs import costs_of
from anabranch.deadline import TIME, Deadline
from anabranch.errors import TargetError
from anabranch.frontend.attributes import KEY, read_attributes
from anabranch.frontend.held_arguments import without_marks
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import Cost, Executable, Target
from anabranch.ir.refused import Refused
from anabranch.ir.schedule import Schedule
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import Kernel, Task, TaskGraph, runs_body
from anabranch.ir.text import text_kernel
from anabranch.ir.trees import read_tree, unknown_class, unregistered
from anabranch.kernels import PROVIDERS
from anabranch.kernels.triton import program_cache
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.report.lines import cut
from anabranch.targets.places import places_of
from anabranch.trace import Trace
from anabranch.tuning.concat_trials import writing
from anabranch.tuning.tuner import Tuner
from anabranch.tuning.verify.kernel import verify_kernel

COMPILE_AGAIN = "compile the model again to tune for this machine"
LISTED, NAMED = 3, 6
"""Kernels, and versions, that are named in the warning."""
SHOWN, TOLD = 60, 400
"""Characters of a text of the file, and of what is wrong with a kernel, in the warning."""


def loaded(
    plan: Plan,
    target: Target,
    cache: Cache,
    trace: Trace,
    source: str,
    shared: Shared,
    beside: Executable | None,
    held: Mapping[str, Tensor],
    options: Options,
) -> tuple[Plan, Executable | None]:
    """The plan with kernels that are right on this machine, and it loaded, unless the target is
    simulated. `shared`: constants that plans beside it own; `beside`: one of these, whose arena is
    used; `held`: where states lie already, by what the model calls them; `options`: which kernels
    may be tried in the place of others."""
    plan = resettled(plan, target, cache, trace, source, options)
    if target.spec.simulated:
        return plan, None
    plan = owned(plan, (), target.device, shared)
    kernels = [task.kernel for task in plan.tasks.tasks if task.kernel]
    missing = program_cache.recall(cache, kernels)
    target.prepare(kernels, cache, trace)
    places = places_of(plan.tasks, target.device, held, models=False)
    run = target.load(plan, beside=beside, states=places or None)
    program_cache.keep(cache, missing)
    return plan, run


def loaded_entry(
    plan: Plan,
    run: Executable | None,
    facts: Mapping[str, Any],
    device: torch.device | None,
    trace: Trace,
    source: str,
) -> Entry:
    """How calls of a saved plan are read and answered, by its signature and its facts."""
    assert plan.signature is not None, "saved plans have signatures"
    signature = without_marks(plan.signature)
    plan = replace(plan, signature=signature)
    for name in unregistered(signature.output_tree):
        trace.add("warning", "load", source, unknown_class(cut(name, SHOWN)))
    trees = (read_tree(signature.input_tree), read_tree(signature.output_tree, plain=True))
    ranks = [len(value.type.shape) for value in plan.tasks.call_inputs]
    calls, at = saved_sizes.of_facts(facts, ranks, len(signature.outputs))
    return Entry(
        plan,
        run,
        lambda eager=True: dict(facts),
        trees,
        call=arguments.read_back(facts.get(arguments.KEY)),
        device=device,
        sized=calls,
        at=at,
        attributes=read_attributes(facts.get(KEY)),
    )


def resettled(
    plan: Plan,
    target: Target,
    cache: Cache | None,
    trace: Trace,
    source: str,
    options: Options | None = None,
) -> Plan:
    """The plan with kernels that are right on this machine; the same object where it was made on
    one like it. Warns of what differs, and of what gave way. `source`: the plan's file."""
    if plan.spec.fingerprint == target.spec.fingerprint:
        return plan
    why = f"tuned on {differences(plan.spec, target.spec)}"
    if target.spec.simulated:
        trace.add("warning", "load", source, f"{why}; {COMPILE_AGAIN}")
        return plan
    foreign = [task for task in plan.tasks.tasks if task.kernel and not runs_body(task)]
    wrong = {task.name: said for task in foreign if (said := verify_kernel(task, target, cache))}
    if foreign:
        count = "one kernel was" if len(foreign) == 1 else f"{len(foreign)} kernels were"
        why += f"; {count} compared with the operators it stands for"
    if wrong:
        replacements = _chosen_anew(plan, wrong, target, cache, options or Options())
        plan = _with_others(plan, wrong, replacements, target, trace)
        named = [
            f"{cut(name, SHOWN)}: {cut(' '.join(str(said).split()), TOLD)}"
            for name, said in wrong.items()
        ][:LISTED]
        more = f", and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        why += f", {len(wrong)} gave way to others ({'; '.join(named)}{more})"
        timed = sum(cost.source != "estimated" for _, cost in replacements.values())
        why += f", of which {timed} chosen anew by time" if timed else ", which nobody has timed"
    trace.add("warning", "load", source, f"{why}; {COMPILE_AGAIN}")
    return plan


def _chosen_anew(
    plan: Plan, names: Collection[str], target: Target, cache: Cache | None, options: Options
) -> dict[str, tuple[Kernel, Cost]]:
    """The fastest kernel of each of these tasks here, and what it takes; of those that ran in the
    time that there is."""
    until = Deadline.after(TIME.retarget_s)

    def prepare(tasks: TaskGraph, schedule: Schedule) -> Plan:
        return pack(tasks, schedule, target.spec)

    trace = Trace(quiet=True)
    costs = costs_of(target, prepare, cache, trace, until, TIME.kernel_s)
    tasks = [replace(task, kernel=None) for task in plan.tasks.tasks if task.name in names]
    tuner = Tuner(target, options, cache, until)
    try:
        selection = tuner.in_place(tasks, plan.tasks, costs, trace)
    except TargetError:  # none runs: the library's is put in its place, or what is said then
        return {}
    fastest: dict[str, tuple[Kernel, Cost]] = {}
    for task in selection.tasks.tasks:
        won = next(
            candidate for candidate in selection.candidates[task.name] if candidate.verdict.chosen
        )
        if task.kernel is not None and won.verdict.cost is not None:
            fastest[task.name] = task.kernel, won.verdict.cost
    return fastest


def differences(there: TargetSpec, here: TargetSpec) -> str:
    """Names the machine that a plan was made on, and says how this one differs."""
    theirs, ours = dict(there.versions), dict(here.versions)
    differing = [
        f"{cut(name, SHOWN)} {cut(theirs.get(name, 'none'), SHOWN)} (here {ours.get(name, 'none')})"
        for name in dict.fromkeys((*ours, *theirs))
        if theirs.get(name) != ours.get(name)
    ]
    if len(differing) > NAMED:
        differing[NAMED:] = [f"and {len(differing) - NAMED} more versions"]
    name = cut(there.name, SHOWN)
    return ", ".join(
        [name if there.name == here.name else f"{name} (here {here.name})", *differing]
    )


def _with_others(
    plan: Plan,
    wrong: Mapping[str, Refused],
    replacements: Mapping[str, tuple[Kernel, Cost]],
    target: Target,
    trace: Trace,
) -> Plan:
    """The plan with other kernels for these tasks: those that were found, else the library's.
    Packed anew: another kernel may want its results in other memory."""
    tasks = plan.tasks
    providers = writing(tasks.tasks, tasks, {}, PROVIDERS)

    def library(task: Task) -> Kernel:
        for provider in providers:
            for kernel in provider.kernels(task, target.spec):
                return kernel
        raise TargetError(
            f"task {task.name} of plan {tasks.name} has no kernel that runs on this machine",
            "its own was made for another, and the library has none",
            COMPILE_AGAIN,
            task.origin,
        )

    def other(task: Task) -> Task:
        kernel, cost = replacements.get(task.name) or (library(task), None)
        took = f"{cost.us:.2f} us, {cost.source}" if cost is not None else "not timed"
        had = text_kernel(task.kernel) if task.kernel is not None else "none"
        why = cut(" ".join(str(wrong[task.name]).split()), TOLD)
        said = f"{text_kernel(kernel)} ({took}) in place of {cut(had, SHOWN)}, which here {why}"
        trace.add("chosen", "retarget", task.name, said)
        return replace(task, kernel=kernel)

    chosen = tuple(other(task) if task.name in wrong else task for task in tasks.tasks)
    return pack(replace(tasks, tasks=chosen), plan.schedule, target.spec, plan.signature)

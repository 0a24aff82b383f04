"""The zoo on this GPU -> a profile: what every candidate kernel of every task took.

Each network is compiled for the GPU at hand, in one stream and without comparing schedules: kernel
selection measures all candidates of every way to cut it, probing tells what the chosen ones need.
With the profile, the simulated target chooses and schedules as this GPU would, on any machine. The
profile holds the fastest few of the kernels that were generated for a task: the others lose to them
there, too.

    record(("zoo:resnet50",), ("fp16",), (1, 16)) --> Profile(tasks={...}, kernels={...})

Tasks are those of the network as it is, and, if asked, of the equal graph that a search finds here.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from anabranch import api
from anabranch.bench.failing_networks import FailingNetworks
from anabranch.bench.machine import machine
from anabranch.bench.provenance import recorded_provenance
from anabranch.cache import Cache
from anabranch.compiled.calls import Compiled
from anabranch.compiler.compilation import Compilation
from anabranch.costs import costs_of
from anabranch.costs.recorded import (
    KernelFact,
    Profile,
    Timing,
    kernel_key,
    timing_key,
)
from anabranch.deadline import TIME
from anabranch.errors import OptionError
from anabranch.ir.protocols import Cost, Costs, Probe
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Resources, Task
from anabranch.ir.text import text_kernel
from anabranch.kernels import ALL
from anabranch.memory import pack
from anabranch.models.load import load_model
from anabranch.models.zoo import ZOO
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate, whole
from anabranch.tuning.select import Selection
from anabranch.tuning.tuner import Tuner

Save = Callable[[Profile], None]
Tried = tuple[Task, tuple[Candidate, ...]]
FASTEST = 3
"""Of the kernels generated for a task, so many are kept."""


def networks() -> tuple[str, ...]:
    """All networks of the zoo, as `anabranch record` takes them."""
    return tuple(f"zoo:{name}" for name in ZOO)


def record(
    models: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    trace: Trace | None = None,
    into: Profile | None = None,
    target: str = "cuda",
    compile: Callable[..., Any] = api.compile,
    save: Save | None = None,
    searches: Sequence[str] = ("none",),
    borrow_from: str | None = None,
) -> Profile:
    """The profile of these networks, of the graphs that these searches find for them (`none`: as
    they are), added to what `into` holds of the same machine and versions. `borrow_from`: it
    may be of another GPU with the same multiprocessors, and gets what it does not know from this
    one, which must have that name. `save` gets it anew
    after every network. A network that fails is a warning in the trace; AnabranchError of the last
    one if all do, OptionError before anything is measured if `into` may not be added to."""
    trace, here = trace or Trace(), machine(target)
    if into is not None:
        _check_may_add(into, resolve(target).spec, borrow_from)
    cells = [(m, d, b, s) for m in models for d in dtypes for b in batches for s in searches]
    failing, profile = FailingNetworks(trace), into
    for done, (name, dtype, batch, search) in enumerate(cells):
        what = f"{name} {dtype} batch {batch}, search {search}"
        trace.progress("record", done, len(cells), what)
        tf32 = dtype == "tf32"
        options = {"target": target, "tf32": tf32, "search": search, "horizontal_fusion": "none"}
        options["fullgraph"] = True
        if search == "none":  # a search is asked as users ask, so that what it found is recalled
            options["scheduler"] = "sequential"
        model, args = load_model(name, batch, dtype, here.device)
        with failing.told(what):
            compiled = compile(model, args, trace=trace, verify=False, **options)
            compilation = compiled.entries[-1].compilation
            tried, facts = considered(compiled)
            profile = extended(profile, compilation, tried, facts, tf32, borrow_from)
            if save is not None:
                save(profile)
            del compiled, compilation, tried, facts
        del model, args
        here.release()
    trace.progress("record", len(cells), len(cells))
    failing.check(profile is not None)
    assert profile is not None, "no networks"
    return profile


def considered(compiled: Compiled) -> tuple[list[Tried], dict[str, KernelFact]]:
    """Every task of the plan, of every other way to cut its graph, and of the selections that are
    compared as wholes, with its candidates; and by `kernel_key` what those take that are kept."""
    compilation, target = compiled.entries[-1].compilation, compiled.target
    assert compilation is not None
    selections = [compilation.compiled.selection]
    with Cache.open(compiled.options.cache_dir) as cache:
        tuner = Tuner(target, compiled.options, cache)
        prepare = partial(pack, spec=target.spec)
        costs = costs_of(target, prepare, cache, compiled.trace, each=TIME.kernel_s)
        cuts = tuner.cuts(compilation.compiled.graph, Trace())
        selections += tuner.each(cuts, costs)
        wholes = tuner.kernels(cuts, costs, Trace(), wholes=True)
        selections += [way.selection for way in wholes]
        facts = kernel_facts(selections, costs, target.spec)
    tried = [
        (task, selection.candidates[task.name])
        for selection in selections
        for task in selection.tasks.tasks
    ]
    return tried, facts


def kernel_facts(
    selections: Sequence[Selection], costs: Costs, spec: TargetSpec
) -> dict[str, KernelFact]:
    """By `kernel_key` what the kernels take whose times are kept: a kernel of each task in one run,
    then the next of each."""
    facts: dict[str, KernelFact] = {}
    for selection in selections:
        kept = {
            task.name: [
                whole(task, candidate, spec, ALL)
                for candidate, _ in _worth_keeping(selection.candidates[task.name])
            ]
            for task in selection.tasks.tasks
        }
        for turn in range(max(map(len, kept.values()), default=0)):
            asked = {name: own[turn] for name, own in kept.items() if turn < len(own)}
            if all(kernel_key(kernel) in facts for kernel in asked.values()):
                continue
            tasks = tuple(
                replace(task, kernel=asked.get(task.name, task.kernel))
                for task in selection.tasks.tasks
            )
            probes = costs.probe(replace(selection.tasks, tasks=tasks))
            for name in asked.keys() & probes.keys():
                facts[kernel_key(asked[name])] = fact(asked[name], probes[name])
    return facts


def fact(kernel: Kernel, probe: Probe) -> KernelFact:
    """What a profile keeps of a kernel, from what a run told of it."""
    return KernelFact(
        workspace=probe.workspace,
        temporary=probe.temporary,
        launches=probe.launches or kernel.launches,
        resources=told(probe.resources),
    )


def told(resources: Resources | None) -> Resources | None:
    """What a profile keeps of them: what a compiler or a GPU said, and no estimate."""
    return None if resources is None or resources.estimated else resources


def extended(
    profile: Profile | None,
    compilation: Compilation,
    tried: Sequence[Tried],
    facts: Mapping[str, KernelFact],
    tf32: bool,
    borrow_from: str | None = None,
) -> Profile:
    """The profile with what one compilation measured: all of it, or, if it is another machine's,
    what that does not know. OptionError if it may not be added."""
    spec = replace(compilation.plan.spec, tf32=False)
    if profile is None:
        profile = Profile(spec=spec)
    _check_may_add(profile, spec, borrow_from)
    own = profile.spec.fingerprint == spec.fingerprint
    timings, elsewhere = dict(profile.tasks), dict(profile.elsewhere)
    for task, candidates in tried:
        for candidate, cost in _worth_keeping(candidates):
            kernel = whole(task, candidate, compilation.plan.spec, ALL)
            candidate_task = replace(task, kernel=kernel)
            key = timing_key(candidate_task, tf32)
            if own:
                elsewhere.pop(key, None)
            elif key not in timings or key in elsewhere:
                elsewhere[key] = spec.name
            else:
                continue
            timings[key] = Timing(
                us=round(cost.us, 3),
                spread=round(cost.spread, 3),
                label=label(candidate_task),
            )
    kernels = {**profile.kernels, **facts} if own else {**facts, **profile.kernels}
    for task in compilation.plan.tasks.tasks:
        if task.kernel is not None and (own or kernel_key(task.kernel) not in kernels):
            kernel = task.kernel
            kernels[kernel_key(kernel)] = KernelFact(
                workspace=kernel.workspace,
                temporary=kernel.temporary,
                launches=kernel.launches,
                resources=told(kernel.resources),
            )
    return profile.model_copy(
        update={
            "elsewhere": elsewhere,
            "tasks": timings,
            "kernels": kernels,
            "provenance": recorded_provenance() if own else profile.provenance,
        }
    )


def _check_may_add(profile: Profile, spec: TargetSpec, borrow_from: str | None = None) -> None:
    """OptionError if the profile is of another machine, or of other versions, and not of another
    one with the same multiprocessors that may borrow from this one."""
    spec = replace(spec, tf32=False)
    if profile.spec.fingerprint == spec.fingerprint:
        return
    able = multiprocessors(profile.spec) == multiprocessors(spec)
    if able and borrow_from == spec.name:
        return
    option = shlex.join(["--borrow-from", spec.name])
    borrowing = f"add to it with {option} what it does not know, " if able else ""
    raise OptionError(
        f"the profile is of {profile.spec.name} with {dict(profile.spec.versions)}",
        f"this is {spec.name} with {dict(spec.versions)}",
        f"{borrowing}write to another file, or remove this one",
    )


def multiprocessors(spec: TargetSpec) -> tuple[object, ...]:
    """The facts that the time of a kernel that waits for no memory depends on."""
    of_each = spec.threads_per_sm, spec.registers_per_sm, spec.shared_per_sm, spec.ctas_per_sm
    return spec.kind, spec.capability, spec.sms, of_each, spec.versions


def _worth_keeping(candidates: Sequence[Candidate]) -> list[tuple[Candidate, Cost]]:
    """Those that were measured; of the generated ones the fastest few, and the chosen one."""
    priced = (
        (candidate, cost)
        for candidate in candidates
        if (cost := candidate.verdict.cost) is not None
    )
    timed = [(candidate, cost) for candidate, cost in priced if cost.source == "measured"]
    generated = [pair for pair in timed if pair[0].kernel.provider == GENERATED]
    slower = sorted(generated, key=lambda pair: pair[1].us)[FASTEST:]
    left_out = {id(candidate) for candidate, _ in slower if not candidate.verdict.chosen}
    return [pair for pair in timed if id(pair[0]) not in left_out]


def label(task: Task) -> str:
    """For people who read the file: the kernel, and what goes in and out."""
    assert task.kernel is not None
    inputs = " ".join(value.type.text for value in task.body.inputs[:3])
    ops = " ".join(node.op.split(".")[1] for node in task.body.nodes[:4])
    return f"{text_kernel(task.kernel).strip()}: {ops} of {inputs}"

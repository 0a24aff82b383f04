"""What kernels take of this GPU, of those that a profile chooses: nothing is timed for it.

Networks are planned for the simulated GPU of the profile, which chooses among the kernels that it
has times of; this GPU is asked for registers, shared memory, threads and CTAs of each of these,
once, by a capture of its launches. So a profile that was recorded without them gets them in a
minute, and schedulers that need them have them on the simulated GPU.

    aten.aten conv 64x56x56 -> 64    --capture-->  Resources(ctas=98, threads=128, registers=54, ..)

Where there is no GPU the compiler is asked, of generated kernels alone: it says as much of these,
if it is the Triton that the profile was recorded with.

Plans of the library's kernels alone come first, for all networks, then those with generated ones
beside them; the kernels that they use before what these were chosen from, as long as there is time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from anabranch import api
from anabranch.bench.experiments import in_a_row
from anabranch.bench.failing_networks import FailingNetworks
from anabranch.bench.record import fact, multiprocessors
from anabranch.costs.measured import Measured
from anabranch.costs.recorded import KernelFact, Profile, kernel_key
from anabranch.deadline import ENDLESS, Deadline
from anabranch.errors import OptionError
from anabranch.ir.protocols import Probe, Target
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Task
from anabranch.kernels import ALL, with_all_engines
from anabranch.memory import pack
from anabranch.models.load import load_model
from anabranch.targets import resolve
from anabranch.targets.cuda import triton
from anabranch.targets.sim.target import SimTarget
from anabranch.trace import Trace
from anabranch.tuning.decisions import Candidate, whole
from anabranch.tuning.select import Selection

KernelFacts = dict[str, KernelFact]
"""What kernels take, by `kernel_key`."""
Ask = Callable[[Sequence[Task]], KernelFacts]
"""What the kernels of these tasks take on a GPU; of those that fail there nothing."""
USED, GENERATED_AND_USED, TRIED = range(3)
"""Which kernels are asked for first."""
WAYS: tuple[Mapping[str, Any], ...] = (
    {"system": "cudagraph"},
    {"search": "none", "scheduler": "sequential", "horizontal_fusion": "none"},
)
"""How networks are planned: every operator by the library, as most published systems have it, and
with generated kernels beside the library's."""
AT_ONCE = 64
"""Kernels that are asked for before the clock is looked at."""


def resources(
    models: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    planned_for: str,
    ask: Ask,
    recorded: Mapping[str, KernelFact],
    until: Deadline = ENDLESS,
    trace: Trace | None = None,
    save: Callable[[KernelFacts], None] | None = None,
) -> KernelFacts:
    """What kernels of these networks take, of those that are not `recorded` with their resources.

    `planned_for`: the target of the profile, `sim:h200`. `ask`: of the GPU at hand (`asking`).
    `save` gets all there is after every network. A network that cannot be planned is a warning in
    the trace; AnabranchError of the last one if none can be.
    """
    trace = trace or Trace()
    facts: KernelFacts = {}
    queues: list[dict[str, Task]] = [{}, {}, {}]
    failing, planned = FailingNetworks(trace), 0

    def answer(queue: dict[str, Task]) -> None:
        wanted = [
            t for key, t in queue.items() if key not in facts and not _told(recorded.get(key))
        ]
        queue.clear()
        for at in range(0, len(wanted), AT_ONCE):
            if until.over():
                return
            facts.update(ask(wanted[at : at + AT_ONCE]))
            if save is not None:
                save(facts)

    cells = list(itertools.product(WAYS, models, dtypes, batches))
    for done, (way, name, dtype, batch) in enumerate(cells):
        what = f"{name} {dtype} batch {batch}"
        trace.progress("record", done, len(cells), what)
        with failing.told(what):
            for rank, key, task in _kernels(name, dtype, batch, planned_for, way):
                queues[rank].setdefault(key, task)
            planned += 1
        answer(queues[USED])
        if until.over():
            break
    for queue in queues[GENERATED_AND_USED:]:
        answer(queue)
    trace.progress("record", len(cells), len(cells))
    failing.check(planned > 0)
    return facts


def profile_of(planned_for: str) -> Profile:
    """The profile of a simulated GPU. OptionError for another target."""
    target = resolve(planned_for)
    if isinstance(target, SimTarget):
        return target.profile
    raise OptionError(
        f"{planned_for} has no profile",
        "kernels are chosen as a simulated GPU does, whose profile gets what they take",
        "say sim:h200, or sim:FILE.json",
    )


def asking(target: Target, trace: Trace) -> Ask:
    """Asks the GPU of this target, for many kernels in one run; where that fails, for each half."""
    costs = Measured(target, partial(pack, spec=target.spec), trace=trace)

    def answers(tasks: Sequence[Task]) -> KernelFacts:
        graph = in_a_row(tasks)
        probes = costs.probe(graph)
        if not probes and len(tasks) > 1:
            half = len(tasks) // 2
            return answers(tasks[:half]) | answers(tasks[half:])
        facts = {}
        for task, copy in zip(tasks, graph.tasks, strict=True):
            if task.kernel is not None and copy.name in probes:
                facts[kernel_key(task.kernel)] = fact(task.kernel, probes[copy.name])
        return facts

    def ask(tasks: Sequence[Task]) -> KernelFacts:
        target.prepare([task.kernel for task in tasks if task.kernel], None, trace)
        return answers(tasks)

    return ask


def compiled(spec: TargetSpec, trace: Trace) -> Ask:
    """Asks the compiler, for kernels on a GPU like this, which need not be here; of a library's
    kernels it knows nothing. OptionError if it is another one than that of the GPU's profile, or
    there is none."""
    wanted = dict(spec.versions).get("triton")
    if not triton.available() or triton.installed() != wanted:
        here = f"Triton {triton.installed()}" if triton.available() else "no Triton"
        raise OptionError(
            f"there is {here} here, and the profile is of Triton {wanted}",
            "where there is no GPU, what kernels take is told by compiling them, and another "
            "compiler gives them other registers",
            f"pip install triton=={wanted}, or do this on the GPU",
        )
    compiler = triton.Triton(torch.device("cpu"), spec.capability)

    def ask(tasks: Sequence[Task]) -> KernelFacts:
        kernels = [task.kernel for task in tasks if task.kernel and task.kernel.source]
        for _ in compiler.ready(kernels, None, trace):
            pass
        taken = {kernel_key(kernel): (kernel, compiler.taken(kernel)) for kernel in kernels}
        return {
            key: fact(kernel, Probe(kernel.workspace, 0, 1, resources))
            for key, (kernel, resources) in taken.items()
            if resources is not None
        }

    return ask


def with_kernels(profile: Profile, others: Sequence[Profile]) -> Profile:
    """The profile with what kernels take by these ones, of those whose resources it lacks.

    OptionError for one of a GPU with other multiprocessors, or of other versions.
    """
    kernels = dict(profile.kernels)
    for other in others:
        check_alike(profile.spec, other.spec)
        for key, taken in other.kernels.items():
            if _told(taken) and not _told(kernels.get(key)):
                kernels[key] = taken
    return profile.model_copy(update={"kernels": kernels})


def check_alike(profile: TargetSpec, here: TargetSpec) -> None:
    """OptionError unless kernels take the same on both."""
    if multiprocessors(profile) != multiprocessors(here):
        raise OptionError(
            f"the profile is of {profile.name} with {dict(profile.versions)}",
            f"this is {here.name} with {dict(here.versions)}, where kernels may take other things",
            "use a GPU with the same multiprocessors, and the same versions",
        )


def _kernels(
    name: str, dtype: str, batch: int, planned_for: str, way: Mapping[str, Any]
) -> Iterator[tuple[int, str, Task]]:
    """By rank and key the kernels that a plan of the network uses or that were tried for it, each
    in a task of its own; of generated ones only those that are used."""
    spec = resolve(planned_for).spec
    model, args = load_model(name, batch, dtype, torch.device("cpu"))
    options = {"target": planned_for, "tf32": dtype == "tf32", "fullgraph": True, **way}
    compiled = api.compile(model, args, verify=False, **options)
    compilation = compiled.entries[-1].compilation
    assert compilation is not None
    for rank, task, kernel in _ranked(compilation.compiled.selection, spec):
        yield rank, kernel_key(kernel), replace(task, kernel=kernel)


def _ranked(selection: Selection, spec: TargetSpec) -> Iterator[tuple[int, Task, Kernel]]:
    for task in selection.tasks.tasks:
        for candidate in selection.candidates[task.name]:
            used, generated = candidate.verdict.chosen, candidate.kernel.provider == GENERATED
            if candidate.verdict.cost is None or (generated and not used):
                continue
            kernel = _whole(task, candidate, spec)
            if kernel is not None:
                yield (GENERATED_AND_USED if generated else USED if used else TRIED), task, kernel


def _whole(task: Task, candidate: Candidate, spec: TargetSpec) -> Kernel | None:
    """None for one that was recalled and is offered no more."""
    try:
        return whole(task, candidate, spec, with_all_engines(ALL))
    except ValueError:
        return None


def _told(fact: KernelFact | None) -> bool:
    return fact is not None and fact.resources is not None

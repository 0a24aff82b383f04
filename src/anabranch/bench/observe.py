"""Schedules on this machine -> observations: what the model of simultaneous kernels is fitted to.

Each network is compiled for the machine at hand; then its tasks are timed alone, its schedules side
by side (`proposals`), and some of its tasks with each other (`experiments`). Nothing comes from the
cache of timings: numbers that are compared are taken in one process.

    observe(("zoo:resnet50",), ("fp16",), (1,), seconds=60) --> Observations(graphs=(...))

A quarter of a network's seconds goes to tasks alone, a third to its schedules, and the rest to
small graphs until time is up. Loading plans takes time too, so a network may take longer than it
was given: its schedules are always timed. What the schedulers take is not counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from anabranch.bench.experiments import Experiment, copies, lone, pair, steps, tiny
from anabranch.bench.failing_networks import FailingNetworks
from anabranch.bench.jobs import job_of
from anabranch.bench.machine import machine
from anabranch.bench.proposals import proposals
from anabranch.bench.recorder import ObservationRecorder, Subject
from anabranch.cache import Cache
from anabranch.compiler.pipeline import compile_model
from anabranch.costs.measured import Measured
from anabranch.costs.observed import KernelSource, Observations
from anabranch.costs.recorded import timing_key
from anabranch.ir.protocols import Limits, Target
from anabranch.ir.task import Task, TaskGraph
from anabranch.memory import pack
from anabranch.options import Options
from anabranch.targets import resolve
from anabranch.trace import Trace

Save = Callable[[Observations], None]
TASKS_SHARE, SCHEDULES_SHARE = 0.25, 0.35
"""Parts of the seconds for tasks alone and for schedules of the network."""
LEAST_S, MOST_S = 0.01, 0.5
"""Seconds for one executable."""
CAPTURES = 3
"""Of each schedule of a network: captured anew, a graph does not take what it took before."""
SAMPLE = 6
"""Tasks of a network that are timed with copies of themselves and with each other, in a turn."""


def observe(
    models: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    seconds: float = 60.0,
    trace: Trace | None = None,
    into: Observations | None = None,
    target: str = "cuda",
    kernels: KernelSource = "library",
    save: Save | None = None,
) -> Observations:
    """The observations of these networks, after what `into` holds of the same machine; networks
    that it holds with these kernels are not taken again. `save` gets all after every network. A
    network that fails is a warning; AnabranchError of the last one if all do."""
    trace, here = trace or Trace(), machine(target)
    cells = [(m, d, b) for m in models for d in dtypes for b in batches]
    recorder: ObservationRecorder | None = None
    failing = FailingNetworks(trace)
    for done, (name, dtype, batch) in enumerate(cells):
        what = f"{name} {dtype} batch {batch}"
        trace.progress("record", done, len(cells), what)
        if into is not None and _holds(into, name, dtype, batch, kernels):
            trace.add("refused", "record", what, "the file holds it")
            continue
        options = Options.read({"tf32": dtype == "tf32", "kernels": kernels, "search": "none"})
        at = resolve(target, options.tf32)
        with failing.told(what):
            with Cache.open(options.cache_dir) as cache:
                job = job_of(name, dtype, batch, at, options, cache, trace)
                tasks: TaskGraph = compile_model(job, stop_after="probe")
            if recorder is None:
                recorder = ObservationRecorder(into, at.spec)
                _forks_and_joins(recorder, at, trace)
            whole = Subject(name, "network", batch, dtype, tasks, tasks.tasks, kernels=kernels)
            _network(recorder, whole, at, trace, seconds)
            if save is not None:
                save(recorder.observations)
            del job, tasks, whole
        here.release()
    trace.progress("record", len(cells), len(cells))
    observations = recorder.observations if recorder is not None else into
    failing.check(observations is not None)
    assert observations is not None, "no networks"
    return observations


def _holds(
    observations: Observations, name: str, dtype: str, batch: int, kernels: KernelSource
) -> bool:
    wanted = (name, dtype, batch, kernels)
    return any((g.name, g.dtype, g.batch, g.kernels) == wanted for g in observations.graphs)


def _network(
    recorder: ObservationRecorder, whole: Subject, target: Target, trace: Trace, seconds: float
) -> None:
    """Adds a network, and small graphs of its tasks while there is time."""
    start = time.perf_counter()
    recorder.begin()
    tf32 = target.spec.tf32
    distinct = tuple({timing_key(task, tf32): task for task in whole.originals}.values())
    alone = _measured(target, trace, TASKS_SHARE * seconds / max(1, len(distinct)))
    alone.warm(distinct)
    limits = Limits(spec=target.spec, compared=True, trace=trace)
    thinking = time.perf_counter()
    schedules = proposals(whole.tasks, alone, limits)
    start += time.perf_counter() - thinking
    together = _measured(target, trace, SCHEDULES_SHARE * seconds / len(schedules) / CAPTURES)
    ran = recorder.add(whole, schedules, alone, together, CAPTURES)
    graphs = 0
    for experiment in _small(whole.name, distinct, alone):
        if time.perf_counter() - start > seconds:
            break
        _experiment(recorder, experiment, whole, alone, _measured(target, trace, 2 * LEAST_S))
        graphs += 1
    whole_graphs = f"{ran} captures of {len(schedules)} schedules"
    took = f"{len(distinct)} tasks, {whole_graphs}, {graphs} small graphs"
    trace.add("time", "record", whole.name, f"{took} in {time.perf_counter() - start:.1f} s")


def _small(name: str, distinct: Sequence[Task], alone: Measured) -> Iterator[Experiment]:
    """Copies and pairs of tasks, a few from short to long at a time, until none are left."""
    timed = [(alone.task(task).us, i) for i, task in enumerate(distinct)]
    left = sorted(entry for entry in timed if entry[0] > 0)
    partners = list(left)
    rng = random.Random(name)
    while left:
        step = max(1.0, len(left) / SAMPLE)
        sample = [left[int((k + 0.5) * step)] for k in range(min(SAMPLE, len(left)))]
        left = [entry for entry in left if entry not in sample]
        for us, i in sample:
            yield copies(distinct[i], us)
            other, j = rng.choice(partners)
            yield pair(distinct[i], us, distinct[j], other)


def _forks_and_joins(recorder: ObservationRecorder, target: Target, trace: Trace) -> None:
    """What tiny kernels show, once a file."""
    if any(graph.kind == "steps" for graph in recorder.observations.graphs):
        return
    costs = _measured(target, trace, 5 * LEAST_S)
    for task in tiny(target.spec):
        assert task.kernel is not None
        probe = next(iter(costs.probe(lone(task)).values()), None)
        resources = probe.resources if probe is not None else None
        task = replace(task, kernel=replace(task.kernel, resources=resources))
        ctas = resources.ctas if resources is not None else "?"
        experiment = steps(task, f"{task.body.inputs[0].type.numel} elements, {ctas} CTAs")
        of = Subject("", "steps", 1, "fp32", experiment.tasks, experiment.originals)
        _experiment(recorder, experiment, of, costs, costs)


def _experiment(
    recorder: ObservationRecorder,
    experiment: Experiment,
    of: Subject,
    alone: Measured,
    together: Measured,
) -> None:
    graph, kind = experiment.tasks, experiment.kind
    subject = Subject(
        graph.name, kind, of.batch, of.dtype, graph, experiment.originals, of.name, of.kernels
    )
    recorder.add(subject, experiment.schedules, alone, together)


def _measured(target: Target, trace: Trace, each: float) -> Measured:
    """Costs of the machine, and nothing from a cache."""
    prepare = partial(pack, spec=target.spec)
    return Measured(target, prepare, None, trace, each=min(MOST_S, max(LEAST_S, each)))

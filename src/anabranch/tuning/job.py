"""Job: what is to be compiled, for what, and what its stages may use."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from anabranch.artifact.owned_constants import Shared
from anabranch.cache import Cache
from anabranch.deadline import ENDLESS, Deadline
from anabranch.errors import MemoryLimitError
from anabranch.frontend.capture_cache import Calling
from anabranch.frontend.captured import Captured
from anabranch.frontend.padding_marks import MarkedPadding
from anabranch.frontend.structure import flatten_call
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import ANY_STREAMS, Executable, Limits, Target
from anabranch.ir.samples import Samples
from anabranch.ir.uncached import Uncached
from anabranch.options import Options
from anabranch.targets.sampled import sampled
from anabranch.trace import Trace
from anabranch.tuning.among_sizes import AmongSizes
from anabranch.tuning.sandbox.process import SandboxProcess
from anabranch.tuning.workers.pool import WorkerPool


@dataclass(frozen=True, slots=True)
class Job:
    """A compilation to be done: the model, the target, where to look things up and say what
    happened, and until when searching and measuring may go on. `begun`: when it began, of
    `time.monotonic`. `sandbox`: the process in which generated kernels run first, while it is
    compiled. `shared`: constants that other plans of the same Compiled own. `beside`: one of these,
    whose arena is used if it is large enough. `room`: bytes that the plan may take on the device.
    `surroundings`: torch's switches, under which the model is captured and called. `anew`: what the
    cache has of this model is not trusted. `wanted`: the options as they were given, where a
    further attempt does less. `places`: where states lie already, by what the model calls them.
    `live_bytes`: what values may take at once, so that some are computed again; `over`: why;
    `counted`: what they take, as `rewrite.remat` counts; `again`: what is computed again; `late`:
    as in FusionFacts. `merge_s`: seconds in which a scheduler is to say which convolutions it
    merges, None for as long as it takes. `workers`: who helps to try kernels. `cold`: what a call
    finds in no cache, None where it may find all. `among`: the size among those of one model that
    are compiled together. `markings`: what its graph is to read of padding."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    target: Target
    options: Options
    cache: Cache | None
    trace: Trace
    captured: Captured | None = None
    deadline: Deadline = ENDLESS
    begun: float = field(default_factory=time.monotonic)
    sandbox: SandboxProcess | None = None
    shared: Shared = field(default_factory=dict)
    beside: Executable | None = None
    room: int | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)
    anew: bool = False
    wanted: Options | None = None
    places: Mapping[str, Tensor] = field(default_factory=dict)
    live_bytes: int | None = None
    over: MemoryLimitError | None = None
    counted: int | None = None
    again: tuple[str, ...] = ()
    late: Mapping[str, int] = field(default_factory=dict)
    merge_s: float | None = None
    workers: WorkerPool | None = None
    cold: Uncached | None = None
    among: AmongSizes | None = None
    markings: tuple[MarkedPadding, ...] = ()

    @property
    def taken(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begun

    @property
    def between(self) -> bool:
        """Whether its size lies between two of the same model that are searched."""
        return self.among is not None and not self.among.own


def example_of(job: Job, captured: Captured) -> list[Tensor]:
    """The example as the graph's inputs, on the target's device: of states copies of what they
    are."""
    graph, (tree, _), device = captured.graph, captured.trees, job.target.device
    tensors = flatten_call(captured.signature, graph.call_inputs, job.args, job.kwargs, tree)
    held = {state.name: state.value for state in graph.states}
    last = (held[value.name] for value in graph.inputs if value.name in held)
    states = [value.detach().to(device).clone() for value in last if value is not None]
    return [*(tensor.to(device) for tensor in tensors), *states]


def with_samples(job: Job, captured: Captured, graph: Graph) -> Job:
    """The job with a target that knows what this graph's values are on the example."""
    if job.target.spec.simulated:
        return job
    samples = Samples(graph, example_of(job, captured), job.target.device)
    return replace(job, target=sampled(job.target, samples))


def calling_of(job: Job) -> Calling:
    """How the model is called to see what it computes: without values where nothing can run, or
    nobody compares."""
    fake = job.target.spec.simulated or not job.options.verify
    return Calling(job.surroundings, job.target.full_precision, fake, job.anew)


def limits_of(job: Job) -> Limits:
    """What schedulers may use."""
    options, usual = job.options, Options.model_fields["arena_ratio"].default
    packing = "" if options.arena_ratio == usual else f"an arena of {options.arena_ratio}"
    packing += f" in {job.room} B" if job.room is not None else ""
    return Limits(
        max_streams=options.max_streams or ANY_STREAMS,
        max_group_size=options.max_group_size,
        max_groups=options.max_groups,
        deadline=job.deadline,
        spec=job.target.spec,
        packing=packing,
        trace=job.trace,
    )

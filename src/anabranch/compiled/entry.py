"""One plan of a Compiled: how a call is read, run and answered."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from anabranch.compiled.fitting import Fitting, fitting
from anabranch.compiled.gradients import Trained
from anabranch.compiled.sized import SizedCalls
from anabranch.compiler.compilation import Compilation
from anabranch.frontend.call_readers import Assembler, Reader, assembler, reader
from anabranch.frontend.held_arguments import HeldArguments
from anabranch.ir.plan import Plan, Signature
from anabranch.ir.protocols import Executable
from anabranch.tuning.job import Job


@dataclass(frozen=True, slots=True)
class Entry:
    """One plan of a Compiled, loaded unless the target is simulated; facts are found on demand.
    `call`: the model's own signature, None where Python knows of none; `device`: where inputs are,
    None where nothing runs; `trained`: the results for which the model itself would find gradients
    of its weights; `sized`: what varies in calls like those of this plan, and `at`: the
    sizes that it has, None and () where nothing does; `attributes`: what the model's modules were,
    beside their tensors, as the plan was made; `job`: what it was
    compiled for, with the example as it was given, None for a loaded one (`job_of`); `held`: the
    arguments that the model holds, None if it holds none."""

    plan: Plan
    run: Executable | None
    find_facts: Callable[..., dict[str, Any]]
    trees: tuple[pytree.TreeSpec, pytree.TreeSpec]
    compilation: Compilation | None = None
    call: inspect.Signature | None = None
    device: torch.device | None = None
    trained: Trained = field(default_factory=Trained)
    sized: SizedCalls | None = None
    at: tuple[int, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    job: Job | None = field(default=None, repr=False, compare=False)
    held: HeldArguments | None = field(default=None, repr=False, compare=False)
    read: Reader = field(init=False)
    assemble: Assembler = field(init=False)
    fit: Callable[[], Fitting] = field(init=False)
    """How the plan takes other weights: found once, when that is first asked."""

    def __post_init__(self) -> None:
        signature, tasks = signature_of(self), self.plan.tasks
        inputs, outputs = (
            [value.name for value in tasks.call_inputs],
            [ref.name for ref in tasks.outputs],
        )
        read = reader(signature, tasks.call_inputs, self.trees[0], self.device)
        object.__setattr__(self, "read", read if self.held is None else self.held.reader(read))
        object.__setattr__(self, "fit", functools.cache(functools.partial(fitting, self.plan)))
        objects = {} if self.held is None else self.held.objects
        stateful = bool(tasks.states)
        assemble = assembler(signature, inputs, outputs, self.trees[1], stateful, objects)
        object.__setattr__(self, "assemble", assemble)


def job_of(job: Job, sized: SizedCalls | None, at: tuple[int, ...]) -> Job:
    """The job with an example of these sizes, which nobody keeps: it would be memory beside what is
    told of."""
    if sized is None:
        return job
    args, kwargs = sized.resized(job.args, dict(job.kwargs), at)
    return replace(job, args=args, kwargs=kwargs)


def signature_of(entry: Entry) -> Signature:
    """How the plan is called; AssertionError for a plan without a signature, which no Compiled
    has."""
    assert entry.plan.signature is not None
    return entry.plan.signature

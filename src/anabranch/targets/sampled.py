"""A target that loads plans with the example's values in their input buffers.

    plan of a whole graph   integers of the example, all of it where operators depend on values
    plan of one task        what its inputs are on the example, where drawn numbers may not be read

A run before the first call (a warm-up, a timing) so reads values that its operators accept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from anabranch.cache import Cache
from anabranch.errors import TargetError
from anabranch.ir.domains import domains
from anabranch.ir.plan import Plan
from anabranch.ir.protocols import ColdLoader, Cost, Executable, Probe, Target
from anabranch.ir.samples import Samples, delicate
from anabranch.ir.schedule import Timeline
from anabranch.ir.task import Kernel, Task
from anabranch.trace import Trace


class SampledTarget:
    """`inner` with `samples`; all but `load` is that of `inner`."""

    def __init__(self, inner: Target, samples: Samples) -> None:
        self.inner, self.samples, self.spec = inner, samples, inner.spec

    @property
    def device(self) -> torch.device:
        """The inner target's device."""
        return self.inner.device

    def input_contents(self, plan: Plan) -> dict[str, Tensor]:
        """The contents of the plan's input buffers, as far as they are not to be drawn. TargetError
        where nothing may be drawn, and the values are not known."""
        bodies = [task.body for task in plan.tasks.tasks]
        example = self.samples.inputs()
        whole = all(value.name in example for value in plan.tasks.inputs)
        alone = len(bodies) == 1 and not whole
        fixed = {name for body in bodies for name in domains(body)} if alone else example.keys()
        risky = delicate(bodies, () if whole else fixed)
        wanted = {
            value.name: value.type
            for value in plan.tasks.inputs
            if risky or (value.name in example and not value.type.dtype.is_floating_point)
        }
        samples = self.samples.of(wanted, self.inner.own_precision())
        if risky and len(samples) < len(wanted):
            raise TargetError(
                f"{plan.tasks.name} cannot be run on its own",
                "its operators read values that others must compute, and these are not known",
                "it is tried as a part of the whole plan",
            )
        return samples

    def load(
        self,
        plan: Plan,
        repeat: int = 1,
        contents: Mapping[str, Tensor] | None = None,
        beside: Executable | None = None,
        states: Mapping[str, Tensor] | None = None,
    ) -> Executable:
        """The plan with values of the example in its input buffers, where nobody gives other ones.
        A plan with `states` is one that will be called, so it gets no samples."""
        if states is not None:
            return self.inner.load(plan, repeat, contents, beside, states)
        contents = self.input_contents(plan) if contents is None else contents
        return self.inner.load(plan, repeat, contents or None, beside)

    def load_cold(
        self,
        plan: Plan,
        repeat: int,
        copies: int,
        contents: Mapping[str, Tensor] | None = None,
    ) -> Executable:
        """As `load`; as it is on a target whose constants are not timed so."""
        if not isinstance(self.inner, ColdLoader):
            return self.load(plan, repeat, contents)
        contents = self.input_contents(plan) if contents is None else contents
        return self.inner.load_cold(plan, repeat, copies, contents or None)

    def again(self, run: Executable, plan: Plan) -> Executable:
        """As the inner target does it: on the memory of `run` and what that holds, where it can."""
        return self.inner.again(run, plan)

    def prepare(
        self, kernels: Sequence[Kernel], cache: Cache | None = None, trace: Trace | None = None
    ) -> None:
        """Kernels are built by the inner target; samples have no part in it."""
        self.inner.prepare(kernels, cache, trace)

    def give_back(self) -> int:
        """Samples belong to no library."""
        return self.inner.give_back()

    def time(self, runs: Sequence[Executable], budget: float) -> list[Cost]:
        """Executables loaded here replay on samples, so that indices and masks cost what they do in
        earnest."""
        return self.inner.time(runs, budget)

    def probe(self, run: Executable) -> dict[str, Probe]:
        """Launches, registers and memory depend on shapes alone: the inner target knows them."""
        return self.inner.probe(run)

    def timeline(self, run: Executable) -> Timeline | None:
        """When what ran on samples."""
        return self.inner.timeline(run)

    def time_call(self, call: Callable[[], object], budget: float) -> Cost:
        """Calls bring their own inputs, so samples have no part in it."""
        return self.inner.time_call(call, budget)

    def beside_model(
        self, run: Executable, model: Callable[[], object], budget: float
    ) -> tuple[Cost, Cost]:
        """The plan replays on samples; `model` has inputs of its own."""
        return self.inner.beside_model(run, model, budget)

    def own_precision(self) -> AbstractContextManager[None]:
        """Also what samples are computed under: values within the network are those that its
        kernels would make."""
        return self.inner.own_precision()

    def full_precision(self, lean: bool = False) -> AbstractContextManager[None]:
        """The inner target's switches, for references that are computed on the same samples."""
        return self.inner.full_precision(lean)


def values_of(target: Target, task: Task) -> list[Tensor] | None:
    """The values that a task reads on the example, None where nobody knows all of them."""
    if not isinstance(target, SampledTarget):
        return None
    wanted = {value.name: value.type for value in task.body.inputs}
    samples = target.samples.of(wanted, target.own_precision())
    return [samples[name] for name in wanted] if len(samples) == len(wanted) else None


def sampled(target: Target, samples: Samples) -> Target:
    """The target with these samples, in place of those that it has; a simulated one as it is."""
    inner: Target = target.inner if isinstance(target, SampledTarget) else target
    if inner.spec.simulated:
        return inner
    return SampledTarget(inner, samples)


def known_as(target: Target, aliases: Mapping[str, str]) -> Target:
    """The target, whose samples have these names too, each with its own; without samples as it
    is."""
    if not isinstance(target, SampledTarget):
        return target
    return SampledTarget(target.inner, target.samples.under(aliases))

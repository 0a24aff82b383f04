"""The shortlist: of the kernels that a task could have, those that are worth building.

    aten 7.1   cudnn 0..2 3.3   contraction 2.1, 2.2, 2.0, ... twenty tiles       predicted, in us
    --> aten, the first eight tiles of each template; no engine, since none is near these

A call of ATen needs no building and is always tried. Generated kernels are taken in the order in
which their templates offer them; whether they are tried at all, and engines beside them, a model of
kernel times says, which was fitted to recorded timings of an H200. On another GPU it is told that
one's bandwidth, peak and multiprocessors; what it has not learned is tried. How well that chooses:
`docs/decisions/measuring.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from anabranch.costs.kernel_model import FittedKernels, Modelled, load_kernel_model, predicted_us
from anabranch.deadline import EffortSettings
from anabranch.ir.graph import Graph
from anabranch.ir.protocols import Cost, KernelOffer, Provider, Target
from anabranch.ir.target import TargetSpec
from anabranch.ir.task import GENERATED, Kernel, Task
from anabranch.ir.variant import Variant
from anabranch.kernels.kernel_terms import terms_of
from anabranch.targets.sim.target import PROFILES, SUFFIX, model_path

Offers = list[tuple[int, KernelOffer]]
"""Kernels that need not be written yet, each with the position of its provider."""
Shortlist = Callable[[Task, Offers], Offers]
"""Those of the offers that are tried, in the same order."""
LEARNED_FROM = f"h200{SUFFIX}"
"""The shipped profile whose model of kernels says what one on a real GPU is expected to take."""
CALLED = "aten"
"""The provider whose kernels need no building."""


def all_offers(task: Task, offers: Offers) -> Offers:
    """Every kernel."""
    return offers


def shortlist_of(target: Target, settings: EffortSettings) -> Shortlist:
    """Who chooses for a compilation of this effort on that target."""
    leaves_out = settings.generated is not None or settings.engines < math.inf
    if target.spec.kind != "cuda" or not leaves_out:
        return all_offers
    return partial(shortlisted, model=kernel_model_of(target), spec=target.spec, settings=settings)


def kernel_model_of(target: Target) -> FittedKernels:
    """The model of kernels that belongs to the target, or the shipped guess."""
    estimates = getattr(target, "estimates", None)
    if isinstance(estimates, Modelled):
        return estimates.model
    return load_kernel_model(model_path(PROFILES / LEARNED_FROM))


def predicted_costs(target: Target) -> Callable[[Task], Cost]:
    """What tasks with kernels, whose texts need not be written, are predicted to take."""
    return Modelled(kernel_model_of(target), terms_of, target.spec).task


@dataclass(frozen=True, slots=True)
class UnwrittenKernels:
    """A provider whose kernels get no text where none is needed to tell which there are: for
    predictions of times, for which nothing is built."""

    of: Provider

    @property
    def name(self) -> str:
        """The provider's own."""
        return self.of.name

    @property
    def version(self) -> str:
        """The provider's own."""
        return self.of.version

    def kernels(self, task: Task, spec: TargetSpec) -> list[Kernel]:
        """As `kernel_offers`."""
        return [offer.write() for offer in self.kernel_offers(task, spec)]

    def kernel_offers(self, task: Task, spec: TargetSpec) -> list[KernelOffer]:
        """The provider's offers, those of generated kernels without their texts."""
        return [
            replace(offer, write=partial(unwritten, task.body, offer)) if offer.generated else offer
            for offer in self.of.kernel_offers(task, spec)
        ]

    def kernel(self, task: Task, spec: TargetSpec, name: str, variant: Variant | str) -> Kernel:
        """The provider's kernel, a generated one without its text."""
        if self.name != GENERATED:
            return self.of.kernel(task, spec, name, variant)
        return Kernel(GENERATED, name, task.body, variant, writes_out=True)


@dataclass(frozen=True, slots=True)
class _Predicted:
    """An offer with the position of its provider, and microseconds, None where nobody knows."""

    maker: int
    offer: KernelOffer
    us: float | None


def shortlisted(
    task: Task, offers: Offers, model: FittedKernels, spec: TargetSpec, settings: EffortSettings
) -> Offers:
    """The offers that are tried for the task, by what this model says of its kernels."""
    each = [_Predicted(maker, o, _us(task, o, model, spec)) for maker, o in offers]
    best = _least([guess for guess in each if guess.offer.generated])
    plain = _least([guess for guess in each if _called(guess)])
    hopeless = best is not None and plain is not None and best > (1 - settings.gain) * plain
    count: Counter[str] = Counter()

    def tried(guess: _Predicted) -> bool:
        if _called(guess):
            return True
        if guess.offer.generated:
            count[guess.offer.name] += 1
            few = settings.generated is None or count[guess.offer.name] <= settings.generated
            return few and not hopeless
        return best is None or guess.us is None or guess.us <= settings.engines * best

    return [(guess.maker, guess.offer) for guess in each if tried(guess)]


def _called(guess: _Predicted) -> bool:
    return guess.offer.provider == CALLED


def _least(predicted: Sequence[_Predicted]) -> float | None:
    """The least time of these; None where there are none, or one is not known: it may be any."""
    times = [guess.us for guess in predicted if guess.us is not None]
    return min(times) if times and len(times) == len(predicted) else None


def _us(task: Task, offer: KernelOffer, model: FittedKernels, spec: TargetSpec) -> float | None:
    kernel = unwritten(task.body, offer) if offer.generated else offer.write()
    return predicted_us(model.factors, terms_of(replace(task, kernel=kernel), spec))


def unwritten(body: Graph, offer: KernelOffer) -> Kernel:
    """The kernel without its text: enough to predict its time."""
    return Kernel(offer.provider, offer.name, body, offer.variant, writes_out=True)

"""The shortlist: of the kernels that a task could have, those that are worth building.

    aten 7.1   cudnn 0..2 3.3   contraction 2.1, 2.2, 2.0, ... twenty tiles       predicted, in us
    --> aten, the first eight tiles of each template; no engine, since none is near these

A call of ATen needs no building and is always tried. Generated kernels are taken in the order in
which their templates offer them, so many of each, and so many of all. Engines beside them are tried
where a model of kernel times has them near, which was fitted to recorded timings of an H200. On
another GPU it is told that one's bandwidth, peak and multiprocessors; what it has not learned is
tried. Generated kernels are not left out by that model: it has library calls off by factors of two.
How well all that chooses: `docs/decisions/measuring.md`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
Shortlist = Callable[[Mapping[str, Task], Mapping[str, Offers]], dict[str, Offers]]
"""Of structures that are decided together, by their texts, those of the offers that are tried, in
the same order."""
LEARNED_FROM = f"h200{SUFFIX}"
"""The shipped profile whose model of kernels says what one on a real GPU is expected to take."""
CALLED = "aten"
"""The provider whose kernels need no building."""
FEWEST_TILES = 2
"""Of a template for a structure, however many structures there are."""


def all_offers(tasks: Mapping[str, Task], offers: Mapping[str, Offers]) -> dict[str, Offers]:
    """Every kernel."""
    return dict(offers)


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


def shortlisted(
    tasks: Mapping[str, Task],
    offers: Mapping[str, Offers],
    model: FittedKernels,
    spec: TargetSpec,
    settings: EffortSettings,
) -> dict[str, Offers]:
    """The offers that are tried for the tasks, engines by what this model says of kernels."""
    near = {key: _near(tasks[key], each, model, spec, settings) for key, each in offers.items()}
    most = _tiles(near.values(), settings)
    return near if most is None else {key: _first(each, most) for key, each in near.items()}


def _near(
    task: Task, offers: Offers, model: FittedKernels, spec: TargetSpec, settings: EffortSettings
) -> Offers:
    """Without engines that are predicted to be far from the fastest generated kernel."""
    if settings.engines == math.inf:
        return offers
    generated = [_us(task, offer, model, spec) for _, offer in offers if offer.generated]
    predicted = [us for us in generated if us is not None]
    if not predicted or len(predicted) < len(generated):  # the fastest may take any time
        return offers
    most = settings.engines * min(predicted)

    def tried(offer: KernelOffer) -> bool:
        if offer.generated or offer.provider == CALLED:
            return True
        us = _us(task, offer, model, spec)
        return us is None or us <= most

    return [(maker, offer) for maker, offer in offers if tried(offer)]


def _tiles(offers: Iterable[Offers], settings: EffortSettings) -> int | None:
    """How many of each template a structure may try, None for all."""
    most, together = settings.generated, settings.together
    counts = [count for each in offers for count in _by_template(each).values()]
    if together is not None:
        most = max(counts, default=0) if most is None else most
        while most > FEWEST_TILES and sum(min(count, most) for count in counts) > together:
            most -= 1
    return most


def _by_template(offers: Offers) -> Counter[str]:
    return Counter(offer.name for _, offer in offers if offer.generated)


def _first(offers: Offers, most: int) -> Offers:
    """So many generated kernels of each template, and all others."""
    count: Counter[str] = Counter()

    def tried(offer: KernelOffer) -> bool:
        count[offer.name] += offer.generated
        return not offer.generated or count[offer.name] <= most

    return [(maker, offer) for maker, offer in offers if tried(offer)]


def _us(task: Task, offer: KernelOffer, model: FittedKernels, spec: TargetSpec) -> float | None:
    kernel = unwritten(task.body, offer) if offer.generated else offer.write()
    return predicted_us(model.factors, terms_of(replace(task, kernel=kernel), spec))


def unwritten(body: Graph, offer: KernelOffer) -> Kernel:
    """The kernel without its text: enough to predict its time."""
    return Kernel(offer.provider, offer.name, body, offer.variant, writes_out=True)

"""A profile -> the model of the kernels that it lacks, and its errors on networks held out.

Each network is planned for the profile's machine; of all kernels that are considered for it, those
that the profile has times of are what the model is fitted to. Then each network is held out with
all of its kernels, those that it shares with others too, and predicted by a fit to the rest:

    network          kernels   median   of ten nine   sum of the plan's   roofline: median   sum
    zoo:resnet50         213     7.4%         26.0%               +3.0%              19.8%  +11.8%

The errors of families on networks held out, each kernel by itself and all of a network
alike, are what estimates say of themselves.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anabranch import api
from anabranch.bench.provenance import recorded_provenance
from anabranch.bench.record import considered
from anabranch.costs.kernel_model import (
    LEAST_US,
    FamilyError,
    FittedKernels,
    LaunchTerms,
    Timed,
    family_of,
    fit_factors,
    predicted_us,
)
from anabranch.costs.recorded import Profile, find_timing, load_profile, timing_key
from anabranch.costs.roofline import Roofline
from anabranch.errors import OptionError
from anabranch.ir.task import Task
from anabranch.kernels import ALL
from anabranch.kernels.kernel_terms import terms_of
from anabranch.models.load import load_model
from anabranch.targets import resolve
from anabranch.trace import Trace
from anabranch.tuning.decisions import whole

NINE_OF_TEN, OF_A_NORMAL = 0.9, 1.6449
"""The share of errors that a spread is read from, and how many standard deviations that is."""
RECORDED_NETWORKS = (
    *("squeezenet", "squeezenet_bypass", "googlenet", "inception_v3", "resnet50", "resnext50"),
    *("nasnet_mobile", "nasnet_large", "randwire", "randwire_ios", "bert_base", "sru", "deepfm"),
)
"""Networks of the zoo that the shipped profile was recorded of."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A kernel that was timed, and which networks it is considered for. `rough_us`: what the
    roofline says of it."""

    networks: frozenset[str]
    launches: tuple[LaunchTerms, ...]
    us: float
    rough_us: float

    @property
    def timed(self) -> Timed:
        """What a fit needs of it."""
        return Timed(self.launches, self.us)


@dataclass(frozen=True, slots=True)
class TimedKernels:
    """Timed kernels by key; of each network the keys of its plan's, once for each task."""

    samples: Mapping[str, Sample]
    plans: Mapping[str, tuple[str, ...]]


def fit_kernels(
    profile: str,
    models: Sequence[str] = (),
    trace: Trace | None = None,
    compile: Callable[..., Any] = api.compile,
    batches: Sequence[int] = (1,),
) -> tuple[FittedKernels, dict[str, Any]]:
    """The model of the profile in this file, and the record of how well it predicts networks held
    out. `models`: those that it was recorded of, at least two; without, those of the shipped one.
    `batches`: those that they were recorded at; a network is held out at all of them. OptionError
    if nothing could be held out."""
    trace = trace or Trace()
    names = models or tuple(f"zoo:{name}" for name in RECORDED_NETWORKS)
    loaded = load_profile(profile)
    gathered = gather(names, f"sim:{Path(profile)}", loaded, trace, compile, batches)
    held = {name: _without(name, gathered) for name in names}
    if len(names) < 2 or not all(held.values()):
        raise OptionError(
            "no network could be held out",
            f"the profile knows kernels of {sum(map(bool, held.values()))} of {len(names)}",
            "name two networks or more that it was recorded of",
        )
    factors = fit_factors([sample.timed for sample in gathered.samples.values()])
    errors, families, networks = judged(held, gathered)
    origin = recorded_provenance()
    model = FittedKernels(
        device=loaded.spec.name, provenance=origin, factors=factors, errors=errors
    )
    record = {
        "version": 1,
        "provenance": {**origin.model_dump(), "profile": loaded.provenance.date},
        "device": loaded.spec.name,
        "kernels": len(gathered.samples),
        "networks": networks,
        "families": families,
    }
    return model, record


def gather(
    names: Sequence[str],
    target: str,
    profile: Profile,
    trace: Trace,
    compile: Callable[..., Any] = api.compile,
    batches: Sequence[int] = (1,),
) -> TimedKernels:
    """The kernels of these networks that the profile has times of."""
    spec = replace(resolve(target).spec, tf32=False)
    rough = Roofline(spec)
    timed_tasks: dict[str, tuple[Task, float]] = {}
    users: dict[str, set[str]] = defaultdict(set)
    plans: dict[str, tuple[str, ...]] = {}
    each = [(name, batch) for name in names for batch in batches]
    for done, (name, batch) in enumerate(each):
        trace.progress("fit", done, len(each), name if batch == 1 else f"{name}, batch {batch}")
        model, args = load_model(name, batch, "fp16", "cpu")
        options = {"target": target, "search": "none", "scheduler": "sequential"}
        options |= {"horizontal_fusion": "none", "effort": "max"}  # less leaves engines out
        compiled = compile(model, args, verify=False, fullgraph=True, **options)
        for task, candidates in considered(compiled)[0]:
            for candidate in candidates:
                own = replace(task, kernel=whole(task, candidate, spec, ALL))
                key = timing_key(own, False)
                if key in timed_tasks or (timing := find_timing(profile, own, False, key)) is None:
                    if key in timed_tasks:
                        users[key].add(name)
                    continue
                if timing.us:
                    timed_tasks[key] = own, timing.us
                    users[key].add(name)
        tasks = compiled.entries[-1].compilation.plan.tasks.tasks
        keys = (timing_key(task, False) for task in tasks)
        plans[name] = (*plans.get(name, ()), *(key for key in keys if key in timed_tasks))
    trace.progress("fit", len(each), len(each))
    samples = {
        key: Sample(frozenset(users[key]), launches, us, rough.task(task).us)
        for key, (task, us) in timed_tasks.items()
        if (launches := terms_of(task, spec))
    }
    kept = {name: tuple(key for key in keys if key in samples) for name, keys in plans.items()}
    return TimedKernels(samples, kept)


def _without(name: str, gathered: TimedKernels) -> dict[str, float]:
    """What a fit without the network says of its kernels, by key."""
    samples = gathered.samples
    factors = fit_factors(
        [sample.timed for sample in samples.values() if name not in sample.networks]
    )
    said = {
        key: predicted_us(factors, sample.launches) or sample.rough_us
        for key, sample in samples.items()
        if name in sample.networks
    }
    return {key: max(us, LEAST_US) for key, us in said.items()}


def judged(
    held: Mapping[str, Mapping[str, float]], gathered: TimedKernels
) -> tuple[dict[str, FamilyError], list[dict[str, Any]], list[dict[str, Any]]]:
    """Errors of families, rows of families, and rows of networks, all of networks held out."""
    off: dict[str, dict[str, list[tuple[float, float]]]] = {}
    networks = []
    for name, said in held.items():
        samples = [(gathered.samples[key], us) for key, us in said.items()]
        for sample, us in samples:
            both = math.log(us / sample.us), math.log(sample.rough_us / sample.us)
            for family in ("", family_of(sample.launches)):
                off.setdefault(family, {}).setdefault(name, []).append(both)
        plan = gathered.plans[name]
        took = sum(gathered.samples[key].us for key in plan) or 1.0
        networks.append(
            {
                "network": name,
                **_row(
                    [
                        (us / sample.us - 1, sample.rough_us / sample.us - 1)
                        for sample, us in samples
                    ]
                ),
                "sum": round(sum(said[key] for key in plan) / took - 1, 4),
                "roofline_sum": round(
                    sum(gathered.samples[key].rough_us for key in plan) / took - 1, 4
                ),
            }
        )
    errors = {
        family: _error([[e for e, _ in own] for own in by.values()]) for family, by in off.items()
    }
    families = [
        {"family": family or "all"}
        | _row([(math.expm1(a), math.expm1(b)) for own in by.values() for a, b in own])
        for family, by in sorted(off.items())
    ]
    return errors, families, networks


def _row(errors: Sequence[tuple[float, float]]) -> dict[str, Any]:
    ours, rough = [abs(a) for a, _ in errors], [abs(b) for _, b in errors]
    return {
        "kernels": len(errors),
        "median_error": round(statistics.median(ours), 4),
        "p90_error": round(_part(ours), 4),
        "roofline_median_error": round(statistics.median(rough), 4),
        "roofline_p90_error": round(_part(rough), 4),
    }


def _error(by_network: Sequence[Sequence[float]]) -> FamilyError:
    """`common`: of the middles of networks around no error at all; `own`: of kernels around the
    middle of their network. Both are robust: a kernel that is ten times as slow is one kernel."""
    middles = [statistics.median(own) for own in by_network]
    common = math.sqrt(statistics.fmean(min(abs(m), 1.0) ** 2 for m in middles))
    around = [abs(e - m) for own, m in zip(by_network, middles, strict=True) for e in own]
    own = _part(around) / OF_A_NORMAL if len(around) > 1 else common
    return FamilyError(own=round(own, 4), common=round(common, 4), kernels=len(around))


def _part(sizes: Sequence[float]) -> float:
    """What so many of these are at most."""
    return sorted(sizes)[min(len(sizes) - 1, int(NINE_OF_TEN * len(sizes)))]

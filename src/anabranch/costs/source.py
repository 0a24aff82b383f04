"""Where a target's costs come from: measured on a machine that is there, recorded for one that is
simulated."""

from __future__ import annotations

import functools

from anabranch.cache import Cache
from anabranch.costs.kernel_model import FittedKernels, Modelled
from anabranch.costs.measured import Measured, Prepare
from anabranch.costs.recorded import Profile, Recorded
from anabranch.deadline import ENDLESS, TIME, Deadline
from anabranch.ir.identity import Itself
from anabranch.ir.key import digest_text
from anabranch.ir.protocols import Costs, Target
from anabranch.ir.uncached import Uncached
from anabranch.trace import Trace


def costs_of(
    target: Target,
    prepare: Prepare,
    cache: Cache | None = None,
    trace: Trace | None = None,
    until: Deadline = ENDLESS,
    each: float = TIME.schedule_s,
    packing: str = "",
    cold: Uncached | None = None,
) -> Costs:
    """`Measured` for a target that can run plans, until this is over, with so many seconds for
    each candidate; `Recorded` for one that carries a profile. `packing`: how `prepare` packs a
    schedule where that is not the usual way, for the keys of times. `cold`: as in
    `Measured`."""
    profile = getattr(target, "profile", None)
    if isinstance(profile, Profile):
        estimates = getattr(target, "estimates", None)
        return Recorded(profile, estimates, target.spec, getattr(target, "expected", None))
    return Measured(target, prepare, cache, trace, until, each, packing=packing, cold=cold)


def name_of(target: Target) -> str:
    """Names a target's costs, for keys of decisions that rest on them: "measured", or the content
    of the profile and of the model that estimates what it lacks."""
    profile = getattr(target, "profile", None)
    if not isinstance(profile, Profile):
        return "measured"
    estimates = getattr(target, "estimates", None)
    if not isinstance(estimates, Modelled):
        return f"recorded {_digest(Itself(profile))}"
    return f"recorded {_digest(Itself(profile))} modelled {_digest(Itself(estimates.model))}"


@functools.lru_cache(maxsize=8)
def _digest(held: Itself[Profile] | Itself[FittedKernels]) -> str:
    """Of megabytes of text, for each of the dozens of keys that a start asks for."""
    return digest_text(held.value.model_dump_json())

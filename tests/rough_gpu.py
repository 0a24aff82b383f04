"""The recorded GPU without the model of kernels that nobody timed: those are estimated by their
arithmetic and their bytes alone, as on a GPU whose profile has no model.

Tests of how graphs are cut use it: a few times that they name differ from what bytes say, and a
fitted model would tell of all others too."""

from __future__ import annotations

import functools

from anabranch.costs.recorded import load_profile
from anabranch.targets.sim.target import PROFILES, SimTarget


@functools.cache
def rough_gpu() -> SimTarget:
    return SimTarget(load_profile(PROFILES / "h200.json"))

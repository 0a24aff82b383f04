"""The recorded GPU without the model of kernels that nobody timed: those are estimated by their
arithmetic and their bytes alone, as on a GPU whose profile has no model.

Tests of how plans are decided use it for graphs of which they say what is faster. The model cannot
stand there yet: it adds up what independent tasks of one launch take side by side."""

from __future__ import annotations

import functools

from anabranch.costs.recorded import load_profile
from anabranch.targets.sim.target import PROFILES, SimTarget


@functools.cache
def rough_gpu() -> SimTarget:
    return SimTarget(load_profile(PROFILES / "h200.json"))

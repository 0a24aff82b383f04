"""A GPU that is not there: plans and times from a recorded profile, no tensors."""

from anabranch.targets.sim.target import SUFFIX, SimTarget, open_sim

__all__ = ["SUFFIX", "SimTarget", "open_sim"]

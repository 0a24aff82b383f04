"""The table of targets, and what "auto" means."""

from __future__ import annotations

from collections.abc import Callable

import torch

from anabranch.errors import OptionError, TargetError
from anabranch.ir.protocols import Target
from anabranch.targets import sim
from anabranch.targets.cpu.target import CpuTarget
from anabranch.targets.cuda import available, open_cuda


def _cpu(tf32: bool) -> Target:
    return CpuTarget()


def _sim_h200(tf32: bool) -> Target:
    return sim.open_sim("h200", tf32)


TARGETS: dict[str, Callable[[bool], Target]] = {
    "cuda": open_cuda,
    "cpu": _cpu,
    "sim:h200": _sim_h200,
}
"""Each opens a target; the argument says whether fp32 contractions may run in tf32."""


def resolve(name: str, tf32: bool = False) -> Target:
    """The target of this name; "auto" is cuda where there is a GPU, cpu elsewhere. `sim:FILE.json`
    is the GPU that this profile is of.
    OptionError for an unknown name, TargetError where the machine lacks it."""
    if name == "auto":
        name = "cuda" if available() else "cpu"
    if name.startswith("sim:") and name.endswith(sim.SUFFIX):
        return sim.open_sim(name.removeprefix("sim:"), tf32)
    if name not in TARGETS:
        raise OptionError(
            f"unknown target {name!r}",
            "no target has this name",
            f"choose one of: auto, {', '.join(TARGETS)}, sim:FILE.json of `anabranch record`",
        )
    if name == "cuda" and not available():
        raise TargetError(
            "target 'cuda' needs a CUDA GPU",
            f"torch {torch.__version__} finds none on this machine",
            "use target='cpu' to run here, or target='sim:h200' to plan for an H200",
        )
    return TARGETS[name](tf32)

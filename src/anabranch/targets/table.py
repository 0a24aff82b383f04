"""The table of targets, and what "auto" means."""

from __future__ import annotations

import re
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


INDEXED = re.compile(r"cuda:(\d+)")
TARGETS: dict[str, Callable[[bool], Target]] = {
    "cuda": open_cuda,
    "cpu": _cpu,
    "sim:h200": _sim_h200,
}
"""Each opens a target; the argument says whether fp32 contractions may run in tf32."""
KNOWN = f"choose one of: auto, {', '.join(TARGETS)}, cuda:N, sim:FILE.json of `anabranch record`"


def resolve(name: str, tf32: bool = False) -> Target:
    """The target of this name; "auto" is cuda where there is a GPU, cpu elsewhere. `cuda` is the
    current GPU, `cuda:1` the second one; `sim:FILE.json` is the GPU that this profile is of.
    OptionError for an unknown name, TargetError where the machine lacks it."""
    if not isinstance(name, str):
        raise OptionError(
            f"the target is a {type(name).__name__}: {name!r:.80}",
            "a target is given by its name",
            f"write target={str(name)!r}" if isinstance(name, torch.device) else KNOWN,
        )
    if name == "auto":
        name = "cuda" if available() else "cpu"
    if name.startswith("sim:") and name.endswith(sim.SUFFIX):
        return sim.open_sim(name.removeprefix("sim:"), tf32)
    numbered = INDEXED.fullmatch(name)
    if name not in TARGETS and not numbered:
        raise OptionError(
            f"unknown target {name!r}",
            "no target has this name",
            KNOWN,
        )
    if (name == "cuda" or numbered) and not available():
        raise TargetError(
            f"target {name!r} needs a CUDA GPU",
            f"torch {torch.__version__} finds none on this machine",
            "use target='cpu' to run here, or target='sim:h200' to plan for an H200",
        )
    return open_cuda(tf32, int(numbered[1])) if numbered else TARGETS[name](tf32)

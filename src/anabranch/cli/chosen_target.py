"""What a --target means on this machine: the target to plan for, and where the model is loaded.

auto   with a GPU: cuda        without: sim:h200, whose plans cannot run here
"""

from __future__ import annotations

from anabranch.targets import cuda, resolve

SIMULATED = "sim:h200"


def place(target: str) -> tuple[str, str]:
    """The target's name and the device of its inputs, known before any model is loaded.
    OptionError for a name that means nothing, TargetError for a machine that is not here."""
    if target == "auto":
        target = "cuda" if cuda.available() else SIMULATED
    device = resolve(target).device.type
    return target, "cpu" if device == "meta" else device


def planned_elsewhere(target: str) -> bool:
    """Whether auto had to choose a GPU that is not here."""
    return target == "auto" and not cuda.available()

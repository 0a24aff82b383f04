"""Versions and GPUs that must be the same in all workers, whose times and plans are one caller's.

>>> mine = Identity((("torch", "2.13.0"), ("triton", "3.7")), "NVIDIA H100")
>>> print(mine.differs(Identity((("torch", "2.12.0"), ("triton", "3.7")), "NVIDIA H200")))
it has torch 2.12.0 and this process torch 2.13.0; it has GPU NVIDIA H200 and this process GPU \
NVIDIA H100
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from anabranch.ir.refused import Refused
from anabranch.ir.target import TargetSpec
from anabranch.kernels.sources import ALL_ROOMS, digest, installed


@dataclass(frozen=True, slots=True)
class Identity:
    """`versions`: by name, of what decides or measures; `gpu`: its kind, as the driver calls it."""

    versions: tuple[tuple[str, str], ...]
    gpu: str

    def differs(self, other: Identity) -> Refused | None:
        """Why the other process must do nothing for this one."""
        own, theirs = dict(self._told()), dict(other._told())
        differences = [
            f"it has {name} {theirs.get(name, 'none')} and this process {name} "
            f"{own.get(name, 'none')}"
            for name in dict.fromkeys((*own, *theirs))
            if own.get(name) != theirs.get(name)
        ]
        return Refused("; ".join(differences)) if differences else None

    def _told(self) -> tuple[tuple[str, str], ...]:
        return (*self.versions, ("GPU", self.gpu))


def identity_of(spec: TargetSpec) -> Identity:
    """Of this process, for a target of this spec. Of a simulated GPU the driver is nobody's."""
    version = f"{installed('anabranch')}+{digest(ALL_ROOMS)[:12]}"
    versions = {
        "anabranch": version,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": str(torch.__version__),
        "triton": installed("triton"),
    }
    if not spec.simulated:
        versions |= dict(spec.versions)
    return Identity(tuple(versions.items()), spec.name)

"""Effort: how much of a compilation's time a user buys, and what each of the three settings means.

    fast      one cut into launches, chosen by predicted times; two tiles of a template at most for
              each structure, where they are predicted to beat ATen clearly; no search, two
              schedulers, one mode of dependent launch
    default   eight tiles of a template for each structure, engines of libraries where they may win;
              three modes; a search stops where it is promised less than noise
    max       everything that may be faster is tried

Whatever is used was verified in all three: effort says how much is tried, not how it is judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Effort(StrEnum):
    """How much is tried. FAST: ready in seconds; DEFAULT: what can hardly be faster is left out;
    MAX: as fast as it can be found."""

    FAST = "fast"
    DEFAULT = "default"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class EffortSettings:
    """What a setting changes.

    options: what it sets of other options, unless they are given.
    generated: kernels of one structure and template that are generated and tried, at most, in the
        order in which they are offered; None for as many as there is room for.
    engines: engines of a library, which must be built, are not tried where they are predicted to
        take more than so many times what the fastest generated kernel is.
    gain: generated kernels are tried where they are predicted to save this part of what ATen takes.
    one_cut: of the ways to cut a graph into launches one is chosen by predicted times, before any
        kernel is built, and nothing is computed again or written in place of a concatenation.
    every_scheduler: all that `scheduler="best"` has, and not the two that need no time.
    modes: of the modes of dependent launch, which are ordered by how often they win, the first so
        many are tried; None for all.
    modes_s: seconds in which a mode of its own is looked for for each kernel, at most.
    carveouts: other parts of shared memory than all are tried.
    promise: the part of the time that a candidate of a search must be predicted to save, to be run.
    stops: a search ends where all parts of the graph together are promised to save less than that.
    own_modes: graphs that come near each other at the end of a search are compared with a mode of
        its own for each kernel.
    race: the part of the usual time in which the plan and the eager model are compared.
    """

    options: tuple[tuple[str, str], ...] = ()
    generated: int | None = None
    engines: float = math.inf
    gain: float = -math.inf
    one_cut: bool = False
    every_scheduler: bool = True
    modes: int | None = None
    modes_s: float = math.inf
    carveouts: bool = True
    promise: float = 0.005
    stops: bool = False
    own_modes: bool = True
    race: float = 1.0


EFFORTS: Mapping[Effort, EffortSettings] = MappingProxyType(
    {
        Effort.FAST: EffortSettings(
            options=(("search", "none"), ("horizontal_fusion", "none"), ("pdl", "uniform")),
            generated=2,
            engines=0.0,
            gain=0.1,
            one_cut=True,
            every_scheduler=False,
            modes=1,
            carveouts=False,
            race=0.2,
        ),
        Effort.DEFAULT: EffortSettings(
            generated=8,
            engines=1.3,
            modes=3,
            modes_s=3.0,
            promise=0.02,
            stops=True,
            own_modes=False,
        ),
        Effort.MAX: EffortSettings(),
    }
)
"""By name."""

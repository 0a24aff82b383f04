"""Which workers "auto", "2", "ray" or "ray://HOST" mean for a target.

cuda        auto: one a GPU, none for one GPU   N: spread over the GPUs   ray: the cluster's GPUs
simulated   auto: as many as there are cores    N: N processes            ray: its CPUs
cpu         auto: none, for it would be timed while others run
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anabranch.errors import OptionError
from anabranch.targets import resolve
from anabranch.targets.cuda import gpus
from anabranch.tuning.workers.crew import WorkerCrew
from anabranch.tuning.workers.identity import identity_of
from anabranch.tuning.workers.local import LocalCrew
from anabranch.tuning.workers.pool import WorkerPool
from anabranch.tuning.workers.ray_crew import RayCrew


@contextmanager
def open_workers(
    asked: str | None, target: str, cache_dir: Path | None = None
) -> Iterator[WorkerPool | None]:
    """The pool while the block runs; None where all is to be done in this process. `asked`: as
    `Options.workers`; `cache_dir`: the caller's cache. OptionError for more than there are."""
    crew = crew_of(asked, target, cache_dir)
    if crew is None:
        yield None
        return
    with WorkerPool(crew, identity_of(resolve(target).spec), cache_dir) as pool:
        yield pool


def crew_of(asked: str | None, target: str, cache_dir: Path | None = None) -> WorkerCrew | None:
    """Who starts the workers; None for one worker alone, which this process is."""
    if asked is None:
        return None
    spec = resolve(target).spec
    on_gpus = spec.kind == "cuda" and not spec.simulated
    if asked.startswith("ray"):
        return RayCrew(target, on_gpus, asked)
    devices = gpus() if on_gpus else ()
    most = len(devices) if on_gpus else _cores() if spec.simulated else 1
    count = most if asked == "auto" else int(asked)
    if on_gpus and count > max(most, _cores()):
        raise OptionError(
            f"{count} workers were asked for, and this machine has {_cores()} cores",
            "each compiles on a core of its own",
            f"workers={_cores()} or less, workers='auto', or those of several machines by Ray",
        )
    if count < 2:
        return None
    chosen = tuple(devices[n % len(devices)] for n in range(count)) if on_gpus else ("",) * count
    return LocalCrew("cuda" if on_gpus else target, chosen, cache_dir)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""Where benchmarks run: how calls are timed there, and what a record says of the place.

A CUDA GPU times with events and knows each call's memory. The CPU times with the clock and knows no
memory: it is there so that the whole of a benchmark can be tried without a GPU.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from anabranch.costs.samples import by_turns
from anabranch.errors import OptionError, TargetError
from anabranch.targets import cuda, resolve
from anabranch.targets.cuda import callables, sharing

TimedCall = Callable[[], Any]


Capture = Callable[[Callable[..., Any], tuple[Any, ...]], tuple[TimedCall, int]]
"""Of calls with these arguments: a replay of them as one CUDA graph, and its bytes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`sample(calls, seconds, replays)`: milliseconds of each call, by round; of the `replays`, by
    number, the device's time alone, where there is a device. `peak_of(call)`: its bytes,
    None where nobody knows. `capture(fn, args)`: a replay and its bytes; None without graphs.
    `simulated`: nothing can be timed, and plans are forecast. The work of other processes meanwhile
    is for `turn`, `building` and `alone` of `targets/cuda/sharing`; nothing on a CPU."""

    target: str
    device: torch.device
    sample: Callable[[Sequence[TimedCall], float, Collection[int]], list[list[float]]]
    peak_of: Callable[[TimedCall], int | None]
    synchronize: Callable[[], None]
    release: Callable[[], None]
    survey: Callable[[], dict[str, str | int | float]]
    capture: Capture | None = None
    simulated: bool = False
    turn: Callable[[], AbstractContextManager[object]] = nullcontext
    building: Callable[[], AbstractContextManager[object]] = nullcontext
    alone: Callable[[Callable[[], object]], AbstractContextManager[object]] = nullcontext


def machine(target: str) -> Machine:
    """The machine of this target; "auto" is the GPU where there is one."""
    if target == "auto":
        target = "cuda" if cuda.available() else "cpu"
    if target.startswith("sim:"):
        resolve(target)  # OptionError or TargetError unless it exists
        return replace(_cpu(), target=target, simulated=True)
    if target not in MACHINES:
        raise OptionError(
            f"cannot benchmark on target {target!r}",
            "only what is really here can be timed beside its rivals",
            f"choose one of: auto, {', '.join(MACHINES)}, sim:h200, sim:FILE.json",
        )
    return MACHINES[target]()


def described(target: str) -> dict[str, Any]:
    """What a record says of the machine: the target, the device, and of one that is here what it is
    and has installed."""
    here = machine(target)
    facts = {"target": here.target, "device": resolve(here.target).spec.name}
    return facts if here.simulated else {**facts, **here.survey()}


def gpu_of(target: str) -> str:
    """Which GPU a row is of that is taken on this target in this process, "" for none."""
    here = machine(target)
    if here.simulated:
        return resolve(here.target).spec.name
    return cuda.gpus()[0] if here.target == "cuda" else ""


def _cuda() -> Machine:
    if not cuda.available():
        raise TargetError(
            "target 'cuda' needs a CUDA GPU",
            f"torch {torch.__version__} finds none on this machine",
            "use --target cpu to try the benchmark without one",
        )
    return Machine(
        "cuda",
        torch.device("cuda"),
        callables.sample,
        callables.peak_of,
        callables.synchronize,
        callables.release,
        callables.survey,
        callables.capture_callable,
        turn=sharing.turn,
        building=sharing.building,
        alone=sharing.alone,
    )


def _cpu() -> Machine:
    def nothing() -> None:
        pass

    return Machine("cpu", torch.device("cpu"), _clock, _unknown, nothing, nothing, _processor)


MACHINES: dict[str, Callable[[], Machine]] = {
    "cuda": _cuda,
    "cpu": _cpu,
}


def _clock(
    calls: Sequence[TimedCall], seconds: float, replays: Collection[int] = ()
) -> list[list[float]]:
    return [[us / 1e3 for us in taken] for taken in by_turns(calls, seconds)]


def _unknown(call: TimedCall) -> None:
    call()


def _processor() -> dict[str, str | int | float]:
    return {
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
    }

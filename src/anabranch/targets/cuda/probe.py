"""What each task of a loaded plan takes of the GPU: launches, resources, memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from anabranch.errors import TargetError
from anabranch.ir.protocols import Probe
from anabranch.ir.task import Resources
from anabranch.targets.cuda.capture import CudaExecutable
from anabranch.targets.cuda.nodes import launches_of


def probe(run: CudaExecutable, workspaces: Mapping[str, int]) -> dict[str, Probe]:
    """Of tasks that are run one after the other, by name. `workspaces`: what kernels of libraries
    with explicit workspaces ask for, by task. A task that cannot be captured has no resources, and
    a launch for each of its nodes."""
    temporary: dict[str, int] = {}
    launched: dict[str, list[Resources | None] | None] = {}

    def serial(name: str, call: Callable[[], None]) -> None:
        launched[name] = _captured(run, call)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated() - before
        temporary[name] = max(0, torch.cuda.max_memory_allocated() - before - max(held, 0))

    with torch.cuda.stream(run.side):
        run.launch_all(serial)
    torch.cuda.synchronize()
    probes: dict[str, Probe] = {}
    for task in run.plan.tasks.tasks:
        took = launched.get(task.name)
        count = len(task.body.nodes) if took is None else len(took)
        workspace = workspaces.get(task.name, 0)
        probes[task.name] = Probe(workspace, temporary[task.name], count, largest(took or ()))
    return probes


def _captured(run: CudaExecutable, call: Callable[[], None]) -> list[Resources | None] | None:
    """What the call would launch, None where that cannot be known. Results that it allocated are
    dropped: nobody computed them, and the run would seem to need as much memory again."""
    before = dict(run.values)
    try:
        return launches_of(call, run.side)
    except (RuntimeError, TargetError):
        return None
    finally:
        run.values.clear()
        run.values.update(before)


def largest(launched: Sequence[Resources | None]) -> Resources | None:
    """The kernel of the most threads, which as a rule takes longest; None where there is none."""
    kernels = [resources for resources in launched if resources is not None]
    return max(kernels, key=lambda r: r.ctas * r.threads) if kernels else None

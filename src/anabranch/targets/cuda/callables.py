"""Any callable on the GPU: captured as one CUDA graph, timed side by side, its memory's peak.

What benchmarks need of the device for systems that are not plans:

    replay, bytes = capture_callable(model, (x,))
    samples = sample([replay, lambda: model(x)], seconds=1.0)       milliseconds for each, by round
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from anabranch.costs.samples import timed_elsewhere
from anabranch.targets.cuda import timing
from anabranch.targets.cuda.capturing import captured
from anabranch.targets.cuda.device_sleep import device_sleep
from anabranch.targets.cuda.sharing import turn

WARM_UPS = 3
TIMED_ROUNDS = (5, 200)
"""At least and at most."""
PER_ROUND = 3


def capture_callable(
    fn: Callable[..., Any], args: tuple[Any, ...] = ()
) -> tuple[Callable[[], Any], int]:
    """`fn(*args)` as one CUDA graph on those very arguments: a call that replays it and returns
    its outputs, overwritten each time, and the bytes that its private pool takes. RuntimeError
    where the callable cannot be captured (it synchronises, or copies from the host)."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            fn(*args)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    outputs: list[Any] = []
    with own_workspaces():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.empty_cache()  # its pool is measured: nothing cached before is in it
        graph = captured(lambda: outputs.append(fn(*args)), side)
        pool = torch.cuda.max_memory_allocated() - before
    read = (fn, args)  # the graph knows addresses only: weights and inputs must outlive it

    def replay(_: object = read) -> Any:
        graph.replay()
        return outputs[0]

    return replay, max(0, pool)


@contextmanager
def own_workspaces() -> Iterator[None]:
    """Graphs captured within have cuBLAS's workspaces in their own pools.

    Otherwise they use the one that cuBLAS keeps per stream for the whole process, and
    torch.compile's CUDA graphs free all of those when they record: a graph captured before then
    writes to memory that is not its own. (Seen on an H200: an illegal access in a later replay.)
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


def peak_of(fn: Callable[[], object]) -> int:
    """Bytes that the allocator handed out at most during the call, above what was held before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    fn()
    torch.cuda.synchronize()
    return max(0, torch.cuda.max_memory_allocated() - before)


def synchronize() -> None:
    """Wait until the current GPU has done all that it was given."""
    torch.cuda.synchronize()


def sample(
    calls: Sequence[Callable[[], object]], seconds: float, replays: Collection[int] = ()
) -> list[list[float]]:
    """Milliseconds of each call, in rounds that visit all within about `seconds`: the i-th numbers
    of all lists were taken in the same round.

    A system is visited on an idle device and with a call that does not count. Later work is not
    synchronised, so a call takes as long as its slower side, host or device. `replays`: by number,
    those that do nothing but launch a graph, of which the device's time is taken: where the host
    would launch the next one too late, the device sleeps before they begin.
    """
    samples: list[list[float]] = [[] for _ in calls]
    elsewhere = timed_elsewhere(calls)
    lead = dict.fromkeys(replays, 0.0)
    with turn() as offer:
        deadline = time.perf_counter() + seconds
        for done in range(TIMED_ROUNDS[1]):
            if done >= TIMED_ROUNDS[0] and time.perf_counter() > deadline:
                break
            deadline += offer()
            for i, (taken, call) in enumerate(zip(samples, calls, strict=True)):
                if i in elsewhere:
                    times = list(elsewhere[i].milliseconds(PER_ROUND))
                elif i in lead:
                    times, lead[i] = _ahead(call, lead[i])
                else:
                    times, _ = _visit(call)
                taken += times
    return samples


def _ahead(call: Callable[[], object], lead: float) -> tuple[list[float], float]:
    """A visit before which the device slept long enough, if there is any such time, and that many
    microseconds."""
    while True:
        times, late = _visit(call, lead)
        if not late or lead >= timing.LONGEST:
            return times, lead
        lead = min(timing.LONGEST, max(2 * lead, timing.MARGIN * late))


def _visit(call: Callable[[], object], lead: float = 0.0) -> tuple[list[float], float]:
    """Samples, and the microseconds that the launches took if the first was over before the last,
    else 0."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(PER_ROUND + 1)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    if lead:
        device_sleep(lead)
    start = time.perf_counter()
    call()
    marks[0].record()
    for mark in marks[1:]:
        call()
        mark.record()
    over: bool = marks[0].query()  # type: ignore[no-untyped-call]
    took = 1e6 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in pairwise(marks)], took if over else 0.0


def release() -> None:
    """Give cached memory back, so that the next network begins with an empty device."""
    torch.cuda.empty_cache()


def survey() -> dict[str, str | int | float]:
    """The GPU as a record should name it: device, driver, clocks, power, temperature."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    facts: dict[str, str | int | float] = {
        "gpu": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "sms": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
    }
    asked = {
        "driver": "driver_version",
        "sm_clock_mhz": "clocks.sm",
        "max_sm_clock_mhz": "clocks.max.sm",
        "power_w": "power.draw",
        "power_limit_w": "power.limit",
        "temperature_c": "temperature.gpu",
    }
    uuid = f"GPU-{properties.uuid}"
    query = f"--query-gpu={','.join(asked.values())}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", f"--id={uuid}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return facts
    answers = (answer.strip() for answer in done.stdout.strip().split(","))
    return facts | dict(zip(asked, answers, strict=False))

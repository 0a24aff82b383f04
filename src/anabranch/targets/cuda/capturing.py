"""One CUDA graph of a call, and nothing left behind where it cannot be captured.

A call that waits for the device has CUDA give a capture up, and torch does not tell all of its own
parts that it is over:

- its allocator (before torch 2.12): the process ends with an assertion as soon as any pool of
  memory goes, at its exit at the latest. So a capture has a pool that is known here, and is taken
  back here.
- its generator of random numbers: whatever draws on that GPU afterwards raises. The end of any
  capture that succeeds tells it, so there is one of a single small launch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from anabranch.ir.gc_pause import uncollected
from anabranch.targets.cuda.cached_memory import make_room

_end_allocate: Callable[[int, Any], None] = torch._C._cuda_endAllocateToPool
_release: Callable[[int, Any], None] = torch._C._cuda_releasePool


def captured(
    call: Callable[[], object], stream: torch.cuda.Stream, keep: bool = False
) -> torch.cuda.CUDAGraph:
    """What the call launches on the stream, as a graph. `keep`: not instantiated yet, so that its
    nodes can be changed. What the call raises, and RuntimeError where CUDA refuses to capture it.

    Not `torch.cuda.graph`, which hands all cached memory back to the driver: plans that are loaded
    to be timed would pay for that again and again. It goes back where there is much of it."""
    make_room(torch.cuda.current_device())
    graph, pool = torch.cuda.CUDAGraph(keep_graph=keep), torch.cuda.graph_pool_handle()
    with uncollected(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            call()
        except BaseException:
            with suppress(RuntimeError):  # where the capture itself is what failed
                _end(graph, pool)
            raise
        _end(graph, pool)
    return graph


def _end(graph: torch.cuda.CUDAGraph, pool: Any) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        device = torch.cuda.current_device()
        with suppress(RuntimeError):  # a later torch has done so
            _end_allocate(device, pool)
            _release(device, pool)
        _tell_generator()
        raise


def _tell_generator() -> None:
    """That no capture is under way, which a capture that CUDA gave up has left it believing."""
    with suppress(RuntimeError):  # where the GPU no longer answers, the error of the call is raised
        memory, graph = torch.empty(1, device="cuda"), torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        memory.zero_()
        graph.capture_end()

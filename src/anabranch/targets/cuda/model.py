"""The eager model on the device's own terms: captured in one CUDA graph, timed beside a plan.

    model --warm up, capture--> graph --replays, interleaved with the plan's--> costs

A model that waits for the device (`.item()`, boolean indexing) cannot be captured; its calls are
timed as they are then, the host's time included, which is all that its user can have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from anabranch.costs.samples import summarised
from anabranch.ir.protocols import Cost
from anabranch.targets.cuda import timing
from anabranch.targets.cuda.cached_memory import with_room
from anabranch.targets.cuda.capture import WARM_UPS, CudaExecutable
from anabranch.targets.cuda.capturing import captured


def beside_model(
    run: CudaExecutable, model: Callable[[], object], stream: torch.cuda.Stream, budget: float
) -> tuple[Cost, Cost]:
    """Latencies of the executable and of the model, in microseconds, taken interleaved within about
    `budget` seconds. `stream`: where the model is captured; one that plans are captured on has the
    workspace that cuBLAS keeps for each stream. OutOfMemoryError where the model does not fit
    beside the plan."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                model()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = _captured(model, stream)
        replay = model if graph is None else graph.replay
        samples = timing.interleaved([run.replay, replay], budget, ahead=graph is not None)
    return summarised(samples[0], run.repeat), summarised(samples[1])


def _captured(
    model: Callable[[], object], stream: torch.cuda.Stream
) -> torch.cuda.CUDAGraph | None:
    """One graph of a call of the model, None where it cannot be captured."""
    try:
        return with_room(partial(captured, model, stream))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize()
        return None

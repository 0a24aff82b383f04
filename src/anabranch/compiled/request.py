"""A request for one more plan of a compiled model."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anabranch.artifact.owned_constants import Shared
from anabranch.compiled.sized import SizedCalls
from anabranch.errors import OptionError
from anabranch.frontend.captured import Captured
from anabranch.frontend.surroundings import Surroundings, surroundings
from anabranch.tuning.among_sizes import AmongSizes
from anabranch.tuning.workers.pool import WorkerPool


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One more plan. `args` and `kwargs`: the example; `captured`: its graph, where a front end has
    it already; `stop`: ends searching and measuring once it is set; `shared`: constants of others
    that are refitted with this plan; `sized`: what varies in such calls, and `at`: the sizes of
    this one; `around`: torch's switches, under which the model is captured and called; `workers`:
    who helps to try kernels; `resized`: the example that this one was made of, for these sizes;
    `among`: these sizes among all that are compiled."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    captured: Captured | None
    stop: threading.Event | None
    shared: Shared | None
    sized: SizedCalls | None
    at: tuple[int, ...]
    around: Surroundings
    workers: WorkerPool | None = None
    resized: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    among: AmongSizes | None = None


def request(
    args: Sequence[Any] | Tensor,
    kwargs: Mapping[str, Any] | None = None,
    captured: Captured | None = None,
    stop: threading.Event | None = None,
    shared: Shared | None = None,
    sized: SizedCalls | None = None,
    at: tuple[int, ...] = (),
    around: Surroundings | None = None,
    workers: WorkerPool | None = None,
    resized: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None,
) -> PlanRequest:
    """The request for inputs as users write them. A lone tensor is one argument; the switches are
    those of now, except for a graph of torch.compile, which has its casts in it."""
    check_stop(stop)
    if around is None:
        around = surroundings() if captured is None else Surroundings()
    positional = (args,) if isinstance(args, Tensor) else tuple(args)
    told = captured, stop, shared, sized, at, around, workers, resized
    return PlanRequest(positional, kwargs or {}, *told)


def check_stop(stop: Any) -> None:
    """OptionError for what is no event that somebody can set."""
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise OptionError(
            f"stop is a {type(stop).__name__}",
            "it is an event: once somebody sets it, searching and measuring end",
            "give a threading.Event, or budget=SECONDS to end after some time",
        )

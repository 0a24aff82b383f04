"""Where others call us: the torch.compile backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

GROUP = "torch_dynamo_backends"
NAME = "anabranch"


@cache
def name_backend() -> None:
    """Has `torch.compile(backend="anabranch")` find the backend also where the package is on the
    path without being installed: an installed one is found by its entry point, and whoever loads a
    plan does without the 1.3 seconds that importing the registry takes."""
    if entry_points(group=GROUP, name=NAME):
        return
    from torch._dynamo.backends.registry import list_backends, register_backend

    if NAME not in list_backends(exclude_tags=()):
        register_backend(_backend, name=NAME)


def _backend(*args: Any, **options: Any) -> Callable[..., Any]:
    backend: Callable[..., Any] = import_module(f"{__name__}.dynamo").anabranch_backend
    return backend(*args, **options)  # type: ignore[no-any-return]

"""What stays as it was while a model is exported (screen, random numbers, its attributes), and what
must not be looked at."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import nn

from anabranch.trace import Trace


@contextmanager
def quiet(trace: Trace) -> Iterator[None]:
    """Keeps torch's notes on exporting off the screen; what concerns the user becomes an event."""
    logger = logging.getLogger("torch")
    before = logger.level
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger.setLevel(logging.CRITICAL)
        try:
            # Of a failed export, torch prints the unfinished graph.
            with redirect_stderr(io.StringIO()):
                yield
        finally:
            logger.setLevel(before)
    for warning in caught:
        text = str(warning.message)
        if "were assigned during export" in text and "_flat_weights" not in text:
            trace.add("warning", "frontend", "attributes assigned in forward are not kept", text)


@contextmanager
def random_state_kept() -> Iterator[None]:
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """What forward assigns to attributes, or puts into lists and dicts there, is undone: while
    exporting it would be tensors without values."""
    before = [(vars(part), dict(vars(part))) for part in module.modules()]
    contents = [
        (held, held.copy())
        for _, attributes in before
        for held in attributes.values()
        if isinstance(held, (list, dict, set))
    ]
    try:
        yield
    finally:
        for live, copy in (*before, *contents):
            _restore(live, copy)


@contextmanager
def masks_unread() -> Iterator[None]:
    """Transformers look whether a mask they are given is the causal one, to go a faster way; a
    graph cannot look. As a mask like any other it gives the same."""
    layers: Any = torch.nn.modules.transformer
    own = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = own


def _restore(live: Any, copy: Any) -> None:
    """Make a list, dict or set hold again exactly what its copy holds."""
    if isinstance(live, list):
        if list(map(id, live)) != list(map(id, copy)):
            live[:] = copy
    elif isinstance(live, dict):
        if [(key, id(value)) for key, value in live.items()] != [
            (key, id(value)) for key, value in copy.items()
        ]:
            live.clear()
            live.update(copy)
    elif set(map(id, live)) != set(map(id, copy)):
        live.clear()
        live.update(copy)

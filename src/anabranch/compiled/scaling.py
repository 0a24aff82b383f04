"""How a scaler's scale changes: numbers that a plan has as they were when it was compiled.

    {"growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000}

The scale itself, and the count of steps without an overflow, are tensors that a plan reads and
writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.amp.grad_scaler import GradScaler

from anabranch.errors import InputError


def scaling_of(scaler: GradScaler | None) -> dict[str, Any]:
    """By name what the scale is multiplied by, and after how many steps; nothing without scaler."""
    if scaler is None or not scaler.is_enabled():
        return {}
    return {
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
    }


def check_scaling(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """InputError where a scaler changes its scale otherwise than when the step was compiled."""
    for name in sorted({*then, *now}):
        was, current = _as_set(then.get(name)), _as_set(now.get(name))
        if was != current:
            raise InputError(
                f"{name} of the scaler was {was} when the step was compiled, and is {current}",
                "a plan changes the scale as the scaler did that it was compiled with",
                f"set it back (scaler.set_{name}({was})), or compile the step again",
            )


def _as_set(value: float | None) -> float | None:
    """The number as a scaler takes it: files have floats, and an interval is an integer."""
    return int(value) if value is not None and float(value).is_integer() else value

"""Switches of the process and of torch that a call of a model may turn: the environment, threads,
the default dtype, grad mode, back ends.

    was = switches()
    model(x)
    turned(was)         ["os.environ['STEP']", "torch.get_num_threads()"]
    turn_back(was)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from anabranch.frontend.held_containers import ABSENT
from anabranch.targets.tf32 import settable

OF_COMPILERS = ("TORCH", "TRITON", "PYTORCH")
"""How variables of the environment begin that torch's own compilers set at their first use."""

VARIABLE: CodeType = type(os.environ).__getitem__.__code__
"""The code that runs for each variable of the environment that is asked for, in whatever way."""


@dataclass(frozen=True, slots=True)
class _Switch:
    get: Callable[[], Any]
    set: Callable[[Any], Any]


def _attribute(owner: Any, name: str) -> _Switch:
    return _Switch(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _deterministic() -> tuple[bool, bool]:
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled(), warn_only


SWITCHES: Mapping[str, _Switch] = {
    "torch.get_num_threads()": _Switch(torch.get_num_threads, torch.set_num_threads),
    "torch.get_default_dtype()": _Switch(torch.get_default_dtype, torch.set_default_dtype),
    "torch.is_grad_enabled()": _Switch(torch.is_grad_enabled, torch._C._set_grad_enabled),
    "torch.are_deterministic_algorithms_enabled()": _Switch(
        _deterministic, lambda was: torch.use_deterministic_algorithms(was[0], warn_only=was[1])
    ),
    "torch.is_anomaly_enabled()": _Switch(torch.is_anomaly_enabled, torch._C.set_anomaly_enabled),
    "torch.backends.cudnn.enabled": _attribute(torch.backends.cudnn, "enabled"),
    "torch.backends.cudnn.benchmark": _attribute(torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": _attribute(torch.backends.cudnn, "deterministic"),
    "sys.getrecursionlimit()": _Switch(sys.getrecursionlimit, sys.setrecursionlimit),
}

Switches = tuple[Mapping[str, str], tuple[Any, ...]]
"""The environment, and the value of each of `SWITCHES`."""


def switches() -> Switches:
    """How they stand now: 30 us."""
    return dict(os.environ), tuple(switch.get() for switch in SWITCHES.values())


def turned(was: Switches) -> list[str]:
    """Those that do not stand as they did."""
    now = switches()
    told = [f"os.environ[{name!r}]" for name in _variables(now[0], was[0])]
    values = zip(SWITCHES, now[1], was[1], strict=True)
    return told + [name for name, value, old in values if value != old]


def turn_back(was: Switches) -> None:
    """Have them stand as they did."""
    now = switches()
    for name in _variables(now[0], was[0]):
        if name in was[0]:
            os.environ[name] = was[0][name]
        else:
            del os.environ[name]
    for switch, value, old in zip(SWITCHES.values(), now[1], was[1], strict=True):
        if value != old:
            with settable():
                switch.set(old)


def _variables(now: Mapping[str, str], was: Mapping[str, str]) -> list[str]:
    if now == was:
        return []
    names = dict.fromkeys([*was, *now])
    other = (name for name in names if now.get(name, ABSENT) != was.get(name, ABSENT))
    return [name for name in other if not name.startswith(OF_COMPILERS)]

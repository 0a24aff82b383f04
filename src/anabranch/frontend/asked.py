"""What the user's code asks torch about the call that it runs in, and the answers of torch.export.

    if torch.compiler.is_compiling():   eager: False   torch.export: True
    if torch.is_grad_enabled():         eager: either  torch.export: True

A model that goes another way for another answer is captured the way that export goes. Other answers
are switches of torch's, which a call may find otherwise than the capture did: they become a part of
what the graph depends on.

    x.to(torch.get_default_dtype())                     calls under another default are refused
    if torch.are_deterministic_algorithms_enabled():    calls under the other setting are refused
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

import torch

from anabranch.frontend.source import is_users
from anabranch.frontend.surroundings import Surroundings
from anabranch.ir.ambient import Ambient, name_of

_COMPILER: Any = torch.compiler
FLAGS = ("_is_compiling_flag", "_is_exporting_flag")
ASKED = {name: getattr(_COMPILER, name).__code__ for name in ("is_compiling", "is_exporting")}
"""By name, for a code object takes as long to hash as it is long."""
DEFAULT_DTYPE = "torch.get_default_dtype()"
DETERMINISTIC = "torch.are_deterministic_algorithms_enabled()"
SWITCHED = {
    "are_deterministic_algorithms_enabled": torch.are_deterministic_algorithms_enabled.__code__,
    "get_deterministic_debug_mode": torch.get_deterministic_debug_mode.__code__,
}
BUILT_IN = {
    torch.is_grad_enabled: "torch.is_grad_enabled()",
    torch.get_default_dtype: DEFAULT_DTYPE,
    torch._C._get_deterministic_algorithms: DETERMINISTIC,
}
OTHER_WAY = (
    "and calls other operators for another answer: what is compiled goes the way for True, as "
    "torch.export does"
)


def asked(frame: FrameType, called: Any = None) -> str | None:
    """The question and where it is asked, of a Python function that is entered, or of a built-in
    one that is `called`; None where it is no such question of the user's."""
    if called is not None:
        question = BUILT_IN.get(called) if isinstance(called, BuiltinFunctionType) else None
        return _at(frame, question) if question else None
    name, caller = frame.f_code.co_name, frame.f_back
    if SWITCHED.get(name) is frame.f_code and caller is not None:
        return _at(caller, DETERMINISTIC)
    if ASKED.get(name) is not frame.f_code or caller is None:
        return None
    if caller.f_code.co_name == "is_compiling" and caller.f_back is not None:
        caller = caller.f_back  # torch._dynamo has a function of this name, which asks this one
    return _at(caller, f"torch.compiler.{name}()")


def of_export(questions: Iterable[str]) -> list[str]:
    """Those that torch.export answers in a way of its own, each with the first place of it."""
    first: dict[str, str] = {}
    for one in questions:
        if not one.startswith((DEFAULT_DTYPE, DETERMINISTIC)):
            first.setdefault(one.partition(" at ")[0], one)
    return list(first.values())


def relied_on(ambient: Ambient, questions: Iterable[str], under: Surroundings) -> Ambient:
    """The ambient, with the switches that the model asked for as they were."""
    told = list(questions)
    if ambient.device and any(one.startswith(DEFAULT_DTYPE) for one in told):
        ambient = replace(ambient, default_dtype=name_of(under.dtype))
    if ambient.device and any(one.startswith(DETERMINISTIC) for one in told):
        ambient = replace(ambient, asks_deterministic="on" if under.deterministic else "off")
    return ambient


def _at(frame: FrameType, question: str) -> str | None:
    file = frame.f_code.co_filename
    if not is_users(file):
        return None
    return f"{question} at {Path(file).name}:{frame.f_lineno} in {frame.f_code.co_name}"


@contextmanager
def as_exported() -> Iterator[None]:
    """Within it the answers are those that a model has while it is exported."""
    flags = {name: getattr(_COMPILER, name) for name in FLAGS if hasattr(_COMPILER, name)}
    try:
        for name in flags:
            setattr(_COMPILER, name, True)
        with torch.enable_grad():
            yield
    finally:
        for name, was in flags.items():
            setattr(_COMPILER, name, was)

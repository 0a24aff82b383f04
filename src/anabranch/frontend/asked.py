"""What the user's code asks torch about the call that it runs in, and the answers of torch.export.

    if torch.compiler.is_compiling():   eager: False   torch.export: True
    if torch.is_grad_enabled():         eager: either  torch.export: True

A model that goes another way for another answer is captured the way that export goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from anabranch.frontend.source import is_users

_COMPILER: Any = torch.compiler
FLAGS = ("_is_compiling_flag", "_is_exporting_flag")
ASKED = {name: getattr(_COMPILER, name).__code__ for name in ("is_compiling", "is_exporting")}
"""By name, for a code object takes as long to hash as it is long."""
OTHER_WAY = (
    "and calls other operators for another answer: what is compiled goes the way for True, as "
    "torch.export does"
)


def asked(frame: FrameType, called: Any = None) -> str | None:
    """The question and where it is asked, of a Python function that is entered, or of a built-in
    one that is `called`; None where it is no such question of the user's."""
    if called is not None:
        return _at(frame, "torch.is_grad_enabled()") if called is torch.is_grad_enabled else None
    name, caller = frame.f_code.co_name, frame.f_back
    if ASKED.get(name) is not frame.f_code or caller is None:
        return None
    if caller.f_code.co_name == "is_compiling" and caller.f_back is not None:
        caller = caller.f_back  # torch._dynamo has a function of this name, which asks this one
    return _at(caller, f"torch.compiler.{name}()")


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

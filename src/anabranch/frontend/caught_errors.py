"""Errors of a trace that the model catches itself.

    try:
        y = self.a(x) if x.sum() > 0 else self.b(x)     a trace has no values: an error
    except Exception:
        y = x                                           the trace goes on, and the model never
                                                        comes here

What is recorded then is a way that no call of the model goes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.fx.experimental.symbolic_shapes import ShapeEnv

from anabranch.errors import DataDependentError
from anabranch.frontend.source import raised_at

ASKING_MODULES = ("torch", "torch._tensor", "torch.overrides", "functools", "contextlib")
ASKING_ROOMS = (
    "torch.fx.experimental.",
    "torch._export.",
    "torch._logging.",
    "torch.utils.",
    "anabranch.",
)
"""Modules of frames between the model and an error that it asks for itself."""
Note = Callable[[DataDependentError], DataDependentError]


@contextmanager
def caught_errors() -> Iterator[Note]:
    """Within it errors about values that the model asks for are noted, those of torch and those
    that are given to the function; DataDependentError at the end where the model caught one."""
    kind: Any = ShapeEnv
    make, noted = kind._make_data_dependent_error, list[Exception]()

    def error_of(*args: Any, **kwargs: Any) -> Any:
        error = make(*args, **kwargs)
        if _model_asks():
            noted.append(error)
        return error

    def note(error: DataDependentError) -> DataDependentError:
        noted.append(error)
        return error

    kind._make_data_dependent_error = error_of
    try:
        yield note
    finally:
        kind._make_data_dependent_error = make
    if noted:
        raise DataDependentError(
            "the model's control flow depends on the values of a tensor, within `try`",
            "a trace has no values, and the model caught the error that this is",
            "use torch.where, or compile the parts before and after",
            raised_at(noted[0]),
        )


def _model_asks() -> bool:
    """Whether it is the model's own code that asks, and no operator of torch."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in ASKING_MODULES and not name.startswith(ASKING_ROOMS):
            return name.partition(".")[0] not in ("torch", "sympy")
        frame = frame.f_back
    return False

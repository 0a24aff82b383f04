"""Anabranch: a PyTorch model in, a callable out that computes the same thing faster on a GPU.

>>> import anabranch
>>> fast = anabranch.compile(model, (x,))                # doctest: +SKIP
>>> y = fast(x)                                          # doctest: +SKIP
"""

from anabranch.api import Compiled, compile, load
from anabranch.errors import (
    AnabranchError,
    ArtifactError,
    CaptureError,
    InputError,
    NumericsError,
    OptionError,
    ScheduleError,
    TargetError,
    WriteError,
)
from anabranch.options import Options

__version__ = "0.1.0"

__all__ = [
    "AnabranchError",
    "ArtifactError",
    "CaptureError",
    "Compiled",
    "InputError",
    "NumericsError",
    "OptionError",
    "Options",
    "ScheduleError",
    "TargetError",
    "WriteError",
    "compile",
    "load",
]
